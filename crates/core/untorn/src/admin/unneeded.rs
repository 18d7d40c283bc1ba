//! Removes stores: one that is ejected, and that of a standalone file whose name is gone.

use crate::admin::inspection::inspect_on;
use crate::engine::paths::error_paths::error_in_store;
use crate::heap::live;
use crate::sync_point;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use untorn_journal::directories::store_dir::{StoreDir, is_own_name, lock_store, remove_tree};
use untorn_journal::undo::keep::Undo;
use untorn_journal::{Context, Result};
use untorn_os::{Linux, Storage};

/// The store of a standalone file by the file's path, whether or not the file exists. `None` if it has no store.
pub(crate) fn standalone_store(path: &Path) -> Result<Option<(Arc<Linux>, StoreDir)>> {
    let Some(name) = path.file_name() else { return Ok(None) };
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let storage = Linux::open(dir).context("open", dir)?;
    let store_dir = StoreDir::of_file(Path::new(name));
    Ok(store_dir.check_trust(&*storage)?.map(|_| (storage, store_dir)))
}

/// Removes the store of a standalone file that is gone from this name, unless commits wait in the store. Returns false
/// if there is no store, or if it must stay.
pub fn remove_unneeded(path: &Path) -> Result<bool> {
    match standalone_store(path)? {
        Some((storage, store_dir)) => remove_unneeded_on(path, &(storage as Arc<dyn Storage>), &store_dir),
        None => Ok(false),
    }
}

/// Removes like [`remove_unneeded`], on any storage.
pub fn remove_unneeded_on(path: &Path, storage: &Arc<dyn Storage>, store_dir: &StoreDir) -> Result<bool> {
    let lock = lock_store(&**storage, store_dir, None, false).map_err(|e| error_in_store(e, path))?;
    Undo::end(&**storage, store_dir)?;
    let has_file = store_dir.standalone.as_ref().is_some_and(|name| storage.stat(name).is_ok());
    // A clean header is no proof, because the first record does not change it.
    let found = inspect_on(path, storage, store_dir)?.0;
    let clean = found.clean && found.quarantined_journals == 0 && found.problems.is_empty();
    if !clean || has_file {
        if clean {
            lock.release();
        }
        return Ok(false);
    }
    remove_store_dir(&**storage, store_dir)?;
    Ok(true)
}

/// Unlinks a standalone file that no process has open, and removes its store: commits that wait in it are useless
/// without the file.
pub fn unlink(path: &Path, unlink: impl FnOnce() -> std::io::Result<()>) -> Result<()> {
    let store = standalone_store(path)?;
    let lock = match &store {
        Some((storage, dir)) => Some(lock_store(&**storage, dir, None, false).map_err(|e| error_in_store(e, path))?),
        None => None,
    };
    if let Some((storage, store_dir)) = &store {
        Undo::end(&**storage, store_dir)?;
    }
    let live = live::memories(path);
    unlink().context("unlink", path)?;
    // Live memory is useless without its file.
    live.iter().for_each(|one| _ = live::forget(one));
    if let (Some((storage, store_dir)), Some(_)) = (&store, &lock) {
        remove_store_dir(&**storage, store_dir)?;
    }
    Ok(())
}

/// Removes everything of Untorn's, and the directory if nothing else is in it. The caller has the store's lock. A journal is first renamed to an unfinished one, so
/// that a crash in between leaves no journal without files.
pub(crate) fn remove_store_dir(storage: &dyn Storage, store_dir: &StoreDir) -> Result<()> {
    let unfinished = store_dir.journal_new();
    let locked = [store_dir.lock_file(), store_dir.owner_file()];
    // The locked files go last, while they are locked, so that a program that waits for the lock sees that the file is
    // gone.
    for name in storage.list(&store_dir.dir).context("list", &store_dir.dir)? {
        let entry = store_dir.dir.join(&name);
        if locked.contains(&entry) || entry == unfinished || !is_own_name(&name) {
            continue;
        }
        if entry == store_dir.journal_spare() {
            remove_tree(storage, &entry)?;
            continue;
        }
        match storage.unlink(&entry) {
            Err(e) if e.kind() == ErrorKind::IsADirectory => {
                remove_tree(storage, &unfinished)?;
                storage.rename(&entry, &unfinished, false).context("rename", &entry)?;
                storage.sync_dir(&store_dir.dir, sync_point::EJECT_JOURNAL).context("flush", &store_dir.dir)?;
            }
            done => done.context("remove", &entry)?,
        }
    }
    remove_tree(storage, &unfinished)?;
    locked.iter().try_for_each(|path| storage.unlink(path).context("remove", path))?;
    match storage.rmdir(&store_dir.dir) {
        // Another process is creating a new store, or somebody has put files there.
        Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty => {}
        done => done.context("remove", &store_dir.dir)?,
    }
    storage.sync_dir(Path::new(""), sync_point::EJECT).context("flush", ".")
}
