//! Exported functions: several files as one, by their descriptors.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::boundary::error::{Failure, Result, guard};
use crate::posix::files::{managed_stores, transactions};
use crate::posix::state::call_section::enter;
use crate::posix::state::posix_descriptor::failure;
use crate::posix::state::report::reported;

/// The caller's array of descriptors.
///
/// # Safety
/// `fds` is NULL or points to `n` numbers.
unsafe fn descriptors<'a>(fds: *const c_int, n: usize) -> Result<&'a [c_int]> {
    match (fds.is_null(), n) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::null("the array of descriptors")),
        // SAFETY: not NULL; the rest is the caller's promise.
        (false, n) => Ok(unsafe { std::slice::from_raw_parts(fds, n) }),
    }
}

/// Names a directory whose managed files belong to one store, so that they can be committed together. Call it before
/// the files are opened. The environment variable UNTORN_STORE has more directories, separated by colons. Returns 0, or
/// -1: ENOENT, ENOTDIR, EFAULT.
///
/// # Safety
/// `dir` is NULL or ends in NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_manage_store(dir: *const c_char) -> c_int {
    guard(-1, || {
        if dir.is_null() {
            return Err(Failure::null("the directory"));
        }
        // SAFETY: not NULL; the rest is the caller's promise.
        let dir = OsStr::from_bytes(unsafe { CStr::from_ptr(dir) }.to_bytes());
        managed_stores::add(Path::new(dir)).map(|()| 0)
    })
}

/// Commits all changes of several files of one store as one: after any crash all of them are there, or none. Returns 0,
/// or -1: EINVAL (`n` is 0, a descriptor is not of a managed file, or the files belong to several stores), EBUSY (one is
/// in a transaction), and the errors of `fsync`.
///
/// # Safety
/// `fds` is NULL or points to `n` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_syncv(fds: *const c_int, n: usize) -> c_int {
    let Some(_section) = enter("untorn_fd_syncv") else { return -1 };
    reported("untorn_fd_syncv", -1, || {
        // SAFETY: the caller's promise.
        let fds = unsafe { descriptors(fds, n) }?;
        let files = fds.iter().map(|fd| transactions::file_of(*fd)).collect::<Result<Vec<_>>>()?;
        // Handles of their own, so that no call holds the locks of two files.
        let handles = files.iter().map(|file| file.with(|file| Ok(file.try_clone()?))).collect::<Result<Vec<_>>>()?;
        let first = handles.first().ok_or_else(|| failure(libc::EINVAL, "no descriptors"))?;
        first.store().syncv(&handles.iter().collect::<Vec<_>>()).map_err(|e| match Failure::from(e) {
            Failure { errno: libc::EINVAL, message, .. } => failure(
                libc::EINVAL,
                format!("{message}: name that directory (untorn_manage_store(), --store) before they are opened"),
            ),
            other => other,
        })?;
        Ok(0)
    })
}

/// Begins a transaction over the files of `n` descriptors, which are managed files of one store; `n` may be 0. All their
/// uncommitted changes, earlier and later ones, by descriptors and maps, belong to it, and so do names in that store that
/// this thread creates, renames or unlinks until the transaction ends. Only the transaction commits them: `fsync` of one
/// of the files fails with EBUSY. The end of the process aborts it. Returns the transaction's number, which is greater
/// than 0, or -1: EINVAL, EBUSY (a file is in a transaction), ECHILD (the parent process manages a file).
///
/// # Safety
/// `fds` is NULL or points to `n` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_txn_begin(fds: *const c_int, n: usize) -> c_int {
    let Some(_section) = enter("untorn_fd_txn_begin") else { return -1 };
    // SAFETY: the caller's promise.
    reported("untorn_fd_txn_begin", -1, || transactions::begin(unsafe { descriptors(fds, n) }?))
}

/// Adds the file of a descriptor to a transaction. Returns 0, or -1: EBADF (no such transaction), and the errors of
/// untorn_fd_txn_begin().
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_txn_add(txn: c_int, fd: c_int) -> c_int {
    let Some(_section) = enter("untorn_fd_txn_add") else { return -1 };
    reported("untorn_fd_txn_add", -1, || transactions::add(txn, fd).map(|()| 0))
}

/// Commits and ends a transaction: after any crash all of it is there, or nothing. Returns 0, or -1: EBADF (no such
/// transaction), EEXIST, ENOENT … (names have changed meanwhile), and the errors of `fsync`. A failure aborts the
/// transaction, unless the outcome is unknown (UNTORN_E_SYNC_UNKNOWN).
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_txn_commit(txn: c_int) -> c_int {
    let Some(_section) = enter("untorn_fd_txn_commit") else { return -1 };
    reported("untorn_fd_txn_commit", -1, || transactions::commit(txn).map(|()| 0))
}

/// Aborts a transaction: its files are as of their last commits, also in memory, and no name has changed. Returns 0, or
/// -1: EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_txn_abort(txn: c_int) -> c_int {
    let Some(_section) = enter("untorn_fd_txn_abort") else { return -1 };
    reported("untorn_fd_txn_abort", -1, || transactions::abort(txn).map(|()| 0))
}
