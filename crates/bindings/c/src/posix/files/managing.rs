//! Starts managing files.

use std::ffi::c_int;
use std::sync::Arc;

use untorn::File;

use super::at_exit;
use super::managed_files::{
    Managed, Managing, begin_managing, close_file, insert, is_mapped, learn, note_descriptor, watch_forks, write,
};
use super::managed_stores::{has_store, store_above};
use super::mount_files;
use super::patience::patiently;
use crate::boundary::error::{Failure, Result};
use crate::posix::state::own_descriptors::keep_descriptors_high;
use crate::posix::state::posix_descriptor::{failure, key_of, open_descriptors, path_of, stat};
use crate::posix::state::settings::commits_on_close;

/// The managed file of a regular file's descriptor. The file is managed from now on if it was not before.
pub(crate) fn manage(fd: c_int) -> Result<Arc<Managed>> {
    patiently(|| manage_locked(fd, &begin_managing()))
}

/// Puts a file that is open for writing into a transaction, if it is on an Untorn mount. False: it is not on a mount,
/// or it has a store of its own, from elsewhere, which it keeps.
pub(crate) fn keep_on_mount(fd: c_int) -> Result<bool> {
    keep_on_mount_locked(fd, &begin_managing())
}

pub(crate) fn keep_on_mount_locked(fd: c_int, _managing: &Managing) -> Result<bool> {
    if path_of(fd).is_ok_and(|path| has_store(&path)) {
        return Ok(false);
    }
    watch_forks();
    at_exit::register();
    mount_files::keep(fd, commits_on_close())
}

pub(crate) fn manage_locked(fd: c_int, managing: &Managing) -> Result<Arc<Managed>> {
    keep_descriptors_high();
    watch_forks();
    at_exit::register();
    if let Some(file) = learn(fd).filter(|file| !file.is_parents()) {
        return Ok(file);
    }
    let path = path_of(fd)?;
    // The program's own `flock` would make Untorn's fail. From now on Untorn holds the lock.
    let lock = write().locks.remove(&fd);
    if lock.is_some() {
        // SAFETY: takes numbers.
        unsafe { libc::flock(fd, libc::LOCK_UN) };
    }
    let opened = match store_above(&path) {
        Some(shared) => shared.begin_use().and_then(|shared| Ok((shared.open_file(&path)?, Some(shared)))),
        None => File::open(&path).map(|file| (file, None)).map_err(Failure::from),
    };
    let (file, shared) = opened.inspect_err(|_| {
        if let Some(lock) = lock {
            // SAFETY: as above.
            unsafe { libc::flock(fd, lock | libc::LOCK_NB) };
            write().locks.insert(fd, lock);
        }
    })?;
    // While recovery waited for another owner, that owner may have replaced the file.
    if path_of(fd)? != path {
        return Err(failure(libc::ESTALE, format!("{} was replaced meanwhile", path.display())));
    }
    let key = stat(fd).as_ref().map(key_of).ok_or_else(|| failure(libc::EBADF, "no descriptor"))?;
    let managed = Arc::new(Managed::new(key, file, shared));
    insert(managed.clone(), managing);
    // Includes descriptors that were opened for reading, or by calls that are not renamed. Untorn's own descriptors
    // do not count, because the program never closes them.
    for fd in open_descriptors(key, &untorn_os::is_own_descriptor) {
        note_descriptor(&managed, fd)?;
    }
    note_descriptor(&managed, fd)?;
    Ok(managed)
}

/// Stops managing a file that became managed only for a map, which then failed.
pub(crate) fn undo(managed: &Arc<Managed>) {
    let managing = begin_managing();
    if is_mapped(managed) {
        return;
    }
    // The file has no changes, so closing it loses nothing.
    let _ = close_file(managed, &managing);
}
