//! The program: `cargo run -p untorn-house -- graph [--calls] | check | published | api [--write] | logs --write`.

use anyhow::{Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use untorn_house::{arrows, events, folders, imports, listing, modules, violations};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let workspace = workspace()?;
    match arguments[..] {
        ["graph"] => graph(&workspace, false),
        ["graph", "--calls"] => graph(&workspace, true),
        ["check"] => check(&workspace),
        ["published"] => published(&workspace),
        ["api"] => api(&workspace, false),
        ["api", "--write"] => api(&workspace, true),
        ["logs", "--write"] => logs(&workspace),
        _ => bail!("usage: untorn-house graph [--calls] | check | published | api [--write] | logs --write"),
    }
}

fn workspace() -> Result<PathBuf> {
    Ok(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize()?)
}

/// Prints the imports. With `calls`, also calls of methods in another file than their type.
fn graph(workspace: &Path, calls: bool) -> Result<()> {
    let packages = arrows::packages(workspace)?;
    print!("crates\n{}", arrows::listing(&packages));
    for package in &packages {
        for root in &package.roots {
            let source = modules::Crate::read(root)?;
            let mut found = imports::Imports::of(&source);
            if calls {
                found.add_calls(&source);
            }
            let dir = root.parent().and_then(|dir| dir.strip_prefix(workspace).ok()).unwrap_or(root);
            print!("\n{} ({})\n{}", package.name, dir.display(), found.listing());
            found.circles().iter().for_each(|circle| print!("  CIRCLE: {circle}"));
            print!("{}", folders::listing(&source, &found));
        }
    }
    Ok(())
}

/// Prints all violations of the rules.
fn check(workspace: &Path) -> Result<()> {
    let found = violations::all(workspace)?;
    found.iter().for_each(|violation| println!("{violation}"));
    if !found.is_empty() {
        bail!("{} violations", found.len());
    }
    Ok(())
}

/// Prints the crates that may be published, as arguments for `cargo package`.
fn published(workspace: &Path) -> Result<()> {
    let packages = arrows::packages(workspace)?;
    packages.iter().filter(|package| package.published).for_each(|package| println!("--package {}", package.name));
    Ok(())
}

/// Compares the public API with the list in the repository, or writes the list.
fn api(workspace: &Path, write: bool) -> Result<()> {
    let place = workspace.join(listing::PLACE);
    let now = match listing::make(workspace)? {
        listing::Listing::Made(now) => now,
        listing::Listing::Skipped(why) => {
            println!("skipped: the public API is not compared: {why}");
            return Ok(());
        }
    };
    if write {
        fs::create_dir_all(place.parent().unwrap_or(workspace))?;
        fs::write(place, now)?;
        return Ok(());
    }
    let before = fs::read_to_string(place).unwrap_or_default();
    if before != now {
        listing::differences(&before, &now).iter().for_each(|line| println!("{line}"));
        bail!("{} is not the API of this source; if that is meant: {}", listing::PLACE, listing::COMMAND);
    }
    Ok(())
}

/// Writes the list of the log's events anew. Their meanings are written by hand.
fn logs(workspace: &Path) -> Result<()> {
    let place = workspace.join(events::PLACE);
    let listed = events::list(&fs::read_to_string(&place)?, &events::events(workspace)?)?;
    fs::write(place, listed.text)?;
    listed.untold.iter().for_each(|id| println!("to be written by hand: what {id} means, and what to do"));
    Ok(())
}
