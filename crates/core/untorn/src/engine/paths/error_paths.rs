//! Paths in messages, and directories in which no store may be.

use std::path::{Path, PathBuf};
use untorn_journal::{Context, Error, Result};

/// Adds the store's path to an error about a path inside the store.
pub(crate) fn error_in_store(e: Error, store: &Path) -> Error {
    let inside = |path: PathBuf| if store.as_os_str().is_empty() { path } else { join(store, &path) };
    match e {
        Error::Busy { path, pid, detail } => Error::Busy { path: inside(path), pid, detail },
        Error::Corrupt { path, detail, advice } => Error::Corrupt { path: inside(path), detail, advice },
        Error::Foreign { path, detail } => Error::Foreign { path: inside(path), detail },
        Error::Untrusted { path, detail } => Error::Untrusted { path: inside(path), detail },
        Error::UnknownState { path } => Error::UnknownState { path: inside(path) },
        Error::NewerVersion { path, found, supported } => Error::NewerVersion { path: inside(path), found, supported },
        Error::Conflict { path, detail } => Error::Conflict { path: inside(path), detail },
        Error::NeedsJournal { path, detail } => Error::NeedsJournal { path: inside(path), detail },
        Error::SnapshotExpired { path, lsn } => Error::SnapshotExpired { path: inside(path), lsn },
        Error::SnapshotEnded { path, lsn } => Error::SnapshotEnded { path: inside(path), lsn },
        Error::FileNotKept { path, lsn } => Error::FileNotKept { path: inside(path), lsn },
        Error::Io { action, path, source } => Error::Io { action, path: inside(path), source },
        other => other,
    }
}

/// Joins the store's path and a path inside it. The path of a standalone store names its file, and Untorn's files are
/// beside that file.
fn join(store: &Path, inside: &Path) -> PathBuf {
    if store.is_dir() { store.join(inside) } else { store.parent().unwrap_or(Path::new("")).join(inside) }
}

/// Checks that a directory is not inside one of Untorn's own, which hold no data.
pub(crate) fn check_outside(dir: &Path) -> Result<()> {
    let whole = std::fs::canonicalize(if dir.as_os_str().is_empty() { Path::new(".") } else { dir });
    let whole = whole.context("open", dir)?;
    match whole.iter().find(|part| part.as_encoded_bytes().ends_with(b".untorn")) {
        Some(_) => Err(Error::invalid(format!("{} is inside a directory of Untorn's own", dir.display()))),
        None => Ok(()),
    }
}
