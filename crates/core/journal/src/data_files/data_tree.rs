//! Walks the files of a store: the data files, and the creation temporaries that a crash left.

use crate::data_files::locate::creation_temporary_id;
use crate::directories::store_dir::{STORE_DIR, StoreDir};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use untorn_os::{Kind, Storage};

/// A file of a store, by its path in the store.
#[derive(Clone, Copy, Debug)]
pub enum TreeFile<'p> {
    /// A data file.
    Data(&'p Path),
    /// A file under the name that it has until its creation is complete.
    CreationTemporary(&'p Path),
}

impl<'p> TreeFile<'p> {
    /// Its path in the store.
    pub fn path(self) -> &'p Path {
        match self {
            TreeFile::Data(path) | TreeFile::CreationTemporary(path) => path,
        }
    }
}

/// A directory or file that cannot be looked at.
pub struct Unreached {
    /// Its path in the store; empty for the store's directory.
    pub path: PathBuf,
    /// Why it cannot be looked at.
    pub error: io::Error,
}

/// Calls `visit` for each data file of a store, except files that belong to another store: a standalone file's own one,
/// or that of a directory in between. Returns the directories and files that it cannot reach.
pub fn each_data_file(storage: &dyn Storage, store_dir: &StoreDir, visit: &mut dyn FnMut(&Path)) -> Vec<Unreached> {
    match &store_dir.standalone {
        Some(file) => {
            visit(file);
            Vec::new()
        }
        None => walk(storage, true, &mut |file| {
            if let TreeFile::Data(path) = file {
                visit(path);
            }
        }),
    }
}

/// Calls `visit` like [`each_data_file`], and for each creation temporary beside the data files, of whichever store.
pub fn each_file(storage: &dyn Storage, store_dir: &StoreDir, visit: &mut dyn FnMut(TreeFile<'_>)) -> Vec<Unreached> {
    match &store_dir.standalone {
        Some(file) => {
            visit(TreeFile::Data(file));
            walk(storage, false, &mut |file| {
                if let TreeFile::CreationTemporary(_) = file {
                    visit(file);
                }
            })
        }
        None => walk(storage, true, visit),
    }
}

/// Visits the files of the store's directory and, with `below`, of all directories below it.
fn walk(storage: &dyn Storage, below: bool, visit: &mut dyn FnMut(TreeFile<'_>)) -> Vec<Unreached> {
    let (mut dirs, mut unreached) = (vec![PathBuf::new()], Vec::new());
    let mut cannot_reach = |path: PathBuf, error: io::Error| match error.kind() {
        // Removed meanwhile, on another file system, or with a path that no file of a store can have.
        ErrorKind::NotFound | ErrorKind::CrossesDevices | ErrorKind::InvalidFilename => {}
        _ => unreached.push(Unreached { path, error }),
    };
    while let Some(dir) = dirs.pop() {
        let names = match storage.list(&dir) {
            Ok(names) => names,
            Err(e) => {
                cannot_reach(dir, e);
                continue;
            }
        };
        let store_of =
            |name: &OsString| Some(OsString::from_vec(name.as_bytes().strip_suffix(STORE_DIR.as_bytes())?.into()));
        let with_store: HashSet<OsString> = names.iter().filter_map(store_of).collect();
        let is_another_store = with_store.contains(OsStr::new("")) && dir != Path::new("");
        if is_another_store {
            continue;
        }
        for name in names {
            let path = dir.join(&name);
            if creation_temporary_id(&path).is_some() {
                visit(TreeFile::CreationTemporary(&path));
                continue;
            }
            if name.as_bytes().ends_with(STORE_DIR.as_bytes()) || with_store.contains(&name) {
                continue;
            }
            match storage.stat(&path).map(|meta| meta.kind) {
                Ok(Kind::Directory) if below => dirs.push(path),
                Ok(Kind::File) => visit(TreeFile::Data(&path)),
                Ok(_) => {}
                Err(e) => cannot_reach(path, e),
            }
        }
    }
    unreached
}
