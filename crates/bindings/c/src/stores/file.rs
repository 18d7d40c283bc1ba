//! Exported functions: files.

use parking_lot::{RwLock, RwLockReadGuard};
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Arc;

use untorn::{File, FileOptions, Store};

use crate::boundary::arguments::{self, OFFSET_MAX};
use crate::boundary::error::{Failure, Result, guard};
use crate::boundary::handle::{self, Handle, Handles, Kind};
use crate::boundary::options::{self, UNTORN_CREATE, untorn_options};
use crate::boundary::text;
use crate::stores::store::untorn_store;
use crate::stores::ticket::untorn_ticket;

/// A handle of a file. All handles of one file show the same contents, uncommitted changes included.
#[allow(non_camel_case_types)]
pub struct untorn_file {
    _opaque: (),
}

/// Open flag: a handle that cannot change the file (EBADF).
pub const UNTORN_RDONLY: u32 = 2;
/// Open flag, with UNTORN_CREATE: fail with EEXIST if the file exists.
pub const UNTORN_EXCL: u32 = 4;
/// Open flag: truncate the file to length 0, which is an uncommitted change like any other.
pub const UNTORN_TRUNC: u32 = 8;

/// Open flags, checked.
struct Flags {
    bits: u32,
    mode: u32,
}

impl Flags {
    fn new(bits: u32, mode: u32) -> Result<Flags> {
        let flags = Flags { bits, mode: arguments::mode(mode)? };
        if bits & !(UNTORN_RDONLY | UNTORN_CREATE | UNTORN_EXCL | UNTORN_TRUNC) != 0 {
            return Err(Failure::invalid(format!("unknown bits in the open flags {bits:#x}")));
        }
        if flags.has(UNTORN_EXCL) && !flags.has(UNTORN_CREATE) {
            return Err(Failure::invalid("UNTORN_EXCL makes no sense without UNTORN_CREATE"));
        }
        if flags.has(UNTORN_RDONLY) && flags.has(UNTORN_TRUNC) {
            return Err(Failure::invalid("UNTORN_TRUNC makes no sense with UNTORN_RDONLY"));
        }
        Ok(flags)
    }

    fn has(&self, flag: u32) -> bool {
        self.bits & flag != 0
    }

    fn options(&self) -> FileOptions {
        let creates = self.has(UNTORN_CREATE);
        FileOptions::new()
            .read_only(self.has(UNTORN_RDONLY))
            .create(creates)
            .create_new(creates && self.has(UNTORN_EXCL))
            .mode(self.mode)
            .truncate(self.has(UNTORN_TRUNC))
    }
}

/// The value behind a file handle. Calls share the lock while they run. Close takes the lock exclusively, and so
/// returns only after the calls that run in other threads.
pub(crate) struct OpenFile {
    file: RwLock<Option<File>>,
    read_only: bool,
}

impl Handle for OpenFile {
    const KIND: Kind = Kind::File;
    fn handles() -> &'static Handles<OpenFile> {
        static OPEN: Handles<OpenFile> = Handles::new();
        &OPEN
    }
}

impl OpenFile {
    /// Makes a handle.
    pub(crate) fn handle(file: File, read_only: bool) -> Result<*mut untorn_file> {
        handle::insert(OpenFile { file: RwLock::new(Some(file)), read_only })
    }

    /// The file, for one call. Only close takes the lock exclusively, so a call that would have to wait
    /// has a handle that is being closed. As no call waits, one call may lock any number of files.
    fn lock(&self) -> Result<RwLockReadGuard<'_, Option<File>>> {
        let guard = self.file.try_read().ok_or_else(|| Failure::bad_handle("file"))?;
        if guard.is_none() { Err(Failure::bad_handle("file")) } else { Ok(guard) }
    }
}

/// Makes one call on an open file, and passes it whether the handle is read-only.
pub(crate) fn with_open<R>(raw: *const untorn_file, call: impl FnOnce(&File, bool) -> Result<R>) -> Result<R> {
    let entry = handle::get::<OpenFile, _>(raw)?;
    let guard = entry.lock()?;
    call(guard.as_ref().ok_or_else(|| Failure::bad_handle("file"))?, entry.read_only)
}

/// Makes one call on an open file.
pub(crate) fn with_file<R>(raw: *const untorn_file, call: impl FnOnce(&File) -> Result<R>) -> Result<R> {
    with_open(raw, |file, _| call(file))
}

/// Makes one call that changes an open file; a read-only handle is refused.
fn with_writable<R>(raw: *const untorn_file, call: impl FnOnce(&File) -> Result<R>) -> Result<R> {
    with_open(raw, |file, read_only| match read_only {
        true => Err(Failure { errno: libc::EBADF, ..Failure::invalid("the file was opened with UNTORN_RDONLY") }),
        false => call(file),
    })
}

/// Makes one call on several open files, and on the store of the first.
///
/// # Safety
/// `files` is NULL or points to `n` handles.
pub(crate) unsafe fn with_files<R>(
    files: *const *mut untorn_file,
    n: usize,
    call: impl FnOnce(&Store, &[&File]) -> Result<R>,
) -> Result<R> {
    if n == 0 || n > isize::MAX as usize / size_of::<*mut untorn_file>() {
        return Err(Failure::invalid(format!("a commit of {n} files")));
    }
    if files.is_null() {
        return Err(Failure::null("the array of files"));
    }
    // SAFETY: not NULL, not longer than a slice may be; the rest is the caller's promise.
    let raw = unsafe { std::slice::from_raw_parts(files, n) };
    let entries = raw.iter().map(|&file| handle::get::<OpenFile, _>(file)).collect::<Result<Vec<Arc<OpenFile>>>>()?;
    let guards = entries.iter().map(|entry| entry.lock()).collect::<Result<Vec<_>>>()?;
    let files: Vec<&File> = guards.iter().filter_map(|guard| guard.as_ref()).collect();
    call(&files[0].store(), &files)
}

/// Opens a standalone file: a file with a private store beside it, the directory `<path>.untorn`. A missing
/// private store is created. Several processes can each own different standalone files of one directory;
/// files that are committed together belong in one store (untorn_store_open()). Recovery after a crash
/// happens here.
///
/// `flags`: UNTORN_RDONLY, UNTORN_CREATE, UNTORN_EXCL, UNTORN_TRUNC, or'ed, or 0 to open an existing
/// file for reading and writing. `mode`: permissions of a created file, less the umask. `options` NULL:
/// defaults; UNTORN_CREATE in their flags has no effect here.
///
/// Returns a handle, or NULL with an error as untorn_store_open().
///
/// # Safety
/// `path` ends in NUL; `options` is NULL or as large as its `size` says.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_open(
    path: *const c_char,
    flags: u32,
    mode: u32,
    options: *const untorn_options,
) -> *mut untorn_file {
    guard(null_mut(), || {
        let flags = Flags::new(flags, mode)?;
        // SAFETY: the caller's promise.
        let (path, options) = unsafe { (arguments::path(path, "the path")?, options::read(options)?) };
        OpenFile::handle(flags.options().store(options).open(path)?, flags.has(UNTORN_RDONLY))
    })
}

/// Opens a file of a store; `path` is relative to the store's directory. Symbolic links are not followed;
/// `..`, absolute paths and other file systems are refused. `flags` and `mode` as in untorn_open().
/// Creating a file is a commit of its own. untorn_txn_create() creates a file in a transaction.
///
/// Returns a handle, or NULL: EBADF, ENOENT, EEXIST, EISDIR, EINVAL, ESTALE, EMEDIUMTYPE, EBUSY …
///
/// # Safety
/// `path` ends in NUL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_open_at(
    store: *mut untorn_store,
    path: *const c_char,
    flags: u32,
    mode: u32,
) -> *mut untorn_file {
    guard(null_mut(), || {
        let store = handle::get::<Store, _>(store)?;
        let flags = Flags::new(flags, mode)?;
        // SAFETY: the caller's promise.
        let path = unsafe { arguments::path(path, "the path") }?;
        OpenFile::handle(flags.options().open_in(&store, path)?, flags.has(UNTORN_RDONLY))
    })
}

/// Duplicates a handle: both handles are of one file, and each is closed by itself. NULL with EBADF.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_dup(file: *const untorn_file) -> *mut untorn_file {
    guard(null_mut(), || with_open(file, |file, read_only| OpenFile::handle(file.try_clone()?, read_only)))
}

/// Closes the handle. Uncommitted changes are DISCARDED when the file's last handle closes, unless
/// untorn_set_commit_on_close() asked for a commit. The last handle of a standalone file also closes the
/// private store, and leaves a plain, whole file.
///
/// Waits for calls on this handle that run in other threads. Returns 0, or -1 with an error; the handle
/// is closed in either case.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_close(file: *mut untorn_file) -> c_int {
    guard(-1, || {
        let entry = handle::take::<OpenFile, _>(file)?;
        let file = entry.file.write().take();
        file.ok_or_else(|| Failure::bad_handle("file"))?.close()?;
        Ok(0)
    })
}

/// Closes the handle like untorn_close(), and leaves the file plain while its store stays open.
///
/// The file then has every commit, and other programs may change it, move it or remove it. If the store's log has
/// commits of the file, this takes a checkpoint of the store. Returns 0, or -1: EBUSY (the file has other handles or
/// maps, or is in a transaction), or an error as untorn_file_checkpoint(); the handle is closed in either case.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_close_plain(file: *mut untorn_file) -> c_int {
    guard(-1, || {
        let entry = handle::take::<OpenFile, _>(file)?;
        let file = entry.file.write().take();
        file.ok_or_else(|| Failure::bad_handle("file"))?.close_plain()?;
        Ok(0)
    })
}

/// Applies all committed changes of the file to its data file, and flushes that.
///
/// Waits for commits that were started. Other programs that read the file then see its last commit. Unlike
/// untorn_store_checkpoint(), the call leaves the log and all other files as they are. So the file is still in use:
/// after a crash, recovery writes it again, over changes of other programs. Returns 0, or -1: EEXIST (another program
/// changed or replaced the file), ENOSPC, EIO, EBADF …
#[unsafe(no_mangle)]
pub extern "C" fn untorn_file_checkpoint(file: *mut untorn_file) -> c_int {
    guard(-1, || {
        with_file(file, |file| {
            file.checkpoint()?;
            Ok(0)
        })
    })
}

/// Sets whether closing this handle commits the file's changes (`on` not 0). With `on` 0, the default, the
/// changes stay uncommitted, and are discarded with the file's last handle. Returns 0, or -1 with EBADF,
/// also for a read-only handle.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_set_commit_on_close(file: *mut untorn_file, on: c_int) -> c_int {
    guard(-1, || {
        with_writable(file, |file| {
            file.set_commit_on_close(on != 0);
            Ok(0)
        })
    })
}

/// Reads up to `len` bytes at `offset`, uncommitted changes included. Returns the number of bytes read:
/// fewer than `len` only at the end of the file, 0 behind the end. -1: EBADF, EFAULT, EINVAL, EIO …
///
/// # Safety
/// `buf` points to `len` bytes that no other thread uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_pread(
    file: *const untorn_file,
    buf: *mut c_void,
    len: usize,
    offset: u64,
) -> libc::ssize_t {
    guard(-1, || {
        with_file(file, |file| {
            // SAFETY: the caller's promise.
            let buf = unsafe { arguments::bytes_mut(buf, len) }?;
            let offset = arguments::offset(offset)?;
            // No file has bytes behind the largest offset.
            let len = buf.len().min((OFFSET_MAX - offset).try_into().unwrap_or(usize::MAX));
            Ok(file.read_at(&mut buf[..len], offset)? as libc::ssize_t)
        })
    })
}

/// Writes `len` bytes at `offset`, all or none. The file grows as needed, with zeros between its old end
/// and `offset`. All handles of the file show the change at once; the disk has it after a commit. Returns
/// `len`, or -1: EBADF, EFAULT, EINVAL, EFBIG, ENOSPC …
///
/// # Safety
/// `buf` points to `len` bytes that no other thread changes during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_pwrite(
    file: *mut untorn_file,
    buf: *const c_void,
    len: usize,
    offset: u64,
) -> libc::ssize_t {
    guard(-1, || {
        with_writable(file, |file| {
            // SAFETY: the caller's promise.
            let buf = unsafe { arguments::bytes(buf, len) }?;
            arguments::range(offset, len as u64)?;
            file.write_all_at(buf, offset)?;
            Ok(len as libc::ssize_t)
        })
    })
}

/// Writes like untorn_pwrite(), but changes only the bytes that differ from the present ones. They are compared in
/// units of 64 bytes, and a commit logs no more than those that differ: for programs that write whole pages of which
/// little has changed. Returns 1 if any byte differed, 0 if none did, or -1 with an error as untorn_pwrite().
///
/// # Safety
/// As for untorn_pwrite().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_pwrite_changed(
    file: *mut untorn_file,
    buf: *const c_void,
    len: usize,
    offset: u64,
) -> c_int {
    guard(-1, || {
        with_writable(file, |file| {
            // SAFETY: the caller's promise.
            let buf = unsafe { arguments::bytes(buf, len) }?;
            arguments::range(offset, len as u64)?;
            Ok(file.write_changed_at(buf, offset)?.into())
        })
    })
}

/// Writes `len` bytes at the end of the file, all or none. Appends of several threads do not overlap.
/// Returns the offset of the first byte written, or -1 with an error as untorn_pwrite().
///
/// # Safety
/// `buf` points to `len` bytes that no other thread changes during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_append(file: *mut untorn_file, buf: *const c_void, len: usize) -> i64 {
    guard(-1, || {
        with_writable(file, |file| {
            // SAFETY: the caller's promise.
            let buf = unsafe { arguments::bytes(buf, len) }?;
            arguments::range(file.len()?, len as u64)?;
            Ok(file.append(buf)? as i64)
        })
    })
}

/// Sets the file's size, in bytes, as an uncommitted change. A smaller size cuts the end off, a larger one
/// adds zeros. Returns 0, or -1: EBADF, EINVAL …
#[unsafe(no_mangle)]
pub extern "C" fn untorn_ftruncate(file: *mut untorn_file, size: u64) -> c_int {
    guard(-1, || {
        with_writable(file, |file| {
            file.set_len(arguments::offset(size)?)?;
            Ok(0)
        })
    })
}

/// Writes `len` zeros at `offset`, without a buffer; the file grows as needed. Returns 0, or -1: EBADF,
/// EINVAL, EFBIG …
#[unsafe(no_mangle)]
pub extern "C" fn untorn_zero(file: *mut untorn_file, offset: u64, len: u64) -> c_int {
    guard(-1, || {
        with_writable(file, |file| {
            arguments::range(offset, len)?;
            file.zero(offset, len)?;
            Ok(0)
        })
    })
}

/// Returns the file's size in bytes, uncommitted changes included, or -1 with an error.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_size(file: *const untorn_file) -> i64 {
    guard(-1, || with_file(file, |file| Ok(file.len()? as i64)))
}

/// Returns whether the file has uncommitted changes, stores to its map included. 1: it has; 0: it has none; -1: EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_has_changes(file: *const untorn_file) -> c_int {
    guard(-1, || with_file(file, |file| Ok(file.has_changes()?.into())))
}

/// Tells device and inode of the data file. A program recognises the file by them: for locks of its own, or to see that
/// the name has another file now. Returns 1, or 0: the commit that creates the file is on its way; or -1: EBADF, EFAULT.
///
/// # Safety
/// `device` and `inode` are NULL or point to writable numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_identity(file: *const untorn_file, device: *mut u64, inode: *mut u64) -> c_int {
    guard(-1, || {
        if device.is_null() || inode.is_null() {
            return Err(Failure::null("a number"));
        }
        let Some(found) = with_file(file, |file| Ok(file.identity()?))? else { return Ok(0) };
        // SAFETY: not NULL; the rest is the caller's promise.
        unsafe { (*device, *inode) = found };
        Ok(1)
    })
}

/// Tells whether an open file has every commit of its store, if it belongs to one, so that any program may read it.
/// Returns 1; or 0: its store must be opened or recovered first; or -1 with an error, such as EBADF. Looks at one
/// attribute of the file.
#[cfg(feature = "offline")]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_is_plain(fd: c_int) -> c_int {
    guard(-1, || {
        if fd < 0 {
            return Err(Failure { errno: libc::EBADF, ..Failure::invalid("no open descriptor".to_owned()) });
        }
        // SAFETY: used during this call only; the kernel refuses a number that is not open.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        let plain =
            untorn::offline::is_plain(file).map_err(|e| untorn::Error::io("look at", Path::new("a file"), e))?;
        Ok(plain.into())
    })
}

/// Returns the file's path, relative to its store's directory, to be freed with untorn_free(). NULL: EBADF,
/// ENOMEM.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_path(file: *const untorn_file) -> *mut c_char {
    guard(null_mut(), || with_file(file, |file| text::to_caller(file.path().as_os_str().as_bytes())))
}

/// Another handle of the store that a file belongs to; for a standalone file, of its private store. Close
/// the handle with untorn_store_release(), or the store with untorn_store_close(). NULL with EBADF.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_store_of(file: *const untorn_file) -> *mut untorn_store {
    guard(null_mut(), || with_file(file, |file| handle::insert(file.store())))
}

/// Commits all uncommitted changes of the file, made through any handle, as one. After the call has
/// returned 0 the changes survive the failures of the store's failure class: UNTORN_CLASS_POWER kernel
/// crashes and power cuts, UNTORN_CLASS_PROCESS the end of the process. A crash before or during the call
/// leaves all of the changes or none.
///
/// Returns 0, or -1: ENOSPC (nothing committed, try again), EIO (untorn_last_error() tells "not
/// committed" from "unknown until reopened"), EBUSY (the file is in a transaction), EBADF …
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_commit(file: *mut untorn_file) -> c_int {
    guard(-1, || {
        with_writable(file, |file| {
            file.commit()?;
            Ok(0)
        })
    })
}

/// Starts a commit like untorn_commit(). The changes made before the call belong to the commit, later changes do not.
/// The ticket reports when the commit is durable. Commits become durable in the order in which they were started.
/// NULL with an error.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_commit_async(file: *mut untorn_file) -> *mut untorn_ticket {
    guard(null_mut(), || with_writable(file, |file| handle::insert(file.commit_async()?)))
}

/// Discards all uncommitted changes of the file, made through any handle: the file is as of its last
/// commit. Returns 0, or -1: EBUSY (the file is in a transaction), EBADF …
#[unsafe(no_mangle)]
pub extern "C" fn untorn_rollback(file: *mut untorn_file) -> c_int {
    guard(-1, || {
        with_writable(file, |file| {
            file.rollback()?;
            Ok(0)
        })
    })
}
