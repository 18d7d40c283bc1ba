//! The data files of a store that is a directory.

use crate::store_dir::STORE_DIR;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use untorn_os::{Kind, Storage};

/// Calls `visit` for each file below a store's directory that has no other store: one of its own, or one of a directory
/// between. What cannot be looked into is left out.
pub fn each_data_file(storage: &dyn Storage, visit: &mut dyn FnMut(&Path)) {
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        let Ok(names) = storage.list(&dir) else { continue };
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
                _ => {}
            }
        }
    }
}
