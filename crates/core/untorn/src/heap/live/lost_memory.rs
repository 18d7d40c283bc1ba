//! Finds live memory whose heap's file is not at its old place: the file was moved, or it was removed and nobody needs
//! the memory. Only a person can tell which, because the kernel also calls a file removed if it cannot read it.

use crate::heap::log::live_head::{Place, Whose};
use std::path::{Path, PathBuf};

/// The fate of a heap's file.
pub(crate) enum Fate {
    /// The file is at this place.
    At(Place),
    /// The kernel says that the file was removed.
    Removed,
    /// The file exists, at a place where it was not looked for.
    Elsewhere,
    /// Moved or removed, or its file system is not mounted.
    Unknown,
}

impl Fate {
    /// Whether the file exists, if that is known.
    pub(crate) fn exists(&self) -> Option<bool> {
        match self {
            Fate::At(_) | Fate::Elsewhere => Some(true),
            Fate::Removed => Some(false),
            Fate::Unknown => None,
        }
    }
}

/// Looks for a heap's file at its old path, in its old directory, and in its store. Often only root can find out
/// whether it was removed.
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
    match whose.is_removed(&path) {
        Some(true) => Fate::Removed,
        Some(false) => Fate::Elsewhere,
        None => Fate::Unknown,
    }
}

/// Looks for the file in a directory, and below it if `below` is set.
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
