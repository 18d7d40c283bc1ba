//! Describes in words how files differ from the states that the model allows.

use crate::programs::fixture::plain_files;
use crate::programs::reference_model::{Files, Model, Node, numbers};
use crate::simulation::SimDisk;
use std::path::Path;
use untorn::{Error, FileOptions, Store};

/// Every file as the store shows it: names are those on the disk, contents may still be in the journal.
pub(crate) fn shown_files(store: &Store, disk: &SimDisk) -> Result<Files, String> {
    shown_files_of(store, disk, |_| true)
}

/// Like [`shown_files`], for the files of these names.
pub(crate) fn shown_files_of(store: &Store, disk: &SimDisk, is_meant: impl Fn(&Path) -> bool) -> Result<Files, String> {
    let mut files = plain_files(disk);
    files.retain(|name, _| is_meant(name));
    for (name, node) in &mut files {
        if let Node::File(contents, _) = node
            && !name.to_string_lossy().ends_with(".untorn")
        {
            *contents = read_shown(store, name)?;
        }
    }
    Ok(files)
}

fn read_shown(store: &Store, name: &Path) -> Result<Vec<u8>, String> {
    let text = |e: Error| format!("{} cannot be read through the store: {e}", name.display());
    let file = FileOptions::new().read_only(true).open_in(store, name).map_err(text)?;
    let mut found = vec![0; file.len().map_err(text)? as usize];
    let n = file.read_at(&mut found, 0).map_err(text)?;
    if n == found.len() { Ok(found) } else { Err(format!("{} ends early", name.display())) }
}

/// Reads every file through the store.
pub(crate) fn compare_views(store: &Store, files: &Files) -> Result<(), String> {
    for (name, node) in files {
        let Node::File(contents, _) = node else { continue };
        // A power cut in class `process` may leave a creation temporary. In other cases nothing may be left, which a
        // comparison of the files themselves finds.
        if name.to_string_lossy().ends_with(".untorn") {
            continue;
        }
        let found = read_shown(store, name)?;
        if found != *contents {
            return Err(format!("{} through the store: {}", name.display(), difference(contents, &found)));
        }
    }
    Ok(())
}

pub(crate) fn difference(expected: &[u8], found: &[u8]) -> String {
    let at = expected.iter().zip(found).position(|(a, b)| a != b);
    let at = at.unwrap_or(expected.len().min(found.len()));
    let byte = |bytes: &[u8]| bytes.get(at).map_or("the end".to_owned(), |b| format!("{b:#04x}"));
    format!(
        "{} bytes where {} are expected; first difference at {at}: {} instead of {}",
        found.len(),
        expected.len(),
        byte(found),
        byte(expected)
    )
}

/// Describes how a state differs from each allowed one.
pub(crate) fn mixture(reference: &Model, allowed: u64, found: &Files) -> String {
    let mut text = String::from("the files hold no state that is allowed");
    for number in numbers(allowed) {
        let expected = reference.state(number);
        text += &format!("\n    not the one after commit {number}:");
        let mut names: Vec<_> = expected.keys().chain(found.keys()).collect();
        names.sort();
        names.dedup();
        for name in names {
            let how = match (expected.get(name), found.get(name)) {
                (a, b) if a == b => continue,
                (Some(Node::File(a, m)), Some(Node::File(b, n))) if a == b => format!("mode {n:o} instead of {m:o}"),
                (Some(Node::File(a, _)), Some(Node::File(b, _))) => difference(a, b),
                (None, Some(_)) => "is there and must not be".to_owned(),
                (Some(_), None) => "is missing".to_owned(),
                _ => "is something else, or has another mode".to_owned(),
            };
            text += &format!("\n        {}: {how}", name.display());
        }
    }
    text
}
