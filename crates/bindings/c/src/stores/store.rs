//! Exported functions: stores, and `untorn_put`.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::ptr::null_mut;

use untorn::Store;

use crate::boundary::arguments;
use crate::boundary::error::{Failure, guard};
use crate::boundary::handle::{self, Handle, Handles, Kind};
use crate::boundary::options::{self, untorn_options};
use crate::boundary::status::{self, untorn_status};
use crate::boundary::text;
use crate::boundary::versioned;

/// A store: a directory whose files change all-or-nothing. One process owns an open store.
#[allow(non_camel_case_types)]
pub struct untorn_store {
    _opaque: (),
}

impl Handle for Store {
    const KIND: Kind = Kind::Store;
    fn handles() -> &'static Handles<Store> {
        static OPEN: Handles<Store> = Handles::new();
        &OPEN
    }
}

/// Opens the directory `path` as a store. The store's own files are in the directory `.untorn` in it.
/// With UNTORN_CREATE in the flags of `options`, a missing store is created, durably, and so is the directory itself
/// (mode 0777 less the umask) if its parent exists; otherwise a missing store is ENOENT. Recovery after a crash
/// happens here: on return every file holds its last committed contents. `options` NULL: defaults, an existing store.
/// To read a store beside its owner there is untorn_reader_open(): UNTORN_READ_ONLY is EINVAL here.
///
/// Returns a handle, or NULL: EBUSY, EUCLEAN, EMEDIUMTYPE, EPROTONOSUPPORT, ENOTRECOVERABLE, EPERM,
/// ENOSPC, ENOENT, ENOTDIR, EACCES …; see untorn_error.
///
/// # Safety
/// `path` ends in NUL; `options` is NULL or as large as its `size` says.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_store_open(path: *const c_char, options: *const untorn_options) -> *mut untorn_store {
    guard(null_mut(), || {
        // SAFETY: the caller's promise.
        let (path, options) = unsafe { (arguments::path(path, "the path")?, options::read(options)?) };
        handle::insert(options.open(path)?)
    })
}

/// Returns another handle of the store of a directory, if this process has the store open. It is for parts of a program
/// that do not know each other. Close it with untorn_store_release(). NULL: ENOENT, the process does not have it open.
///
/// # Safety
/// `path` ends in NUL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_store_find(path: *const c_char) -> *mut untorn_store {
    guard(null_mut(), || {
        // SAFETY: the caller's promise.
        let path = unsafe { arguments::path(path, "the path")? };
        let none = || {
            let message = format!("this process has no store open in {}", path.display());
            Failure { errno: libc::ENOENT, ..Failure::invalid(message) }
        };
        handle::insert(Store::find(path).ok_or_else(none)?)
    })
}

/// Waits for all commits that were started, also by other threads; their tickets tell their results. Returns 0, or -1
/// with an error.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_store_wait(store: *mut untorn_store) -> c_int {
    guard(-1, || {
        handle::get::<Store, _>(store)?.wait()?;
        Ok(0)
    })
}

/// Waits until all commits so far, also of earlier openings, survive the failures of a class. Returns and errors are
/// those of untorn_ticket_wait_for().
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_store_wait_for(store: *mut untorn_store, failure_class: u32) -> c_int {
    guard(-1, || {
        handle::get::<Store, _>(store)?.wait_for(options::class(failure_class)?)?;
        Ok(0)
    })
}

/// Returns a descriptor for event loops, which becomes readable whenever commits have results. It is an eventfd, written
/// to once for each group of commits. Read its 8 bytes, then poll the tickets. The store owns the descriptor: do not close it. -1: EBADF,
/// EMFILE.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_store_notification_fd(store: *mut untorn_store) -> c_int {
    guard(-1, || Ok(handle::get::<Store, _>(store)?.notification_fd()?.as_raw_fd()))
}

/// Closes the store and all its handles: waits for commits that were started, applies and flushes all
/// committed changes, and leaves plain, whole files. Uncommitted changes of open files are DISCARDED.
/// Calls on the store's files fail with EBADF afterwards; the handles of these files still have to be
/// closed.
///
/// Returns 0, or -1 with an error; the handle is closed in either case. Committed changes stay committed
/// also after an error: they are recovered when the store is opened again.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_store_close(store: *mut untorn_store) -> c_int {
    guard(-1, || {
        let store: Store = Store::clone(&*handle::take(store)?);
        store.close()?;
        Ok(0)
    })
}

/// Closes a handle without closing the store. The store closes with the last handle of itself and of its
/// files; errors of that closing are not reported. Returns 0, or -1 with EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_store_release(store: *mut untorn_store) -> c_int {
    guard(-1, || {
        drop(handle::take::<Store, _>(store)?);
        Ok(0)
    })
}

/// Applies all committed changes to the data files and flushes these. Other programs then read plain,
/// whole files, until the next commit. Commits are durable without a checkpoint. Returns 0, or -1 with an
/// error.
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

/// Returns the whole status as a JSON text, to be freed with untorn_free(). NULL: EBADF, ENOMEM.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_store_status_json(store: *const untorn_store) -> *mut c_char {
    guard(null_mut(), || {
        let status = handle::get::<Store, _>(store)?.status();
        // Only a path that is not UTF-8 has no JSON form.
        let json = serde_json::to_vec(&status).map_err(|e| Failure::invalid(format!("no JSON for the status: {e}")))?;
        text::to_caller(&json)
    })
}

/// Returns the path of the store's directory, to be freed with untorn_free(). NULL: EBADF, ENOMEM.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_store_path(store: *const untorn_store) -> *mut c_char {
    guard(null_mut(), || text::to_caller(handle::get::<Store, _>(store)?.path().as_os_str().as_bytes()))
}

/// Replaces the contents of the file `path` by `len` bytes, whole or not at all, durably on return. The
/// file keeps its mode, owner, ACL, extended attributes and flags. No store is needed; if the file belongs to
/// a store, the replacement is a commit of that store (EBUSY if the store is open elsewhere). Returns 0, or
/// -1 with an error: the file then still has its old contents, unless the message says that the new ones are
/// in place, or committed.
///
/// # Safety
/// `path` ends in NUL; `buf` points to `len` bytes.
#[cfg(feature = "offline")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_put(path: *const c_char, buf: *const c_void, len: usize) -> c_int {
    guard(-1, || {
        // SAFETY: the caller's promise.
        let (path, mut bytes) = unsafe { (arguments::path(path, "the path")?, arguments::bytes(buf, len)?) };
        crate::boundary::log::start();
        untorn::offline::put(path, &mut bytes)?;
        Ok(0)
    })
}
