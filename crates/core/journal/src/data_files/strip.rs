//! Removes Untorn's marks from data files and their directories: attributes and creation temporaries.

use crate::data_files::locate::{creation_temporary_id, open_for_writing};
use crate::directories::data_tree::{Unreached, each_data_file};
use crate::directories::store_dir::{STORE_DIR, StoreDir};
use crate::error::{Context, Result};
use crate::format::{Attribute, AttributeFound};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use untorn_os::{Kind, Open, Storage};

/// Removes creation temporaries that are `ours` from a directory and, with `below`, from those below it. A power cut
/// leaves them when it takes away the commits of their files.
pub fn remove_temporaries(
    storage: &dyn Storage,
    dir: &Path,
    below: bool,
    ours: &dyn Fn(&Attribute) -> bool,
) -> Result<()> {
    for name in storage.list(dir).context("list", dir)? {
        let path = dir.join(&name);
        if let Some(id) = creation_temporary_id(&path) {
            let attribute = storage.open(&path, Open::READ).and_then(|file| file.attribute());
            if let Ok(value) = attribute
                && let AttributeFound::Valid(a) = Attribute::decode(value.as_deref())
                && a.file == id
                && ours(&a)
            {
                let _ = storage.unlink(&path);
            }
        } else if below
            && !name.as_encoded_bytes().ends_with(STORE_DIR.as_bytes())
            && storage.stat(&path).is_ok_and(|meta| meta.kind == Kind::Directory)
            && storage.stat(&path.join(STORE_DIR)).is_err()
        {
            // A directory that cannot be read holds nothing that could be removed.
            let _ = remove_temporaries(storage, &path, below, ours);
        }
    }
    Ok(())
}

/// Files that may keep an attribute.
#[derive(Default)]
pub struct Kept {
    /// Files whose attribute cannot be removed.
    pub marked: Vec<Marked>,
    /// Files and directories that cannot be looked at.
    pub unreached: Vec<Unreached>,
}

/// A file with an attribute that cannot be removed.
pub struct Marked {
    /// Its path in the store.
    pub path: PathBuf,
    /// The file waits for commits: without its journal it is refused.
    pub pending: bool,
    /// Why the attribute cannot be removed.
    pub error: io::Error,
}

/// Removes the attributes that are `ours` from the files of a store, or from the standalone file. An attribute that
/// remains is harmless if it is not pending.
pub fn strip_attributes(storage: &dyn Storage, store_dir: &StoreDir, ours: &dyn Fn(&Path, &Attribute) -> bool) -> Kept {
    let mut kept = Kept::default();
    let mut strip = |path: &Path| strip_attribute(storage, path, &|a| ours(path, a), &mut kept);
    let unreached = match &store_dir.standalone {
        Some(file) => {
            strip(file);
            Vec::new()
        }
        None => each_data_file(storage, &mut strip),
    };
    kept.unreached.extend(unreached);
    kept
}

/// Removes the attribute of one file if it is `ours`.
pub fn strip_attribute(storage: &dyn Storage, path: &Path, ours: &dyn Fn(&Attribute) -> bool, kept: &mut Kept) {
    let writable = open_for_writing(storage, path);
    let read = || storage.open(path, Open::READ);
    let value = writable.as_ref().map_or_else(|_| read()?.attribute(), |file| file.attribute());
    let found = match value {
        Ok(value) => Attribute::decode(value.as_deref()),
        Err(e) if e.kind() == ErrorKind::NotFound => return,
        Err(error) => return kept.unreached.push(Unreached { path: path.to_owned(), error }),
    };
    if let AttributeFound::Valid(a) = found
        && ours(&a)
        && let Err(error) = writable.and_then(|file| file.remove_attribute())
    {
        kept.marked.push(Marked { path: path.to_owned(), pending: a.pending, error });
    }
}
