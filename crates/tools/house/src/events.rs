//! The events of the log: each has an id, and `docs/LOGS.md` lists them.

use crate::habits;
use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The list, in the workspace.
pub const PLACE: &str = "docs/LOGS.md";
/// The command that writes the list.
pub const COMMAND: &str = "cargo run -p untorn-house -- logs --write";
/// The macros of `tracing` that make an event.
const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];
/// The beginning of the list's head.
const HEAD: &str = "| id | level | message |";

/// An event in the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The file, from the workspace, and the line.
    pub at: String,
    /// The level, which is the name of the macro.
    pub level: String,
    /// The id. Empty if the event has none.
    pub id: String,
    /// The message, with the names of values in braces.
    pub message: String,
}

/// All events of the workspace's programs and libraries, without those of tests.
pub fn events(workspace: &Path) -> Result<Vec<Event>> {
    let mut found = Vec::new();
    for path in habits::rust_files(&workspace.join("crates"))? {
        let shown = path.strip_prefix(workspace).unwrap_or(&path).display().to_string();
        if shown.contains("/src/") {
            let text = fs::read_to_string(&path).with_context(|| shown.clone())?;
            found.extend(in_text(&text, &shown)?);
        }
    }
    Ok(found)
}

/// The events of one file.
pub fn in_text(text: &str, file: &str) -> Result<Vec<Event>> {
    let tokens = text.parse::<TokenStream>().map_err(|e| anyhow::anyhow!("{file}: {e}"))?;
    let mut found = Vec::new();
    look(tokens, file, &mut found);
    Ok(found)
}

fn look(tokens: TokenStream, file: &str, found: &mut Vec<Event>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        let TokenTree::Group(group) = token else { continue };
        // `tracing :: warn ! ( … )`
        let before: Vec<String> = tokens[at.saturating_sub(5)..at].iter().map(ToString::to_string).collect();
        match before.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["tracing", ":", ":", level, "!"] if LEVELS.contains(&level) => {
                let line = group.span_open().start().line;
                found.push(event(group.stream(), level, format!("{file}:{line}")));
            }
            _ => look(group.stream(), file, found),
        }
    }
}

/// An event from the arguments of its macro.
fn event(arguments: TokenStream, level: &str, at: String) -> Event {
    let (mut id, mut message) = (String::new(), String::new());
    let tokens: Vec<TokenTree> = arguments.into_iter().collect();
    for argument in tokens.split(|token| matches!(token, TokenTree::Punct(p) if p.as_char() == ',')) {
        match argument {
            [TokenTree::Ident(name), TokenTree::Punct(_), TokenTree::Literal(value)] if name == "id" => {
                id = string(value).unwrap_or_default();
            }
            // The values of the message follow it.
            [TokenTree::Literal(value)] if message.is_empty() => message = string(value).unwrap_or_default(),
            _ => {}
        }
    }
    Event { at, level: level.to_owned(), id, message }
}

fn string(literal: &proc_macro2::Literal) -> Option<String> {
    syn::parse_str::<syn::LitStr>(&literal.to_string()).ok().map(|literal| literal.value())
}

/// The events that have no id, a wrong one, or the id of another event.
pub fn wrong(events: &[Event]) -> Vec<String> {
    let is_part =
        |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    let mut wrong = Vec::new();
    let mut known: BTreeMap<&str, &Event> = BTreeMap::new();
    for event in events {
        let Event { at, level, id, message } = event;
        let parts: Vec<&str> = id.split('.').collect();
        if parts.len() != 3 || parts[0] != "untorn" || !parts.iter().copied().all(is_part) {
            wrong.push(format!("{at}: the event has no field `id = \"untorn.AREA.WHAT\"` before its message"));
        } else if message.chars().filter(|c| c.is_alphabetic()).count() < 4 {
            wrong.push(format!("{at}: the event's message says nothing: give its values names"));
        } else if let Some(other) = known.insert(id, event)
            && (&other.level, &other.message) != (level, message)
        {
            wrong.push(format!("{at}: {id} is the id of another event, at {}", other.at));
        }
    }
    wrong
}

/// The list as it should be, with the parts of the present one that are written by hand.
#[derive(Debug)]
pub struct Listed {
    /// The whole document.
    pub text: String,
    /// The ids whose meaning or remedy is missing.
    pub untold: Vec<String>,
}

/// Makes the list of a document anew.
pub fn list(document: &str, events: &[Event]) -> Result<Listed> {
    let head = document.find(HEAD).with_context(|| format!("{PLACE} has no table that begins with `{HEAD}`"))?;
    let table = &document[head..];
    let end = table.find("\n\n").map_or(table.len(), |end| end + 1);
    let mut lines = table[..end].lines();
    let mut text = document[..head].to_owned();
    for line in lines.by_ref().take(2) {
        text.push_str(line);
        text.push('\n');
    }
    let told: BTreeMap<&str, (&str, &str)> = lines.filter_map(by_hand).collect();
    let by_id: BTreeMap<&str, &Event> = events.iter().map(|event| (event.id.as_str(), event)).collect();
    let mut untold = Vec::new();
    for (id, event) in by_id {
        let (means, remedy) = told.get(id).copied().unwrap_or_default();
        if means.is_empty() || remedy.is_empty() {
            untold.push(id.to_owned());
        }
        let message = event.message.replace('|', "\\|");
        text.push_str(&format!("| `{id}` | {} | {message} | {means} | {remedy} |\n", event.level));
    }
    text.push_str(&table[end..]);
    Ok(Listed { text, untold })
}

/// The id of a row, its meaning and its remedy.
fn by_hand(row: &str) -> Option<(&str, (&str, &str))> {
    let cells: Vec<&str> = row.trim().trim_matches('|').split(" | ").map(str::trim).collect();
    let [id, _, _, means, remedy] = cells[..] else { return None };
    Some((id.trim_matches('`'), (means, remedy)))
}

/// Events against the rules, and differences between the list and the source.
pub fn violations(workspace: &Path) -> Result<Vec<String>> {
    let events = events(workspace)?;
    let document = fs::read_to_string(workspace.join(PLACE)).context(PLACE)?;
    let listed = list(&document, &events)?;
    let mut found = wrong(&events);
    found.extend(listed.untold.iter().map(|id| format!("{PLACE} does not say what {id} means, and what to do")));
    if listed.text != document {
        found.push(format!("{PLACE} is not the list of this source's events; `{COMMAND}` writes it"));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"
        fn f(e: Error) {
            if wrong { match x { 1 => tracing::warn!(id = "untorn.a.waits", error = %e, "it {waits} \
                and waits", waits = 3), _ => {} } }
            tracing::error!(target: T, id = "untorn.b.ends", "it ends");
            other::warn!("no event");
        }
    "#;

    #[test]
    fn events_are_found_wherever_they_stand() {
        let found = in_text(SOURCE, "f.rs").unwrap();
        let of = |level: &str, id: &str, message: &str, at: &str| Event {
            at: at.to_owned(),
            level: level.to_owned(),
            id: id.to_owned(),
            message: message.to_owned(),
        };
        let waits = of("warn", "untorn.a.waits", "it {waits} and waits", "f.rs:3");
        assert_eq!(found, [waits, of("error", "untorn.b.ends", "it ends", "f.rs:5")]);
        assert!(wrong(&found).is_empty(), "{:?}", wrong(&found));
    }

    #[test]
    fn events_without_an_id_of_their_own_are_named() {
        let found = in_text(
            r#"fn f() {
                tracing::warn!("no id");
                tracing::warn!(id = "untorn.short", "a short one");
                tracing::warn!(id = "untorn.a.b", "{}", text);
                tracing::warn!(id = "untorn.a.c", "a message");
                tracing::warn!(id = "untorn.a.c", "another message");
                tracing::warn!(id = "untorn.a.c", "another message");
            }"#,
            "f.rs",
        );
        let lines: Vec<String> = wrong(&found.unwrap()).iter().map(|said| said[..6].to_owned()).collect();
        assert_eq!(lines, ["f.rs:2", "f.rs:3", "f.rs:4", "f.rs:6"]);
    }

    #[test]
    fn a_list_keeps_what_is_written_by_hand() {
        let events = in_text(SOURCE, "f.rs").unwrap();
        let rule = "|---|---|---|---|---|";
        let before = format!(
            "# Log\n\n{HEAD} meaning | remedy |\n{rule}\n| `untorn.b.ends` | info | older | it means | do it |\n\
             | `untorn.gone.x` | info | older | it means | do it |\n\nThe end.\n"
        );
        let listed = list(&before, &events).unwrap();
        let after = format!(
            "# Log\n\n{HEAD} meaning | remedy |\n{rule}\n| `untorn.a.waits` | warn | it {{waits}} and waits |  |  |\n\
             | `untorn.b.ends` | error | it ends | it means | do it |\n\nThe end.\n"
        );
        assert_eq!(listed.text, after);
        assert_eq!(listed.untold, ["untorn.a.waits"]);
        assert_eq!(list(&after, &events).unwrap().text, after);
        assert!(list("# Log\n", &events).is_err());
    }
}
