//! Exported functions: stores, and `untorn_put`.

use std::ffi::{c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;

use untorn::Store;

use crate::arguments::{self, copy_out};
use crate::error::{Failure, guard};
use crate::file::{untorn_file, with_file};
use crate::handle;
use crate::options::{self, untorn_options};
use crate::status::{self, untorn_status};
use crate::versioned;

/// A store: a directory whose files change all-or-nothing. One process owns it while it is open.
#[allow(non_camel_case_types)]
pub struct untorn_store {
    _opaque: (),
}

/// Opens the directory `path` as a store, which lives in `.untorn` in it. What is missing is made,
/// durably (not with UNTORN_MUST_EXIST): the store, and the directory itself (mode 0777 less the umask)
/// if its parent exists. After a crash this is where recovery happens: on return every file holds its
/// last committed contents. `options` NULL: defaults.
///
/// Returns a handle, or NULL: EBUSY, EUCLEAN, EMEDIUMTYPE, EPROTONOSUPPORT, ENOTRECOVERABLE, EPERM,
/// ENOSPC, ENOENT, ENOTDIR, EACCES …; see untorn_error.
///
/// # Safety
/// `path` ends in NUL; `options` is NULL or as large as its `size` says.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_store_open(path: *const c_char, options: *const untorn_options) -> *mut untorn_store {
    guard(std::ptr::null_mut(), || {
        // SAFETY: the caller's promise.
        let (path, options) = unsafe { (arguments::path(path, "the path")?, options::read(options)?) };
        handle::insert(options.open(path)?)
    })
}

/// Another handle of the store that a file lives in; for a lone file, of its private store. Give it
/// back with untorn_store_release(), or close the store through it. NULL with EBADF.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_store_of(file: *const untorn_file) -> *mut untorn_store {
    guard(std::ptr::null_mut(), || with_file(file, |file| handle::insert(file.store())))
}

/// Closes the store and all its handles: waits for commits on their way, applies and flushes
/// everything committed, and leaves plain, whole files. Uncommitted changes of open files are
/// DISCARDED; handles of its files answer EBADF afterwards, and still have to be closed.
///
/// Returns 0, or -1 with an error; the handle is closed in either case. What was committed stays
/// committed, and is recovered when the store is opened again.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_store_close(store: *mut untorn_store) -> c_int {
    guard(-1, || {
        let store: Store = Store::clone(&*handle::take(store)?);
        store.close()?;
        Ok(0)
    })
}

/// Gives a handle back without closing the store, which closes by itself after the last handle of
/// it and of its files; errors are lost then. Returns 0, or -1 with EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_store_release(store: *mut untorn_store) -> c_int {
    guard(-1, || {
        drop(handle::take::<Store, _>(store)?);
        Ok(0)
    })
}

/// Applies and flushes everything committed so far to the data files, which are then plain and whole
/// for other programs, if nobody commits meanwhile. Commits do not need this to be durable. Returns
/// 0, or -1 with an error.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_store_checkpoint(store: *mut untorn_store) -> c_int {
    guard(-1, || {
        handle::get::<Store, _>(store)?.checkpoint()?;
        Ok(0)
    })
}

/// Fills `status`, whose member `size` the caller has set. Returns 0, or -1 with EBADF, EFAULT or
/// EINVAL.
///
/// # Safety
/// `status` is NULL or points to as many writable bytes as its first member says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_store_status(store: *const untorn_store, status: *mut untorn_status) -> c_int {
    guard(-1, || {
        let store = handle::get::<Store, _>(store)?;
        // SAFETY: the caller's promise.
        let size = unsafe { versioned::checked_size(status) }?;
        // SAFETY: not NULL, as was just checked; the rest is the caller's promise.
        unsafe { status::write(&store.status(), status, size) };
        Ok(0)
    })
}

/// Writes the whole status as JSON. Like snprintf: at most `len` bytes go to `buf`, the last one a
/// NUL, and the length of the whole text, without NUL, is returned; `len` 0 only asks for it. -1
/// with EBADF or EFAULT.
///
/// # Safety
/// `buf` is NULL or points to `len` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_store_status_json(
    store: *const untorn_store,
    buf: *mut c_char,
    len: usize,
) -> libc::ssize_t {
    guard(-1, || {
        let status = handle::get::<Store, _>(store)?.status();
        // Only a path that is not UTF-8 has no JSON form.
        let json = serde_json::to_vec(&status).map_err(|e| Failure::invalid(format!("no JSON for the status: {e}")))?;
        // SAFETY: the caller's promise.
        unsafe { copy_out(&json, buf, len) }
    })
}

/// Writes the store's directory, as untorn_store_status_json() writes the status. -1 with EBADF or
/// EFAULT.
///
/// # Safety
/// `buf` is NULL or points to `len` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_store_path(store: *const untorn_store, buf: *mut c_char, len: usize) -> libc::ssize_t {
    guard(-1, || {
        let path = handle::get::<Store, _>(store)?.path();
        // SAFETY: the caller's promise.
        unsafe { copy_out(path.as_os_str().as_bytes(), buf, len) }
    })
}

/// Replaces the file `path` by `len` bytes, whole or not at all, durably on return, and keeps its
/// mode, owner, ACL and extended attributes. Needs no store; if the file is in one, the replacement
/// is a commit there (EBUSY if the store is open elsewhere). Returns 0, or -1 with an error: the old
/// contents are then still there.
///
/// # Safety
/// `path` ends in NUL; `buf` points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_put(path: *const c_char, buf: *const c_void, len: usize) -> c_int {
    guard(-1, || {
        // SAFETY: the caller's promise.
        let (path, mut bytes) = unsafe { (arguments::path(path, "the path")?, arguments::bytes(buf, len)?) };
        untorn::offline::put(path, &mut bytes)?;
        Ok(0)
    })
}
