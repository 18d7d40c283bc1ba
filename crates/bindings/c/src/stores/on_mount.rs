//! Exported functions: ordinary descriptors of files on a mount of Untorn's, several committed as one.

use parking_lot::Mutex;
use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use untorn::on_mount::{Transaction, syncv};

use crate::boundary::error::untorn_error::UNTORN_E_BAD_HANDLE;
use crate::boundary::error::{Failure, Result, guard};
use crate::boundary::handle::{self, Handle, Handles, Kind};

/// A transaction over ordinary files on a mount of Untorn's.
#[allow(non_camel_case_types)]
pub struct untorn_mount_txn {
    _opaque: (),
}

/// What a transaction handle stands for; the lock makes calls on one transaction wait for each other.
struct OpenTransaction(Mutex<Option<Transaction>>);

impl Handle for OpenTransaction {
    const KIND: Kind = Kind::MountTxn;
    fn handles() -> &'static Handles<OpenTransaction> {
        static OPEN: Handles<OpenTransaction> = Handles::new();
        &OPEN
    }
}

/// A descriptor of the caller's, for the length of a call.
fn descriptor<'a>(fd: c_int) -> Result<BorrowedFd<'a>> {
    if fd < 0 {
        let message = format!("{fd} is no descriptor");
        return Err(Failure { kind: UNTORN_E_BAD_HANDLE, errno: libc::EBADF, message });
    }
    // SAFETY: not -1. Whether it is open, and of what, the kernel says, call by call: one that is not is EBADF.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Closes the handle and returns the transaction.
fn end(raw: *mut untorn_mount_txn) -> Result<Transaction> {
    let entry = handle::take::<OpenTransaction, _>(raw)?;
    let txn = entry.0.lock().take();
    txn.ok_or_else(|| Failure::bad_handle("transaction"))
}

/// Begins a transaction over files on a mount of Untorn's, with the file of a descriptor open for writing. Ordinary files
/// of `untorn mount` only. All that is uncommitted of its files, from before and from then on, whoever writes it, is committed
/// with the transaction and by nothing else: `fsync` of one of them fails with EBUSY until the transaction ends. Names and
/// modes are not part of it. The end of the process aborts it. NULL: EINVAL (the file is on no such mount), EBUSY (the file
/// is in a transaction), EBADF (not open for writing).
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_mount_txn_begin(fd: c_int) -> *mut untorn_mount_txn {
    guard(null_mut(), || {
        let txn = Transaction::begin(descriptor(fd)?)?;
        handle::insert(OpenTransaction(Mutex::new(Some(txn))))
    })
}

/// Adds a file of the same mount, open for writing. Returns 0, or -1 as untorn_mount_txn_begin().
#[unsafe(no_mangle)]
pub extern "C" fn untorn_mount_txn_add(txn: *mut untorn_mount_txn, fd: c_int) -> c_int {
    guard(-1, || {
        let entry = handle::get::<OpenTransaction, _>(txn)?;
        let mut txn = entry.0.lock();
        txn.as_mut().ok_or_else(|| Failure::bad_handle("transaction"))?.add(descriptor(fd)?)?;
        Ok(0)
    })
}

/// Commits the transaction: after any crash all of it is there, or nothing. Returns 0, or -1: ENOSPC (there is no room
/// now: the transaction goes on, and the handle stays valid; make room and commit again, and write nothing to the files
/// before; or abort), EIO (a write of one of the files had failed: nothing is committed, the transaction is aborted),
/// EBADF. After 0, and after any other error than ENOSPC, the handle is closed.
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

/// Commits as untorn_mount_txn_commit(), and goes on with the same files, which nobody else gets in between. The handle
/// stays valid, also after an error. Returns 0, or -1: ENOSPC (what was to be committed may have its place in the log of the
/// mount, and is committed then when there is room), EIO, EBADF.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_mount_txn_commit_and_chain(txn: *mut untorn_mount_txn) -> c_int {
    guard(-1, || {
        let entry = handle::get::<OpenTransaction, _>(txn)?;
        entry.0.lock().as_mut().ok_or_else(|| Failure::bad_handle("transaction"))?.commit_and_chain()?;
        Ok(0)
    })
}

/// Gives up what is uncommitted of the files, as untorn_mount_txn_abort(), and goes on with them. The handle stays valid.
/// Returns 1 if anything was given up, 0 if not, or -1 with an error.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_mount_txn_abort_and_chain(txn: *mut untorn_mount_txn) -> c_int {
    guard(-1, || {
        let entry = handle::get::<OpenTransaction, _>(txn)?;
        Ok(entry.0.lock().as_mut().ok_or_else(|| Failure::bad_handle("transaction"))?.abort_and_chain()?.into())
    })
}

/// Aborts the transaction: its files are as of their last commits, for every program. Returns 0, or -1 with an error:
/// EINVAL if a commit of it found no room and waits for it, and is not taken back. The handle is closed in either case.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_mount_txn_abort(txn: *mut untorn_mount_txn) -> c_int {
    guard(-1, || {
        end(txn)?.abort()?;
        Ok(0)
    })
}

/// Commits `n` ordinary files of one mount of Untorn's as one, all or none; each descriptor is open for writing. Returns 0,
/// or -1: EINVAL (`n` is 0, or a file is on no such mount), EFAULT if `fds` is NULL, otherwise as untorn_mount_txn_begin()
/// and untorn_mount_txn_commit(); what was written stays uncommitted then.
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
