//! Exported functions: several files as one, by their descriptors.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::boundary::error::{Failure, Result, guard};
use crate::posix::files::{managed_stores, transactions};
use crate::posix::state::call_section::enter;
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

/// Commits all changes of several files of one store, or of one mount, as one: after any crash all of them are there, or
/// none. Returns 0, or -1: EINVAL (`n` is 0, a descriptor is not of a managed file, or the files belong to several stores
/// or mounts; on a mount there are more than 511), EBUSY (one is in a transaction), and the errors of `fsync`.
///
/// # Safety
/// `fds` is NULL or points to `n` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_syncv(fds: *const c_int, n: usize) -> c_int {
    let Some(_section) = enter("untorn_fd_syncv") else { return -1 };
    reported("untorn_fd_syncv", -1, || {
        // SAFETY: the caller's promise.
        transactions::syncv(unsafe { descriptors(fds, n) }?).map(|()| 0)
    })
}

/// Begins a transaction over the files of `n` descriptors, managed files of one store or one mount; `n` may be 0. All
/// their uncommitted changes, earlier and later ones, by descriptors and maps, belong to it, and so do names in that store
/// that this thread creates, renames or unlinks until the transaction ends (on a mount such a call fails with EOPNOTSUPP).
/// Only the transaction commits them: `fsync` of one of the files fails with EBUSY. The end of the process aborts it.
/// Returns the transaction's number, which is greater than 0, or -1: EINVAL, EBUSY (a file is in a transaction), ECHILD
/// (the parent process manages a file).
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
/// transaction, unless the outcome is unknown (UNTORN_E_SYNC_UNKNOWN). On a mount, after ENOSPC and EDQUOT it goes on: make
/// room and commit again, without writing in between, or abort.
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
