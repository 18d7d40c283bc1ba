//! Applies all rules to the workspace, for `untorn-house check`.

use crate::{arrows, events, folders, habits, imports, modules, sizes};
use anyhow::Result;
use std::fs;
use std::path::Path;

/// All violations of the rules.
pub fn all(workspace: &Path) -> Result<Vec<String>> {
    Ok([
        circles(workspace)?,
        between_folders(workspace)?,
        crates(workspace)?,
        wording(workspace)?,
        errors(workspace)?,
        printing(workspace)?,
        long_files(workspace)?,
        events::violations(workspace)?,
    ]
    .concat())
}

/// The circles of imports between the files of a crate.
pub fn circles(workspace: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for package in arrows::packages(workspace)? {
        for root in &package.roots {
            let circles = imports::imports_of(root)?.circles();
            found.extend(circles.into_iter().map(|circle| format!("{}: {circle}", package.name)));
        }
    }
    Ok(found)
}

/// The circles of imports between the folders of a crate, and imports that point up.
pub fn between_folders(workspace: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for package in arrows::packages(workspace)? {
        for root in &package.roots {
            let source = modules::Crate::read(root)?;
            let imports = imports::Imports::of(&source);
            let src = root.parent().unwrap_or(root);
            let dir = src.strip_prefix(workspace).unwrap_or(src).display().to_string();
            let wrong = folders::wrong(&source, &imports, &dir, folders::FLOORS);
            found.extend(wrong.into_iter().map(|wrong| format!("{}: {wrong}", package.name)));
        }
    }
    Ok(found)
}

/// Dependencies between crates that point up, and crates that the drawing leaves out.
pub fn crates(workspace: &Path) -> Result<Vec<String>> {
    let packages = arrows::packages(workspace)?;
    let document = fs::read_to_string(workspace.join("docs/ARCHITECTURE.md"))?;
    let not_drawn = arrows::not_drawn(&document, workspace, &packages).into_iter();
    let not_drawn = not_drawn.map(|name| format!("the drawing in docs/ARCHITECTURE.md does not name {name}"));
    Ok(arrows::wrong_arrows(&packages).into_iter().chain(not_drawn).collect())
}

/// Doc comments whose first line does not stand alone.
pub fn wording(workspace: &Path) -> Result<Vec<String>> {
    let rule = "a doc comment begins with \"The same\", \"What\", \"Whoever\", \"Of what\" or \"As\"";
    in_each_file(workspace, rule, |text| Ok(habits::first_lines_that_lean(text)))
}

/// Lines of comments with a clause as a noun, of 1,000, that a crate may have.
const CLAUSES_MAX: usize = 10;

/// Crates whose comments use clauses as nouns.
pub fn clauses(workspace: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for package in arrows::packages(workspace)? {
        let (mut lines, mut clauses) = (0, 0);
        for file in habits::rust_files(&package.dir)? {
            let (of, with) = habits::clauses_as_nouns(&fs::read_to_string(file)?);
            (lines, clauses) = (lines + of, clauses + with);
        }
        if clauses * 1000 > lines * CLAUSES_MAX {
            let name = &package.name;
            found
                .push(format!("{name}: {clauses} of {lines} lines of comments have \"what\" or \"whoever\" as a noun"));
        }
    }
    Ok(found)
}

/// Errors of the system that are compared with bare numbers.
pub fn errors(workspace: &Path) -> Result<Vec<String>> {
    in_each_file(workspace, "an error is compared with a bare number", habits::bare_errors)
}

/// Programs that print without `untorn_terminal::standard_streams`.
pub fn printing(workspace: &Path) -> Result<Vec<String>> {
    const STREAMS: &str = "untorn-terminal";
    let what = "programs print by `tell!` and `say!` of untorn-terminal, which do not panic";
    let mut found = Vec::new();
    for package in arrows::packages(workspace)? {
        if package.name == STREAMS || package.dependencies.iter().any(|of| of == STREAMS) {
            found.extend(in_files(&package.dir.join("src"), workspace, what, habits::printing)?);
        }
    }
    Ok(found)
}

/// Source files with too many lines.
pub fn long_files(workspace: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for path in habits::rust_files(workspace)? {
        let shown = path.strip_prefix(workspace).unwrap_or(&path);
        found.extend(sizes::wrong(shown, &fs::read_to_string(&path)?)?);
    }
    Ok(found)
}

fn in_each_file(workspace: &Path, what: &str, look: impl Fn(&str) -> Result<Vec<usize>>) -> Result<Vec<String>> {
    in_files(workspace, workspace, what, look)
}

/// Examines each file below a directory.
fn in_files(
    dir: &Path,
    workspace: &Path,
    what: &str,
    look: impl Fn(&str) -> Result<Vec<usize>>,
) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for path in habits::rust_files(dir)? {
        let lines = look(&fs::read_to_string(&path)?)?.into_iter();
        let shown = path.strip_prefix(workspace).unwrap_or(&path).display();
        found.extend(lines.map(|line| format!("{shown}:{line}: {what}")));
    }
    Ok(found)
}
