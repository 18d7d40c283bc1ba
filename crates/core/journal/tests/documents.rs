//! Checks the documents against the sources: names in them exist, and quotations are exact.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Every document of the project, by its path from the root.
fn documents() -> Vec<String> {
    fn collect(dir: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(root().join(dir)).expect("a directory").map(|e| e.expect("an entry")) {
            let name = entry.file_name().into_string().expect("a name in UTF-8");
            let path = dir.join(&name);
            if entry.file_type().expect("a type").is_dir() {
                if !name.starts_with('.') && name != "target" {
                    collect(&path, found);
                }
            } else if name.ends_with(".md") {
                found.push(path.to_str().expect("a path in UTF-8").to_owned());
            }
        }
    }
    let mut found = Vec::new();
    collect(Path::new(""), &mut found);
    assert!(found.len() > 30, "{found:?}");
    found
}

/// The targets of links within a document: of its headings, as GitHub and mdBook name them, and of `<a id>`.
fn anchors(document: &str) -> BTreeSet<String> {
    let mut found: BTreeSet<String> = between(document, "<a id=\"", "\"").map(str::to_owned).collect();
    let prose: String = document.split("```").step_by(2).collect();
    for heading in prose
        .lines()
        .filter_map(|line| line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#')))
    {
        let name = heading.trim().to_lowercase();
        let kept = name.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        found.insert(kept.map(|c| if c == ' ' { '-' } else { c }).collect());
    }
    found
}

/// The texts between each opening and the next closing.
fn between<'t>(text: &'t str, open: &'t str, close: &'t str) -> impl Iterator<Item = &'t str> {
    text.split(open).skip(1).filter_map(move |rest| rest.split_once(close).map(|(inside, _)| inside))
}

/// The lines of code blocks, and the quotations in backticks outside of them.
fn code(document: &str) -> (Vec<&str>, Vec<&str>) {
    let (mut blocks, mut quoted, mut inside) = (Vec::new(), Vec::new(), false);
    for line in document.lines() {
        if line.starts_with("```") {
            inside = !inside;
        } else if inside {
            blocks.push(line);
        } else {
            quoted.extend(line.split('`').skip(1).step_by(2));
        }
    }
    (blocks, quoted)
}

/// Names of all functions of the workspace.
fn functions() -> BTreeSet<String> {
    fn collect(dir: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(dir).expect("a directory of sources").map(|e| e.expect("an entry").path()) {
            if entry.is_dir() {
                collect(&entry, found);
            } else if entry.extension().is_some_and(|e| e == "rs") {
                let source = fs::read_to_string(&entry).expect("a source");
                let names = source.split("fn ").skip(1).map(|rest| {
                    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default().to_owned()
                });
                found.extend(names);
            }
        }
    }
    let mut found = BTreeSet::new();
    for room in [
        "crates/core/os",
        "crates/core/journal",
        "crates/core/untorn",
        "crates/mount/tree",
        "crates/mount/fuse",
        "crates/bindings/c",
        "crates/lab/crashlab",
        "crates/tools/cli",
    ] {
        collect(&root().join(room).join("src"), &mut found);
    }
    found
}

#[test]
fn functions_that_are_named_exist() {
    let known = functions();
    assert!(known.len() > 300, "only {} functions found", known.len());
    let document = text("docs/ARCHITECTURE.md");
    let (diagrams, quoted) = code(&document);
    let quoted = quoted.iter().filter_map(|quoted| quoted.strip_suffix("()"));
    // The arrows of diagrams are labelled with functions.
    let words = diagrams.iter().flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'));
    let named: BTreeSet<String> = quoted.chain(words.filter(|word| word.contains('_'))).map(str::to_owned).collect();
    assert!(named.len() > 40, "only {} functions are named", named.len());
    let missing: Vec<_> = named.difference(&known).collect();
    assert!(missing.is_empty(), "no such functions: {missing:?}");
}

#[test]
fn files_that_are_named_exist() {
    for document in documents() {
        let (contents, from) = (text(&document), root().join(&document));
        let dir = from.parent().expect("a directory");
        // Code blocks are left out, because lambdas in them look like links.
        let prose: String = contents.split("```").step_by(2).collect();
        for link in between(&prose, "](", ")").filter(|link| !link.starts_with("http")) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            assert!(dir.join(path).exists(), "{document} links to {link}");
            if !anchor.is_empty() && (path.is_empty() || path.ends_with(".md")) {
                let there = if path.is_empty() {
                    contents.clone()
                } else {
                    fs::read_to_string(dir.join(path)).expect("a page")
                };
                assert!(anchors(&there).contains(anchor), "{document} links to {link}, which has no such heading");
            }
        }
        let rooms = ["crates/", "docs/", "scripts/", "examples/", "include/", "fuzz/"];
        let named = code(&contents).1.into_iter().filter_map(|quoted| quoted.split_whitespace().next());
        let named = named.filter(|quoted| rooms.iter().any(|room| quoted.starts_with(room)));
        for quoted in named {
            assert!(root().join(quoted).exists(), "{document} names {quoted}");
        }
    }
}

#[test]
fn the_readme_shows_the_examples() {
    let readme = text("README.md");
    for (example, start) in [("examples/c/hello.c", "#include"), ("crates/core/untorn/examples/hello.rs", "fn main")] {
        let source = text(example);
        let at = source.find(start).expect("the program after its comment");
        assert!(readme.contains(source[at..].trim_end()), "README.md does not show {example} as it is");
    }
}

/// The programs of the tutorial are compiled and run by a test of the C interface.
#[test]
fn the_tutorial_of_heaps_shows_its_programs() {
    let tutorial = text("docs/TUTORIAL_HEAP.md");
    for (program, end) in [("before", None), ("after", None), ("later", Some("int main"))] {
        let source = text(&format!("examples/heap/scores/{program}.cpp"));
        let shown = &source[source.find("struct player").expect("the program after its head")..];
        let shown = end.and_then(|end| shown.split_once(end)).map_or(shown, |(shown, _)| shown).trim_end();
        assert!(tutorial.contains(&format!("```\n{shown}\n```")), "the tutorial does not show {program}.cpp as it is");
    }
    let source = text("examples/heap/scores/scores.rs");
    let shown = source[source.find("use std").expect("the program after its head")..].trim_end();
    assert!(tutorial.contains(&format!("```rust\n{shown}\n```")), "the tutorial does not show scores.rs as it is");
}

#[test]
fn every_kind_of_error_has_its_row() {
    let rows = text("docs/ERRORS.md");
    let rows: Vec<&str> = rows.lines().filter(|line| line.starts_with("| `")).collect();
    let source = text("crates/core/journal/src/error.rs");
    let body = between(&source, "pub fn kind(&self)", "\n    }\n").next().expect("the function");
    let kinds: Vec<&str> = between(body, "=> \"", "\"").collect();
    assert!(kinds.len() > 10, "only {} kinds found", kinds.len());
    for kind in &kinds {
        assert!(rows.iter().any(|row| row.starts_with(&format!("| `{kind}` |"))), "no row for {kind}");
    }
    assert_eq!(rows.len(), kinds.len(), "rows for kinds that do not exist");
}

#[test]
fn every_error_of_the_header_is_told_with_its_errno() {
    let document = text("docs/ERRORS.md");
    let header = text("include/untorn.h");
    let list = between(&header, "typedef enum untorn_error {", "} untorn_error;").next().expect("the list");
    let mut entries = 0;
    for (comment, rest) in list.split("/**").skip(1).filter_map(|entry| entry.split_once("*/")) {
        let name = rest.trim().split(' ').next().expect("a name");
        let line = document.lines().find(|line| line.contains(&format!("`{name}`")));
        let line = line.unwrap_or_else(|| panic!("{name} is not in ERRORS.md"));
        let errno = comment.split("errno E").nth(1).and_then(|rest| rest.split(|c: char| !c.is_alphanumeric()).next());
        if let Some(errno) = errno {
            assert!(line.contains(&format!("E{errno}")), "{name}: E{errno}");
        }
        entries += 1;
    }
    assert!(entries > 15, "only {entries} errors in the header");
}
