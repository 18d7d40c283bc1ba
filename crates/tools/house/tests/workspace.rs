//! The workspace keeps the rules of the house.

use std::path::{Path, PathBuf};
use untorn_house::{arrows, events, imports, violations};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().expect("the workspace")
}

#[track_caller]
fn none(found: anyhow::Result<Vec<String>>) {
    let found = found.expect("the sources can be read");
    assert!(found.is_empty(), "{} violations:\n{}", found.len(), found.join("\n"));
}

#[test]
fn modules_form_no_circle() {
    none(violations::circles(&workspace()));
}

#[test]
fn crates_depend_on_those_below_and_are_drawn() {
    none(violations::crates(&workspace()));
}

#[test]
fn folders_import_those_below() {
    none(violations::between_folders(&workspace()));
}

#[test]
fn first_lines_of_doc_comments_stand_alone() {
    none(violations::wording(&workspace()));
}

#[test]
fn comments_use_nouns() {
    none(violations::clauses(&workspace()));
}

#[test]
fn errors_of_the_system_are_compared_by_name() {
    none(violations::errors(&workspace()));
}

#[test]
fn programs_print_where_nothing_panics() {
    none(violations::printing(&workspace()));
}

#[test]
fn source_files_are_short() {
    none(violations::long_files(&workspace()));
}

#[test]
fn events_of_the_log_have_ids_and_are_listed() {
    let found = events::events(&workspace()).expect("the sources can be read");
    assert!(found.len() > 60, "only {} events found", found.len());
    none(events::violations(&workspace()));
}

/// A checker that sees nothing finds nothing, so it must find the workspace's imports.
#[test]
fn the_checker_sees_the_sources() {
    let packages = arrows::packages(&workspace()).expect("packages");
    let library = packages.iter().find(|package| package.name == "untorn").expect("the library");
    assert_eq!(library.roots.len(), 1, "{library:?}");
    let found = imports::imports_of(&library.roots[0]).expect("imports");
    assert!(found.files.len() > 20, "{} files", found.files.len());
    assert!(found.edges.len() > 40, "{} imports", found.edges.len());
}
