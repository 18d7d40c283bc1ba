//! Exported functions: commits over several files, and over names.

use parking_lot::Mutex;
use std::ffi::{c_char, c_int};
use std::path::Path;
use std::ptr::null_mut;

use untorn::{Store, Ticket, Txn};

use crate::boundary::arguments;
use crate::boundary::error::{Failure, Result, guard};
use crate::boundary::handle::{self, Handle, Handles, Kind};
use crate::stores::file::{OpenFile, untorn_file, with_file, with_files};
use crate::stores::store::untorn_store;
use crate::stores::ticket::untorn_ticket;

/// A transaction over files and names of one store.
#[allow(non_camel_case_types)]
pub struct untorn_txn {
    _opaque: (),
}

/// The value behind a transaction handle; the lock makes calls on one transaction wait for each other.
struct OpenTxn(Mutex<Option<Txn>>);

impl Handle for OpenTxn {
    const KIND: Kind = Kind::Txn;
    fn handles() -> &'static Handles<OpenTxn> {
        static OPEN: Handles<OpenTxn> = Handles::new();
        &OPEN
    }
}

/// Makes one call on an open transaction.
fn with_txn<R>(raw: *mut untorn_txn, call: impl FnOnce(&mut Txn) -> Result<R>) -> Result<R> {
    let entry = handle::get::<OpenTxn, _>(raw)?;
    let mut txn = entry.0.lock();
    call(txn.as_mut().ok_or_else(|| Failure::bad_handle("transaction"))?)
}

/// Closes the handle and returns the transaction, for the call that ends it.
fn end_txn(raw: *mut untorn_txn) -> Result<Txn> {
    let entry = handle::take::<OpenTxn, _>(raw)?;
    let txn = entry.0.lock().take();
    txn.ok_or_else(|| Failure::bad_handle("transaction"))
}

/// Begins a transaction in a store. NULL with EBADF.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_txn_begin(store: *mut untorn_store) -> *mut untorn_txn {
    guard(null_mut(), || {
        let txn = handle::get::<Store, _>(store)?.begin();
        handle::insert(OpenTxn(Mutex::new(Some(txn))))
    })
}

/// Adds a file of the same store. All uncommitted changes of the file, made before and after this call,
/// belong to the transaction until the transaction ends. Returns 0, or -1: EBUSY (the file is in another
/// transaction), EINVAL (the file belongs to another store), EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_txn_add(txn: *mut untorn_txn, file: *mut untorn_file) -> c_int {
    guard(-1, || {
        with_txn(txn, |txn| {
            with_file(file, |file| {
                txn.add(file)?;
                Ok(0)
            })
        })
    })
}

/// Creates a file as a part of the transaction; the file's name appears at commit. `mode`: permissions, less
/// the umask. The returned handle writes to the file, and stays open after the commit. NULL: EEXIST,
/// EINVAL, EBADF …
///
/// # Safety
/// `path` ends in NUL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_txn_create(txn: *mut untorn_txn, path: *const c_char, mode: u32) -> *mut untorn_file {
    guard(null_mut(), || {
        with_txn(txn, |txn| {
            // SAFETY: the caller's promise.
            let (path, mode) = (unsafe { arguments::path(path, "the path") }?, arguments::mode(mode)?);
            OpenFile::handle(txn.create(path, mode)?, false)
        })
    })
}

/// Renames a file at commit; an existing file of the new name is replaced. Returns 0, or -1 with an error.
///
/// # Safety
/// Both paths end in NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_txn_rename(txn: *mut untorn_txn, from: *const c_char, to: *const c_char) -> c_int {
    guard(-1, || {
        with_txn(txn, |txn| {
            // SAFETY: the caller's promise.
            let (from, to) = unsafe { (arguments::path(from, "the old path")?, arguments::path(to, "the new path")?) };
            txn.rename(from, to)?;
            Ok(0)
        })
    })
}

/// Removes a file's name at commit. Returns 0, or -1 with an error.
///
/// # Safety
/// `path` ends in NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_txn_unlink(txn: *mut untorn_txn, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { on_path(txn, path, |txn, path| txn.unlink(path)) }
}

/// Makes a directory at commit. `mode`: permissions, less the umask. Returns 0, or -1 with an error.
///
/// # Safety
/// `path` ends in NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_txn_mkdir(txn: *mut untorn_txn, path: *const c_char, mode: u32) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { on_path_with_mode(txn, path, mode, |txn, path, mode| txn.mkdir(path, mode)) }
}

/// Removes an empty directory at commit. Returns 0, or -1 with an error.
///
/// # Safety
/// `path` ends in NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_txn_rmdir(txn: *mut untorn_txn, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { on_path(txn, path, |txn, path| txn.rmdir(path)) }
}

/// Sets the permissions of a file or directory, exactly as given, at commit. Returns 0, or -1 with an
/// error.
///
/// # Safety
/// `path` ends in NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_txn_chmod(txn: *mut untorn_txn, path: *const c_char, mode: u32) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { on_path_with_mode(txn, path, mode, |txn, path, mode| txn.chmod(path, mode)) }
}

/// # Safety
/// `path` is NULL or ends in NUL.
unsafe fn on_path(
    txn: *mut untorn_txn,
    path: *const c_char,
    call: impl FnOnce(&mut Txn, &Path) -> untorn::Result<()>,
) -> c_int {
    guard(-1, || {
        with_txn(txn, |txn| {
            // SAFETY: the caller's promise.
            call(txn, unsafe { arguments::path(path, "the path") }?)?;
            Ok(0)
        })
    })
}

/// # Safety
/// `path` is NULL or ends in NUL.
unsafe fn on_path_with_mode(
    txn: *mut untorn_txn,
    path: *const c_char,
    mode: u32,
    call: impl FnOnce(&mut Txn, &Path, u32) -> untorn::Result<()>,
) -> c_int {
    guard(-1, || {
        with_txn(txn, |txn| {
            // SAFETY: the caller's promise.
            let (path, mode) = (unsafe { arguments::path(path, "the path") }?, arguments::mode(mode)?);
            call(txn, path, mode)?;
            Ok(0)
        })
    })
}

/// Commits all changes of the transaction as one, durable as by untorn_commit(). Returns 0, or -1 with an error like
/// untorn_commit(); also EEXIST, ENOENT, ENOTEMPTY … if a name is missing, taken or in use, and then nothing is
/// committed. The handle is closed in either case. A failure aborts the transaction, unless the outcome is unknown
/// (UNTORN_E_SYNC_UNKNOWN).
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_txn_commit(txn: *mut untorn_txn) -> c_int {
    guard(-1, || {
        end_txn(txn)?.commit()?;
        Ok(0)
    })
}

/// Starts the commit of a transaction; the ticket is like that of untorn_commit_async(). NULL with an error. The
/// handle is closed in either case.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_txn_commit_async(txn: *mut untorn_txn) -> *mut untorn_ticket {
    guard(null_mut(), || handle::insert(end_txn(txn)?.commit_async()?))
}

/// Aborts the transaction: uncommitted changes of its files are discarded, and all names stay as they were.
/// Returns 0, or -1 with an error; the handle is closed in either case.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_txn_abort(txn: *mut untorn_txn) -> c_int {
    guard(-1, || {
        end_txn(txn)?.abort()?;
        Ok(0)
    })
}

/// Commits the uncommitted changes of `n` files of one store as one: after a crash either all changes are
/// there or none. Otherwise as untorn_commit(). Returns 0, or -1: EINVAL if `n` is 0 or the files belong
/// to several stores, EFAULT if `files` is NULL, EBADF if any handle is bad, EBUSY …
///
/// # Safety
/// `files` points to `n` handles.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_syncv(files: *const *mut untorn_file, n: usize) -> c_int {
    guard(-1, || {
        // SAFETY: the caller's promise.
        unsafe {
            with_files(files, n, |store, files| {
                store.syncv(files)?;
                Ok(0)
            })
        }
    })
}

/// Starts a commit of several files; the ticket is like that of untorn_commit_async(). NULL with an error like
/// untorn_syncv().
///
/// # Safety
/// `files` points to `n` handles.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_syncv_async(files: *const *mut untorn_file, n: usize) -> *mut untorn_ticket {
    guard(null_mut(), || {
        // SAFETY: the caller's promise.
        let ticket: Ticket = unsafe { with_files(files, n, |store, files| Ok(store.syncv_async(files)?)) }?;
        handle::insert(ticket)
    })
}
