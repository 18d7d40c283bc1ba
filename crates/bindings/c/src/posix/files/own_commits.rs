//! Changes that are commits of their own: of descriptors with O_SYNC, and with `UNTORN_COMMIT=write` all.

use std::ffi::{CString, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Acquire;

use untorn::File;

use super::managed_files::Managed;
use super::mount_files::on_mount;
use crate::boundary::error::Result;
use crate::posix::state::call_section::lock;
use crate::posix::state::file_owner::is_borrower;
use crate::posix::state::patterns;
use crate::posix::state::posix_descriptor::system;
use crate::posix::state::report::reported;
use crate::posix::state::settings::commits_writes;

/// Makes a change of a managed file by a descriptor with these flags, and commits it if it is to be a commit.
///
/// With `UNTORN_COMMIT=write` a change whose commit fails is undone, so that no later commit takes it along; but not
/// once the file was mapped, as that would undo stores, too.
pub(crate) fn change<T>(managed: &Managed, file: &File, flags: c_int, make: impl FnOnce() -> Result<T>) -> Result<T> {
    // O_SYNC has this bit, too. Changes of a transaction are committed by its end.
    let is_commit = commits_writes() || flags & libc::O_DSYNC != 0;
    if !is_commit || managed.transactions.load(Acquire) > 0 {
        return make();
    }
    let done = {
        let _beside_others = managed.changing.read().unwrap_or_else(PoisonError::into_inner);
        make().and_then(|done| Ok(file.commit().map(|()| done)?))
    };
    if done.is_err() && commits_writes() && lock(&managed.place).is_none() {
        // Only changes whose commits failed are uncommitted now.
        let _alone = managed.changing.write().unwrap_or_else(PoisonError::into_inner);
        let _ = file.rollback();
    }
    done
}

/// Commits a change that the kernel has just made to a named file on a mount, if each change is to be a commit. Returns
/// `done`, or -1 if the commit fails.
pub(crate) fn changed_on_mount(call: &str, fd: c_int, done: c_int) -> c_int {
    if done != 0 || !commits_writes() {
        return done;
    }
    // A change by a forked child belongs to its parent's transaction.
    on_mount(call, fd, -1, |file| if file.is_parents() { Ok(0) } else { file.commit_change().map(|()| 0) })
        .unwrap_or(done)
}

/// Makes the removal of a named file's name durable, if each change is to be. Returns `done`, or -1 if that fails.
pub(crate) fn name_removed(call: &str, path: impl FnOnce() -> Option<PathBuf>, done: c_int) -> c_int {
    if done != 0 || !commits_writes() || is_borrower() {
        return done;
    }
    let whole = path().and_then(|path| {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(std::fs::canonicalize(dir).ok()?.join(path.file_name()?))
    });
    match whole.filter(|path| patterns::match_path(path)) {
        Some(path) => reported(call, -1, || sync_name(&path).map(|()| done)),
        None => done,
    }
}

/// Makes a new or removed name durable.
pub(crate) fn sync_name(path: &Path) -> Result<()> {
    path.parent().map_or(Ok(()), sync_dir)
}

fn sync_dir(dir: &Path) -> Result<()> {
    let path = CString::new(dir.as_os_str().as_bytes()).unwrap_or_default();
    // SAFETY: the path ends in NUL.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(system("open the directory of a new or removed name"));
    }
    // SAFETY: takes a number.
    let synced = match unsafe { libc::fsync(fd) } {
        0 => Ok(()),
        _ => Err(system("sync the directory of a new or removed name")),
    };
    // SAFETY: opened above.
    unsafe { libc::close(fd) };
    synced
}
