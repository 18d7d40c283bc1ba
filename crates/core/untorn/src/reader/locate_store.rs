//! Finds a store by its path: of a directory, or beside a standalone file.

use crate::reader::lost::{lost_files, place};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use untorn_journal::directories::store_dir::StoreDir;
use untorn_journal::{Context, Error, Result};
use untorn_os::{Linux, Storage};

/// The store of a path: its storage, and Untorn's directory in it.
pub(crate) fn locate(path: &Path) -> Result<(Arc<Linux>, StoreDir)> {
    let (storage, store_dir) = place(path)?;
    match storage.stat(&store_dir.dir) {
        Ok(_) => Ok((storage, store_dir)),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            std::fs::metadata(path).context("look at", path)?;
            match lost_files(path).unwrap_or_default().first() {
                Some(lost) => Err(Error::NeedsJournal {
                    path: path.to_owned(),
                    detail: format!(
                        "there is no `{}`, and {} waits for commits in the journal of store {}",
                        store_dir.dir.display(),
                        lost.path.display(),
                        lost.store_id
                    ),
                }),
                None => Err(no_store(path, e)),
            }
        }
        Err(e) => Err(no_store(path, e)),
    }
}

/// Whether there is a store at this path, without the search of `locate` for files whose store is lost.
pub fn is_store_there(path: &Path) -> Result<bool> {
    let there = place(path).and_then(|(storage, store_dir)| storage.stat(&store_dir.dir).context("look for", path));
    match there {
        Ok(_) => Ok(true),
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

fn no_store(path: &Path, e: std::io::Error) -> Error {
    Error::io("find a store (of a directory, or beside a standalone file) at", path, e)
}
