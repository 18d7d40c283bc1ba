//! Checks the documents against the sources: names in them exist, and quotations are exact.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const DOCUMENTS: [&str; 28] = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/ARCHITECTURE.md",
    "docs/COMMANDS.md",
    "docs/CRASHTEST.md",
    "docs/ERRORS.md",
    "docs/FORMAT.md",
    "docs/GLOSSARY.md",
    "docs/GUARANTEES.md",
    "docs/HEAP.md",
    "docs/LIVE_HEAPS.md",
    "docs/LOGS.md",
    "docs/MAPPINGS.md",
    "docs/MOUNT.md",
    "docs/PERFORMANCE.md",
    "docs/PORTING.md",
    "docs/PYTHON.md",
    "docs/README.md",
    "docs/SHIP.md",
    "docs/TESTING.md",
    "docs/TUTORIAL_HEAP.md",
    "docs/TUTORIAL_MMAP.md",
    "docs/TUTORIAL_NUMPY.md",
    "docs/XSYNC.md",
    "docs/design/TRIED.md",
    "examples/ports/README.md",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
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
    for document in DOCUMENTS {
        let (contents, from) = (text(document), root().join(document));
        let dir = from.parent().expect("a directory");
        // Code blocks are left out, because lambdas in them look like links.
        let prose: String = contents.split("```").step_by(2).collect();
        for link in between(&prose, "](", ")").filter(|link| !link.starts_with("http")) {
            let path = link.split('#').next().unwrap_or_default();
            assert!(dir.join(path).exists(), "{document} links to {link}");
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
