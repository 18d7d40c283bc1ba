//! Exported functions: readers, snapshots, and files of snapshots.

use parking_lot::RwLock;
use std::ffi::{OsString, c_char, c_int, c_void};
use std::fs::File;
use std::mem::{offset_of, size_of};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use untorn::reader::{Snapshot, SnapshotFile};
use untorn::{Error, Reader};

use crate::boundary::arguments;
use crate::boundary::error::{Failure, Result, guard};
use crate::boundary::handle::{self, Handle, Handles, Kind};
use crate::boundary::text;
use crate::boundary::versioned::{self, Versioned};

/// A store that is open for reading only, beside the process that owns the store, or without one. Reading creates and
/// changes nothing, needs no right to write, and never makes the owner wait. Everything that is read is durable, and of
/// one commit; see docs/READERS.md.
#[allow(non_camel_case_types)]
pub struct untorn_reader {
    _opaque: (),
}

/// The files of a store as of one commit. The owner keeps the data of the snapshot until the snapshot and its files are
/// closed, or this process ends: across checkpoints, the end of the owner, and the next owner. A snapshot ends earlier
/// only if too much is kept, or the disk is full: its calls then fail with ESTALE (UNTORN_E_SNAPSHOT_EXPIRED), and
/// untorn_snapshot_refresh() moves it to the last commit. If the store was ejected, repaired or replaced, they fail with
/// ESTALE and UNTORN_E_SNAPSHOT_ENDED: open the store again. No call ever shows another commit.
#[allow(non_camel_case_types)]
pub struct untorn_snapshot {
    _opaque: (),
}

/// A file of a snapshot. The file stays as of the commit that the snapshot had when the file was opened, also after
/// untorn_snapshot_refresh() and untorn_snapshot_close().
#[allow(non_camel_case_types)]
pub struct untorn_snapshot_file {
    _opaque: (),
}

/// A file or directory that a snapshot has under a name.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct untorn_metadata {
    /// Set it to sizeof(untorn_metadata) before the call; the call fills that many bytes.
    pub size: usize,
    /// Length in bytes; 0 for a directory.
    pub len: u64,
    /// Permission bits.
    pub mode: u32,
    /// 1 for a directory, 0 for a file.
    pub is_directory: u32,
}

const _: () = assert!(size_of::<untorn_metadata>() == 24, "no padding");

// SAFETY: numbers.
unsafe impl Versioned for untorn_metadata {
    const NAME: &'static str = "untorn_metadata";
    const SIZE_MIN: usize = offset_of!(untorn_metadata, len);
}

impl Handle for Reader {
    const KIND: Kind = Kind::Reader;
    fn handles() -> &'static Handles<Reader> {
        static OPEN: Handles<Reader> = Handles::new();
        &OPEN
    }
}

/// The value behind a snapshot handle.
struct OpenSnapshot {
    reader: Reader,
    /// Each reading call keeps the snapshot with which it began.
    now: RwLock<Arc<Snapshot>>,
}

impl Handle for OpenSnapshot {
    const KIND: Kind = Kind::Snapshot;
    fn handles() -> &'static Handles<OpenSnapshot> {
        static OPEN: Handles<OpenSnapshot> = Handles::new();
        &OPEN
    }
}

impl Handle for SnapshotFile {
    const KIND: Kind = Kind::SnapshotFile;
    fn handles() -> &'static Handles<SnapshotFile> {
        static OPEN: Handles<SnapshotFile> = Handles::new();
        &OPEN
    }
}

fn snapshot_of(raw: *const untorn_snapshot) -> Result<Arc<Snapshot>> {
    Ok(handle::get::<OpenSnapshot, _>(raw)?.now.read().clone())
}

/// The interval at which a waiting call checks whether its handle was closed.
const LOOK: Duration = Duration::from_secs(1);

/// Waits in pieces until `within` returns a value, at most `timeout_ms` milliseconds; a negative number means no
/// limit.
pub(crate) fn wait<T>(timeout_ms: c_int, within: impl Fn(Duration) -> Result<Option<T>>) -> Result<Option<T>> {
    let at_most = u64::try_from(timeout_ms).map_or(Duration::MAX, Duration::from_millis);
    let start = Instant::now();
    loop {
        let left = at_most.saturating_sub(start.elapsed());
        let found = within(left.min(LOOK))?;
        if found.is_some() || left <= LOOK {
            return Ok(found);
        }
    }
}

/// Opens the store in the directory `path`, or the standalone file `path`, for reading only. Creates nothing, and
/// makes no other process wait: another process may own the store, before and afterwards.
///
/// Returns a handle, or NULL: ENOENT if there is no store, EPERM or EACCES if another user owns it, EBUSY if its
/// owner publishes nothing for readers, for example while it is opening the store, EOPNOTSUPP if its owner works in
/// UNTORN_CLASS_PROCESS, EUCLEAN, EMEDIUMTYPE, EPROTONOSUPPORT …; see untorn_error.
///
/// # Safety
/// `path` ends in NUL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_reader_open(path: *const c_char) -> *mut untorn_reader {
    guard(null_mut(), || {
        // SAFETY: the caller's promise.
        let path = unsafe { arguments::path(path, "the path")? };
        crate::boundary::log::start();
        handle::insert(Reader::open(path)?)
    })
}

/// Closes the handle. Snapshots that were taken through it, their files, and untorn_follow handles stay open. Returns
/// 0, or -1 with EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_reader_close(reader: *mut untorn_reader) -> c_int {
    guard(-1, || {
        drop(handle::take::<Reader, _>(reader)?);
        Ok(0)
    })
}

/// Waits until the commit with the number `lsn`, or a later one, is durable, at most `timeout_ms` milliseconds; -1:
/// without a limit. The owner finds the number in untorn_status.lsn. Returns 1: it is durable, and snapshots that are
/// taken from now on have it; 0: not yet; -1: EBADF (also when another thread closes the handle), or an error like
/// untorn_reader_open().
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_reader_wait_for(reader: *const untorn_reader, lsn: u64, timeout_ms: c_int) -> c_int {
    guard(-1, || {
        let within = |at_most| Ok(handle::get::<Reader, _>(reader)?.wait_for(lsn, at_most)?.then_some(()));
        Ok(wait(timeout_ms, within)?.is_some().into())
    })
}

/// Returns the whole contents of the file `path` as of the last durable commit.
///
/// `path` is relative to the store's directory. A NUL follows the contents, which are to be freed with untorn_free().
/// Stores the length, without the NUL, in `*len`; `len` may be NULL. NULL: ENOENT, EISDIR, EINVAL, ENOMEM, ESTALE,
/// EBADF …
///
/// # Safety
/// `path` ends in NUL; `len` is NULL or can be written to.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_reader_read(
    reader: *const untorn_reader,
    path: *const c_char,
    len: *mut usize,
) -> *mut c_char {
    guard(null_mut(), || {
        let reader = handle::get::<Reader, _>(reader)?;
        // SAFETY: the caller's promise.
        let bytes = reader.read(unsafe { arguments::path(path, "the path")? })?;
        let copy = text::to_caller(&bytes)?;
        // SAFETY: NULL, or the caller's promise.
        if let Some(len) = unsafe { len.as_mut() } {
            *len = bytes.len();
        }
        Ok(copy)
    })
}

/// Takes a snapshot of all files as of the last durable commit. The commit is never older than one that was seen
/// through this reader before. Returns a handle, or NULL with an error like untorn_reader_open().
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_snapshot_take(reader: *const untorn_reader) -> *mut untorn_snapshot {
    guard(null_mut(), || {
        let reader = Reader::clone(&*handle::get::<Reader, _>(reader)?);
        let now = RwLock::new(Arc::new(reader.snapshot()?));
        handle::insert(OpenSnapshot { reader, now })
    })
}

/// Moves the snapshot to the last durable commit. Files that are open stay as they are. Returns 0, or -1 with an
/// error like untorn_reader_open(): the snapshot is then as before.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_snapshot_refresh(snapshot: *mut untorn_snapshot) -> c_int {
    guard(-1, || {
        let open = handle::get::<OpenSnapshot, _>(snapshot)?;
        let fresh = open.reader.snapshot()?;
        let mut now = open.now.write();
        // Another thread may have taken a newer one.
        if fresh.lsn() >= now.lsn() {
            *now = Arc::new(fresh);
        }
        Ok(0)
    })
}

/// Closes the snapshot; its files stay open. Returns 0, or -1 with EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_snapshot_close(snapshot: *mut untorn_snapshot) -> c_int {
    guard(-1, || {
        drop(handle::take::<OpenSnapshot, _>(snapshot)?);
        Ok(0)
    })
}

/// Returns the number of the commit that the snapshot shows, or -1 with EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_snapshot_lsn(snapshot: *const untorn_snapshot) -> i64 {
    guard(-1, || Ok(snapshot_of(snapshot)?.lsn().cast_signed()))
}

/// Checks whether the snapshot is still held. Returns 0: everything that was read so far is of its commit, and more
/// can be read; or -1 with ESTALE or EBADF.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_snapshot_check(snapshot: *const untorn_snapshot) -> c_int {
    guard(-1, || {
        snapshot_of(snapshot)?.check()?;
        Ok(0)
    })
}

/// Returns the names in the directory `path`, sorted, as an array that ends in NULL.
///
/// The array and its names are freed with one call of untorn_free(). "" is the store's directory; the snapshot of a
/// standalone file has only the file's name there. Untorn's own directories are left out. NULL: ESTALE, ENOENT,
/// ENOTDIR, EINVAL, EBADF …
///
/// # Safety
/// `path` ends in NUL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_snapshot_list(
    snapshot: *const untorn_snapshot,
    path: *const c_char,
) -> *mut *mut c_char {
    guard(null_mut(), || {
        let snapshot = snapshot_of(snapshot)?;
        // SAFETY: the caller's promise.
        let names = snapshot.list(unsafe { arguments::path_or_top(path)? })?;
        names_to_caller(names)
    })
}

/// Copies names into one block of the C library's memory: pointers to them, NULL, and the names.
fn names_to_caller(names: Vec<OsString>) -> Result<*mut *mut c_char> {
    let mut block = text::Block::new(size_of::<*mut c_char>() * (names.len() + 1));
    let at: Vec<usize> = names.into_iter().map(|name| block.text(&name.into_vec())).collect();
    let all = block.to_caller()?;
    let pointers = all.cast::<*mut c_char>();
    for (n, at) in at.into_iter().enumerate() {
        // SAFETY: the block begins with so many pointers, and has the text at that place.
        unsafe { pointers.add(n).write(all.add(at).cast()) };
    }
    Ok(pointers)
}

/// Describes the file or directory `path`; "" is the store's directory. Fills `metadata`, whose member `size` the
/// caller has set. Returns 0, or -1: ESTALE, ENOENT, EINVAL, EFAULT, EBADF …
///
/// # Safety
/// `path` ends in NUL; `metadata` is NULL or points to as many writable bytes as its first member says.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_snapshot_metadata(
    snapshot: *const untorn_snapshot,
    path: *const c_char,
    metadata: *mut untorn_metadata,
) -> c_int {
    guard(-1, || {
        let snapshot = snapshot_of(snapshot)?;
        // SAFETY: the caller's promise.
        let (path, size) = unsafe { (arguments::path_or_top(path)?, versioned::checked_size(metadata)?) };
        let found = snapshot.metadata(path)?;
        let filled = untorn_metadata {
            size: size_of::<untorn_metadata>(),
            len: found.len,
            mode: found.mode,
            is_directory: found.is_directory.into(),
        };
        // SAFETY: not NULL, as was just checked; the rest is the caller's promise. There is no padding.
        unsafe { versioned::write(&filled, metadata, size) };
        Ok(0)
    })
}

/// Opens the file `path` of the snapshot, relative to the store's directory. A standalone file is opened by its own
/// name. Returns a handle, or NULL: ESTALE, ENOENT, EISDIR, EINVAL, EBADF …
///
/// # Safety
/// `path` ends in NUL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_snapshot_open(
    snapshot: *const untorn_snapshot,
    path: *const c_char,
) -> *mut untorn_snapshot_file {
    guard(null_mut(), || {
        let snapshot = snapshot_of(snapshot)?;
        // SAFETY: the caller's promise.
        handle::insert(snapshot.open(unsafe { arguments::path(path, "the path")? })?)
    })
}

/// Reads up to `len` bytes at `offset`. Returns the number of bytes read, fewer than `len` only at the end of the
/// file, or -1: ESTALE (the buffer may then hold anything), EBADF, EFAULT, EINVAL, EIO …
///
/// # Safety
/// `buf` has room for `len` bytes.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_snapshot_pread(
    file: *const untorn_snapshot_file,
    buf: *mut c_void,
    len: usize,
    offset: u64,
) -> libc::ssize_t {
    guard(-1, || {
        let file = handle::get::<SnapshotFile, _>(file)?;
        // SAFETY: the caller's promise.
        let buf = unsafe { arguments::bytes_mut(buf, len)? };
        Ok(file.read_at(buf, arguments::offset(offset)?)? as libc::ssize_t)
    })
}

/// Copies the whole file to the descriptor `fd`, which is open for reading and writing and of an empty regular file.
/// Blocks are shared where the file system supports that; zeros become holes. Nothing is flushed, and the descriptor's
/// own offset is not used. Returns the number of bytes, or -1: ESTALE, ENOSPC, EBADF, EIO … After an error the
/// descriptor's file may hold anything.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_snapshot_copy(file: *const untorn_snapshot_file, fd: c_int) -> i64 {
    guard(-1, || {
        let file = handle::get::<SnapshotFile, _>(file)?;
        // SAFETY: takes a number.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        if flags < 0 {
            return Err(Failure::bad_handle("descriptor"));
        }
        if flags & libc::O_ACCMODE != libc::O_RDWR {
            return Err(Failure {
                errno: libc::EBADF,
                ..Failure::invalid("the descriptor is not for reading and writing")
            });
        }
        // SAFETY: open, as was just checked; that it stays open during the call is the caller's business.
        let to = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().map(File::from);
        let to = to.map_err(|e| Error::io("duplicate", "the descriptor", e))?;
        let meta = to.metadata().map_err(|e| Error::io("look at", "the descriptor", e))?;
        if !meta.is_file() || meta.len() > 0 {
            return Err(Failure::invalid("the descriptor is not of an empty regular file"));
        }
        Ok(file.copy_to(&to, &mut |_| {})?.cast_signed())
    })
}

/// Returns the file's size in bytes, or -1: ESTALE, EBADF …
#[unsafe(no_mangle)]
pub extern "C" fn untorn_snapshot_size(file: *const untorn_snapshot_file) -> i64 {
    guard(-1, || Ok(handle::get::<SnapshotFile, _>(file)?.len()?.cast_signed()))
}

/// Closes the file. Returns 0, or -1 with EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_snapshot_file_close(file: *mut untorn_snapshot_file) -> c_int {
    guard(-1, || {
        drop(handle::take::<SnapshotFile, _>(file)?);
        Ok(0)
    })
}
