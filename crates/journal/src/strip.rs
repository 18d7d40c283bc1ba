//! Takes away from data files and their directories what marks them as a store's: attributes, creation temporaries.

use crate::error::{Context, Error, Result};
use crate::format::{Attribute, AttributeFound};
use crate::locate::{creation_temporary_id, open_for_writing};
use crate::store_dir::{STORE_DIR, StoreDir};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use untorn_os::{Kind, Open, Storage};

/// Removes creation temporaries that are `ours` from a directory and, with `below`, from those below: what a power cut
/// left of files whose commits it took away.
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
            // A directory that cannot be looked into holds nothing that could be removed.
            let _ = remove_temporaries(storage, &path, below, ours);
        }
    }
    Ok(())
}

/// Removes those attributes that are `ours` from the files of a directory and of those below, except
/// those of files that have another store: one of their own, or one of a directory between. Returns the directories
/// that nobody may look into, and whose files keep theirs.
pub fn strip_attributes(storage: &dyn Storage, dir: &Path, ours: &dyn Fn(&Attribute) -> bool) -> Result<Vec<PathBuf>> {
    let mut closed = Vec::new();
    let names: BTreeSet<OsString> = storage.list(dir).context("list", dir)?.into_iter().collect();
    if dir != Path::new("") && names.contains(OsStr::new(STORE_DIR)) {
        return Ok(closed);
    }
    for name in &names {
        let path = dir.join(name);
        // Store directories hold no data files.
        if name.as_encoded_bytes().ends_with(STORE_DIR.as_bytes())
            || names.contains(StoreDir::of_file(Path::new(name)).dir.as_os_str())
        {
            continue;
        }
        match storage.stat(&path).map(|m| m.kind) {
            Ok(Kind::Directory) => match strip_attributes(storage, &path, ours) {
                // A directory on another file system holds nothing of this store.
                Err(Error::Io { source, .. }) if source.kind() == ErrorKind::CrossesDevices => {}
                Err(Error::Io { source, .. }) if source.kind() == ErrorKind::PermissionDenied => closed.push(path),
                done => closed.append(&mut done?),
            },
            Ok(Kind::File) => strip_attribute(storage, &path, ours),
            _ => {}
        }
    }
    Ok(closed)
}

/// Removes the attribute of one file if it is `ours`. An attribute that stays is harmless when it is not pending.
pub fn strip_attribute(storage: &dyn Storage, path: &Path, ours: &dyn Fn(&Attribute) -> bool) {
    if let Ok(file) = open_for_writing(storage, path)
        && let Ok(value) = file.attribute()
        && let AttributeFound::Valid(a) = Attribute::decode(value.as_deref())
        && ours(&a)
    {
        let _ = file.remove_attribute();
    }
}
