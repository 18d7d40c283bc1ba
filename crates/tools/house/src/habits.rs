//! Habits of the source: first lines of doc comments, error numbers, standard streams.

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use std::fs;
use std::path::{Path, PathBuf};

/// Macros that panic if they cannot write to standard output or standard error.
const PRINTING: [&str; 5] = ["print", "println", "eprint", "eprintln", "dbg"];

/// All Rust files below a directory, sorted, without build and hidden directories.
pub fn rust_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    left.push(path);
                }
            } else if name.ends_with(".rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Beginnings of doc comments that need another line, or use a clause as a noun.
const LEANING: [&str; 5] = ["The same", "What", "Whoever", "Of what", "As"];
/// Words that make a clause a noun.
const CLAUSES: [&str; 4] = ["what", "whatever", "whoever", "whom"];

/// The text of a line that is nothing but a comment.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.strip_prefix(['/', '!']).unwrap_or(text).trim_start())
}

/// Doc comments whose first line does not stand alone in an index.
pub fn first_lines_that_lean(text: &str) -> Vec<usize> {
    let is_doc = |line: &str| line.trim_start().starts_with("///") || line.trim_start().starts_with("//!");
    let begins = |text: &str, words: &str| {
        text.strip_prefix(words).is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()))
    };
    let leans = |line: &str| comment(line).is_some_and(|text| LEANING.iter().any(|words| begins(text, words)));
    let mut inside = false;
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if is_doc(line) && !inside && leans(line) {
            found.push(number + 1);
        }
        inside = is_doc(line);
    }
    found
}

/// How many lines of comments there are, and how many of them have a clause as a noun.
pub fn clauses_as_nouns(text: &str) -> (usize, usize) {
    let is_clause = |word: &str| CLAUSES.iter().any(|of| word.eq_ignore_ascii_case(of));
    let has_one = |text: &&&str| text.split(|c: char| !c.is_ascii_alphabetic()).any(is_clause);
    let comments: Vec<&str> = text.lines().filter_map(comment).collect();
    (comments.len(), comments.iter().filter(has_one).count())
}

/// Finds lines that compare the number of a system error with a bare number.
pub fn bare_errors(text: &str) -> Result<Vec<usize>> {
    let tokens = text.parse::<TokenStream>().map_err(|e| anyhow::anyhow!("{e}"))?;
    let mut found = Vec::new();
    look_for_errors(tokens, &mut found);
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// Examines each statement or argument that uses the number of an error.
fn look_for_errors(tokens: TokenStream, found: &mut Vec<usize>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for token in &tokens {
        if let TokenTree::Group(group) = token {
            look_for_errors(group.stream(), found);
        }
    }
    // `matches!(e.raw_os_error(), Some(5))` has a comma between the call and the number, so commas do not split.
    let end = |token: &TokenTree| matches!(token, TokenTree::Punct(p) if p.as_char() == ';');
    for statement in tokens.split(end) {
        for (at, token) in statement.iter().enumerate() {
            let asks = matches!(token, TokenTree::Ident(name) if name == "raw_os_error" || name == "os_error");
            // The definition of a function with that name does not count.
            let defines = at > 0 && matches!(&statement[at - 1], TokenTree::Ident(name) if name == "fn");
            if asks && !defines && has_bare_number(&statement[at.saturating_sub(8)..statement.len().min(at + 10)]) {
                found.push(token.span().start().line);
            }
        }
    }
}

/// Whether a number follows a comparison, or is in a `Some(…)`.
fn has_bare_number(tokens: &[TokenTree]) -> bool {
    let number = |token: Option<&TokenTree>| matches!(token, Some(TokenTree::Literal(literal)) if literal.to_string().starts_with(|c: char| c.is_ascii_digit()));
    let equals = |token: &TokenTree| matches!(token, TokenTree::Punct(p) if p.as_char() == '=');
    tokens.iter().enumerate().any(|(at, token)| match token {
        TokenTree::Punct(_) if equals(token) => number(tokens.get(at + 1)),
        TokenTree::Ident(some) if some == "Some" => match tokens.get(at + 1) {
            Some(TokenTree::Group(group)) => number(group.stream().into_iter().next().as_ref()),
            _ => false,
        },
        TokenTree::Group(group) if group.delimiter() == proc_macro2::Delimiter::Brace => {
            has_bare_number(&group.stream().into_iter().collect::<Vec<_>>())
        }
        _ => false,
    })
}

/// Finds lines that print with a macro of the standard library, which panics if the stream fails. Tests may do that.
pub fn printing(text: &str) -> Result<Vec<usize>> {
    let tokens = text.parse::<TokenStream>().map_err(|e| anyhow::anyhow!("{e}"))?;
    let mut found = Vec::new();
    look_for_printing(tokens, &mut found);
    Ok(found)
}

fn look_for_printing(tokens: TokenStream, found: &mut Vec<usize>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let is = |at: usize, text: &str| tokens.get(at).is_some_and(|token| token.to_string() == text);
    let mut at = 0;
    while at < tokens.len() {
        // Skips an item that is only for tests, up to its body or semicolon.
        let is_for_tests = |token: &TokenTree| token.to_string().replace(' ', "") == "[cfg(test)]";
        if is(at, "#") && tokens.get(at + 1).is_some_and(is_for_tests) {
            let ends = |token: &TokenTree| match token {
                TokenTree::Group(group) => group.delimiter() == proc_macro2::Delimiter::Brace,
                token => token.to_string() == ";",
            };
            at += 1 + tokens[at..].iter().position(ends).unwrap_or(tokens.len());
            continue;
        }
        match &tokens[at] {
            TokenTree::Group(group) => look_for_printing(group.stream(), found),
            TokenTree::Ident(name) if PRINTING.iter().any(|of| name == of) && is(at + 1, "!") => {
                found.push(name.span().start().line);
            }
            _ => {}
        }
        at += 1;
    }
}
