//! Live memory whose heap's file is not where it was: it was moved, or removed, and then the memory is of no use to anybody.
//! Only people know which: the kernel calls a file removed that it cannot read.

use crate::heap::log::live_head::{Place, Whose};
use std::path::{Path, PathBuf};

/// What became of a heap's file.
pub(crate) enum Fate {
    /// It is there.
    At(Place),
    /// The kernel says so.
    Removed,
    /// It was moved to where it was not looked for.
    Elsewhere,
    /// Either, or its file system is not mounted.
    Unknown,
}

impl Fate {
    /// Whether the file exists, if that can be told.
    pub(crate) fn exists(&self) -> Option<bool> {
        match self {
            Fate::At(_) | Fate::Elsewhere => Some(true),
            Fate::Removed => Some(false),
            Fate::Unknown => None,
        }
    }
}

/// Looks for a heap's file: where it was, in the directory where it was, in its store. Whether it was removed can often be
/// told by root alone.
pub(crate) fn fate(whose: &Whose) -> Fate {
    let Place { store, name } = &whose.place;
    let path = whose.place.path();
    if whose.is_at(&path) {
        return Fate::At(whose.place.clone());
    }
    let found = match name {
        None => store.parent().and_then(|dir| find(whose, dir, false)).map(|store| Place { store, name: None }),
        Some(_) => find(whose, store, true).and_then(|path| {
            let name = path.strip_prefix(store).ok()?.to_owned();
            Some(Place { store: store.clone(), name: Some(name) })
        }),
    };
    if let Some(place) = found {
        return Fate::At(place);
    }
    match whose.handle.is_removed(&path) {
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
