//! Walks the data files of a store that is a directory.

use crate::directories::store_dir::STORE_DIR;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use untorn_os::{Kind, Storage};

/// A directory or file that cannot be looked at.
pub struct Unreached {
    /// Its path in the store.
    pub path: PathBuf,
    /// Why it cannot be looked at.
    pub error: io::Error,
}

/// Calls `visit` for each file below a store's directory, except files that belong to another store: a standalone
/// file's own one, or that of a directory in between. Returns the directories and files that it cannot reach.
pub fn each_data_file(storage: &dyn Storage, visit: &mut dyn FnMut(&Path)) -> Vec<Unreached> {
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
            if name.as_bytes().ends_with(STORE_DIR.as_bytes()) || with_store.contains(&name) {
                continue;
            }
            let path = dir.join(name);
            match storage.stat(&path).map(|meta| meta.kind) {
                Ok(Kind::Directory) => dirs.push(path),
                Ok(Kind::File) => visit(&path),
                Ok(_) => {}
                Err(e) => cannot_reach(path, e),
            }
        }
    }
    unreached
}
