//! Removes Untorn's marks from data files and their directories: attributes and creation temporaries.

use crate::data_files::data_tree::{TreeFile, Unreached, each_file};
use crate::data_files::locate::{creation_temporary_id, open_for_writing};
use crate::directories::store_dir::StoreDir;
use crate::format::{Attribute, AttributeFound};
use std::io::{self, ErrorKind};
use std::path::Path;
use untorn_os::{Open, Storage};

/// Removes, of the files of a store, the attributes and the creation temporaries that are `ours`. Returns the
/// directories and files that may keep an attribute, which is harmless if it is not pending.
pub fn detach(
    storage: &dyn Storage,
    store_dir: &StoreDir,
    ours: &mut dyn FnMut(TreeFile<'_>, &Attribute) -> bool,
) -> Vec<Unreached> {
    let mut kept = Vec::new();
    let unreached = each_file(storage, store_dir, &mut |file| match file {
        TreeFile::Data(path) => {
            if let Err(error) = detach_file(storage, path, &mut |a| ours(file, a)) {
                kept.push(Unreached { path: path.to_owned(), error });
            }
        }
        TreeFile::CreationTemporary(path) => remove_temporary(storage, path, &mut |a| ours(file, a)),
    });
    kept.extend(unreached);
    kept
}

/// Removes the attribute of one file if it is `ours`.
///
/// # Errors
/// It may have one, which could not be read or removed.
pub fn detach_file(storage: &dyn Storage, path: &Path, ours: &mut dyn FnMut(&Attribute) -> bool) -> io::Result<()> {
    let writable = open_for_writing(storage, path);
    let read = || storage.open(path, Open::READ);
    let value = match writable.as_ref().map_or_else(|_| read()?.attribute(), |file| file.attribute()) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        value => value?,
    };
    match Attribute::decode(value.as_deref()) {
        AttributeFound::Valid(a) if ours(&a) => writable?.remove_attribute(),
        _ => Ok(()),
    }
}

/// Removes a creation temporary if it is `ours` by the identity in its name and by the one in its attribute. A power
/// cut leaves it when it takes away the commit of its file. The two differ if the file had its final name and was
/// marked again there, and only the rename is lost.
pub fn remove_temporary(storage: &dyn Storage, path: &Path, ours: &mut dyn FnMut(&Attribute) -> bool) {
    let value = storage.open(path, Open::READ).and_then(|file| file.attribute());
    if let Ok(value) = value
        && let AttributeFound::Valid(a) = Attribute::decode(value.as_deref())
        && let Some(file) = creation_temporary_id(path)
        && ours(&a)
        && ours(&Attribute { file, ..a })
    {
        let _ = storage.unlink(path);
    }
}
