//! Live memory whose heap's file is not where it was: it was moved, or removed, and then the memory is of no use to anybody.

use super::live_head::Whose;
use std::path::{Path, PathBuf};
use untorn_os::FoundMemory;

/// What became of a heap's file.
pub(super) enum Fate {
    /// It has this path, and in a store this name.
    At(PathBuf, Option<PathBuf>),
    Removed,
    /// It was moved to where it was not looked for, or its file system is not mounted.
    Elsewhere,
    /// Either.
    Unknown,
}

/// Looks for a heap's file: where it was, in the directory where it was, in its store. Whether it was removed can often be
/// told by root alone.
pub(super) fn fate(whose: &Whose) -> Fate {
    if whose.is_at(&whose.path()) {
        return Fate::At(whose.store.clone(), whose.name.clone());
    }
    let found = match &whose.name {
        None => whose.store.parent().and_then(|dir| find(whose, dir, false)).map(|path| (path, None)),
        Some(_) => find(whose, &whose.store, true).and_then(|path| {
            let name = path.strip_prefix(&whose.store).ok()?.to_owned();
            Some((whose.store.clone(), Some(name)))
        }),
    };
    if let Some((store, name)) = found {
        return Fate::At(store, name);
    }
    match whose.handle.is_removed(&whose.path()) {
        Some(true) => Fate::Removed,
        Some(false) => Fate::Elsewhere,
        None => Fate::Unknown,
    }
}

/// The file in a directory, or in those below, too.
fn find(whose: &Whose, dir: &Path, below: bool) -> Option<PathBuf> {
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && below => dirs.push(path),
                Ok(kind) if kind.is_file() && whose.is_at(&path) => return Some(path),
                _ => {}
            }
        }
    }
    None
}

/// Removes a memory whose heap's file was removed for certain, unless a program has it. Where the file was, and the bytes that
/// the memory took. It may be another user's: nothing is searched where that user says.
pub(crate) fn remove(memory: &Path) -> Option<(PathBuf, u64)> {
    let found = FoundMemory::open(memory).ok()?;
    let whose = Whose::read(&found).ok().flatten()?;
    let path = whose.path();
    let is_removed = !whose.is_at(&path) && whose.handle.is_removed(&path) == Some(true);
    let bytes = found.bytes().ok()?;
    (is_removed && found.remove_unused().ok()?).then_some((path, bytes))
}

/// [`remove`] for each memory in a user's directory.
pub(super) fn remove_all(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if let Some((heap, bytes)) = remove(&entry.path()) {
            tracing::info!(heap = %heap.display(), bytes, "the live memory of a heap was removed, as its file was removed");
        }
    }
}
