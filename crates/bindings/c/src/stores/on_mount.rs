//! Exported functions: commits of several ordinary files on an Untorn mount as one.

use parking_lot::Mutex;
use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use untorn::on_mount::{Transaction, syncv};

use crate::boundary::error::untorn_error::UNTORN_E_BAD_HANDLE;
use crate::boundary::error::{Failure, Result, guard};
use crate::boundary::handle::{self, Handle, Handles, Kind};

/// A transaction over ordinary files on an Untorn mount.
#[allow(non_camel_case_types)]
pub struct untorn_mount_txn {
    _opaque: (),
}

/// The value behind a transaction handle; the lock makes calls on one transaction wait for each other.
struct OpenTransaction(Mutex<Option<Transaction>>);

impl Handle for OpenTransaction {
    const KIND: Kind = Kind::MountTxn;
    fn handles() -> &'static Handles<OpenTransaction> {
        static OPEN: Handles<OpenTransaction> = Handles::new();
        &OPEN
    }
}

/// The caller's descriptor, for the length of a call.
fn descriptor<'a>(fd: c_int) -> Result<BorrowedFd<'a>> {
    if fd < 0 {
        let message = format!("{fd} is no descriptor");
        return Err(Failure { kind: UNTORN_E_BAD_HANDLE, errno: libc::EBADF, message });
    }
    // SAFETY: not -1. The kernel checks in each call whether it is open, and of which file; a closed descriptor gives
    // EBADF.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Closes the handle and returns the transaction.
fn end(raw: *mut untorn_mount_txn) -> Result<Transaction> {
    let entry = handle::take::<OpenTransaction, _>(raw)?;
    let txn = entry.0.lock().take();
    txn.ok_or_else(|| Failure::bad_handle("transaction"))
}

/// Begins a transaction over files on an Untorn mount. The first file is that of `fd`, which is open for writing.
/// Only ordinary files of `untorn mount` can take part. All uncommitted changes of the transaction's files belong to
/// the transaction, those from before and later ones, by any program. Only the transaction commits them: `fsync` of
/// one of the files fails with EBUSY until the transaction ends. Names and modes are not part of it. The end of the
/// process aborts it. NULL: EINVAL (the file is not on such a mount), EBUSY (the file is in a transaction), EBADF
/// (not open for writing).
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_mount_txn_begin(fd: c_int) -> *mut untorn_mount_txn {
    guard(null_mut(), || {
        let txn = Transaction::begin(descriptor(fd)?)?;
        handle::insert(OpenTransaction(Mutex::new(Some(txn))))
    })
}

/// Adds a file of the same mount, open for writing. Returns 0, or -1 with an error like untorn_mount_txn_begin().
#[unsafe(no_mangle)]
pub extern "C" fn untorn_mount_txn_add(txn: *mut untorn_mount_txn, fd: c_int) -> c_int {
    guard(-1, || {
        let entry = handle::get::<OpenTransaction, _>(txn)?;
        let mut txn = entry.0.lock();
        txn.as_mut().ok_or_else(|| Failure::bad_handle("transaction"))?.add(descriptor(fd)?)?;
        Ok(0)
    })
}

/// Commits the transaction: after any crash all of it is there, or nothing. Returns 0, or -1: ENOSPC (there is no
/// room now: the transaction continues, and the handle stays valid; make room and commit again, without writing to
/// the files in between, or abort), EIO (an earlier write to one of the files had failed: nothing is committed, the
/// transaction is aborted), EBADF. After 0, and after any error other than ENOSPC, the handle is closed.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_mount_txn_commit(txn: *mut untorn_mount_txn) -> c_int {
    guard(-1, || {
        let entry = handle::get::<OpenTransaction, _>(txn)?;
        let done = entry.0.lock().as_mut().ok_or_else(|| Failure::bad_handle("transaction"))?.commit();
        if !matches!(done, Err(untorn::Error::NoSpace { .. })) {
            drop(end(txn)?);
        }
        done?;
        Ok(0)
    })
}

/// Commits like untorn_mount_txn_commit(), and continues with the same files; no other transaction can take the files
/// in between. The handle stays valid, also after an error. Returns 0, or -1: ENOSPC (the commit may already have its
/// place in the mount's log, and is made when there is room), EIO, EBADF.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_mount_txn_commit_and_chain(txn: *mut untorn_mount_txn) -> c_int {
    guard(-1, || {
        let entry = handle::get::<OpenTransaction, _>(txn)?;
        entry.0.lock().as_mut().ok_or_else(|| Failure::bad_handle("transaction"))?.commit_and_chain()?;
        Ok(0)
    })
}

/// Discards the uncommitted changes of the files, like untorn_mount_txn_abort(), and continues with the same files.
/// The handle stays valid. Returns 1 if changes were discarded, 0 if there were none, or -1 with an error.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_mount_txn_abort_and_chain(txn: *mut untorn_mount_txn) -> c_int {
    guard(-1, || {
        let entry = handle::get::<OpenTransaction, _>(txn)?;
        Ok(entry.0.lock().as_mut().ok_or_else(|| Failure::bad_handle("transaction"))?.abort_and_chain()?.into())
    })
}

/// Aborts the transaction: its files are as of their last commits, for every program. Returns 0, or -1 with an error:
/// EINVAL if a commit of the transaction found no room and still waits for it; that commit is not taken back. The
/// handle is closed in either case.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_mount_txn_abort(txn: *mut untorn_mount_txn) -> c_int {
    guard(-1, || {
        end(txn)?.abort()?;
        Ok(0)
    })
}

/// Commits `n` ordinary files of one Untorn mount as one, all or none; each descriptor is open for writing. Returns
/// 0, or -1: EINVAL (`n` is 0, or a file is not on such a mount), EFAULT if `fds` is NULL, otherwise like
/// untorn_mount_txn_begin() and untorn_mount_txn_commit(). After an error the changes stay uncommitted.
///
/// # Safety
/// `fds` points to `n` descriptors.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_mount_syncv(fds: *const c_int, n: usize) -> c_int {
    guard(-1, || {
        if fds.is_null() {
            return Err(Failure::null("the array of descriptors"));
        }
        // SAFETY: the caller's promise.
        let fds = unsafe { std::slice::from_raw_parts(fds, n) };
        let files = fds.iter().map(|fd| descriptor(*fd)).collect::<Result<Vec<_>>>()?;
        syncv(&files)?;
        Ok(0)
    })
}
