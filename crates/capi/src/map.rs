//! Exported functions: maps.

use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::ptr::null_mut;
use std::sync::{PoisonError, RwLock, TryLockError};

use untorn::{Map, MapOptions, Tracker};

use crate::arguments;
use crate::error::{Failure, Result, guard};
use crate::file::{untorn_file, with_open};
use crate::handle;
use crate::ticket::untorn_ticket;
use crate::versioned::{self, Versioned};

/// A mapped file, or a part of it. All maps of one file, and its handles, share one view: what one
/// stores the others see at once.
#[allow(non_camel_case_types)]
pub struct untorn_map {
    _opaque: (),
}

/// Tracker: the best that works here. The default.
pub const UNTORN_TRACKER_ANY: u32 = 0;
/// Tracker: PAGEMAP_SCAN with an asynchronous userfaultfd; Linux 6.7 or newer, where userfaultfd is
/// permitted. A commit costs what was stored to.
pub const UNTORN_TRACKER_SCAN: u32 = 1;
/// Tracker: /proc/self/pagemap, on any kernel. A commit looks at all pages that were stored to since
/// they were last dropped.
pub const UNTORN_TRACKER_PAGEMAP: u32 = 2;

/// Map flag: a promise that no thread stores to the file's maps during untorn_map_sync(). Commits may
/// then drop pages that the data file holds as well, and memory follows what is in use. The first map of
/// a file decides.
pub const UNTORN_MAP_QUIET: u32 = 1;
/// Map flag, for finding bugs: untorn_map_sync() looks for stores that came while it committed, and
/// reports the first (UNTORN_E_RACING_STORE).
pub const UNTORN_MAP_DEBUG_RACES: u32 = 2;
/// Map flag: read the file into memory now.
pub const UNTORN_MAP_POPULATE: u32 = 4;
/// Map flag: ask for huge pages, where kernel and file system have them.
pub const UNTORN_MAP_HUGE_PAGES: u32 = 8;
/// Map flag: the map may reach behind the end of the file. What is behind the end can be accessed when
/// the file has grown over it (until then: SIGSEGV).
pub const UNTORN_MAP_BEYOND_END: u32 = 16;

const ALL_FLAGS: u32 =
    UNTORN_MAP_QUIET | UNTORN_MAP_DEBUG_RACES | UNTORN_MAP_POPULATE | UNTORN_MAP_HUGE_PAGES | UNTORN_MAP_BEYOND_END;

/// How to map a file. Zero is the default of everything but `size`, so both
/// untorn_map_options_init(&options, sizeof options) and `untorn_map_options options = {.size = sizeof
/// options};` give defaults: the whole file, as it grows.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct untorn_map_options {
    /// sizeof(untorn_map_options), as your compiler saw it: newer libraries may know more members.
    pub size: usize,
    /// Where in the file the map begins, in bytes.
    pub offset: u64,
    /// Bytes that the map covers. 0: to the end of the file, as it grows.
    pub len: u64,
    /// Bytes of address space to reserve; the file cannot outgrow them while it is mapped. They cost no
    /// memory. 0: 64 GiB or four times the file's size, whichever is more, or as much as is to be had.
    pub address_space: u64,
    /// Where in memory offset 0 of the file is to be, a multiple of the page size. NULL: anywhere.
    pub address: *mut c_void,
    /// The most bytes of pages that the program will have stored to and not dropped; needed for files
    /// that are larger than memory. 0: the file's size.
    pub dirty_max: u64,
    /// UNTORN_TRACKER_ANY, UNTORN_TRACKER_SCAN or UNTORN_TRACKER_PAGEMAP.
    pub tracker: u32,
    /// UNTORN_MAP_QUIET, UNTORN_MAP_DEBUG_RACES, UNTORN_MAP_POPULATE, UNTORN_MAP_HUGE_PAGES,
    /// UNTORN_MAP_BEYOND_END, or'ed.
    pub flags: u32,
}

const _: () = assert!(size_of::<untorn_map_options>() == 56, "members may be added at the end, never removed");

// SAFETY: numbers and a pointer.
unsafe impl Versioned for untorn_map_options {
    const NAME: &'static str = "untorn_map_options";
    const SIZE_MIN: usize = 56;
}

/// Reads a caller's options, of whatever version; NULL means defaults.
///
/// # Safety
/// `options` is NULL or points to as many bytes as its first member, `size`, says.
unsafe fn read(options: *const untorn_map_options) -> Result<MapOptions> {
    // SAFETY: the caller's promise.
    unsafe { versioned::read(options)? }.map_or(Ok(MapOptions::new()), convert)
}

fn convert(options: untorn_map_options) -> Result<MapOptions> {
    let flags = options.flags;
    if flags & !ALL_FLAGS != 0 {
        return Err(Failure::invalid(format!("unknown bits in the map flags {flags:#x}")));
    }
    arguments::range(options.offset, options.len)?;
    let has = |flag| flags & flag != 0;
    let mut result = MapOptions::new()
        .offset(options.offset)
        .quiet(has(UNTORN_MAP_QUIET))
        .debug_races(has(UNTORN_MAP_DEBUG_RACES))
        .populate(has(UNTORN_MAP_POPULATE))
        .huge_pages(has(UNTORN_MAP_HUGE_PAGES))
        .beyond_end(has(UNTORN_MAP_BEYOND_END));
    if options.len != 0 {
        result = result.len(options.len);
    }
    if options.address_space != 0 {
        result = result.address_space(options.address_space);
    }
    if !options.address.is_null() {
        result = result.address(options.address.addr());
    }
    if options.dirty_max != 0 {
        result = result.dirty_max(options.dirty_max);
    }
    match options.tracker {
        UNTORN_TRACKER_ANY => Ok(result),
        UNTORN_TRACKER_SCAN => Ok(result.tracker(Tracker::Scan)),
        UNTORN_TRACKER_PAGEMAP => Ok(result.tracker(Tracker::PageMap)),
        other => Err(Failure::invalid(format!("there is no tracker {other}"))),
    }
}

/// What a map handle stands for; locked as a file is.
pub(crate) struct OpenMap {
    map: RwLock<Option<Map>>,
    read_only: bool,
}

/// Makes one call on a map.
fn with_map<R>(raw: *const untorn_map, call: impl FnOnce(&Map) -> Result<R>) -> Result<R> {
    let entry = handle::get::<OpenMap, _>(raw)?;
    let guard = match entry.map.try_read() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        // Only unmapping excludes others.
        Err(TryLockError::WouldBlock) => return Err(Failure::bad_handle("map")),
    };
    call(guard.as_ref().ok_or_else(|| Failure::bad_handle("map"))?)
}

/// The same, for a call that changes the file.
fn with_writable<R>(raw: *const untorn_map, call: impl FnOnce(&Map) -> Result<R>) -> Result<R> {
    if handle::get::<OpenMap, _>(raw)?.read_only {
        return Err(Failure { errno: libc::EBADF, ..Failure::invalid("the file was opened with UNTORN_RDONLY") });
    }
    with_map(raw, call)
}

/// Sets all members to their defaults. `size` is sizeof(untorn_map_options). 0, or -1 with EFAULT or
/// EINVAL.
///
/// # Safety
/// `options` is NULL or points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_map_options_init(options: *mut untorn_map_options, size: usize) -> c_int {
    guard(-1, || {
        // SAFETY: the caller's promise.
        unsafe { versioned::init(options, size)? };
        Ok(0)
    })
}

/// Maps an open file: load from and store to untorn_map_address() as you like; nothing reaches the file
/// before a commit, and a commit is always of the whole file, all or nothing. The map stays when the
/// file's handle is closed. No thread should store while a commit runs: a store that does is in it or
/// in the next one.
///
/// `options` NULL: the whole file, as it grows. Give the map back with untorn_unmap(). NULL: ENOMEM
/// (memory or address space; the message names the limit), EINVAL (the range is behind the end of the
/// file, or the file is mapped in another way), EFBIG, EOPNOTSUPP (the tracker does not work here), EBADF …
///
/// # Safety
/// `options` is NULL or as large as its `size` says.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_map_file(
    file: *mut untorn_file,
    options: *const untorn_map_options,
) -> *mut untorn_map {
    guard(null_mut(), || {
        with_open(file, |file, read_only| {
            // SAFETY: the caller's promise.
            let options = unsafe { read(options) }?;
            handle::insert(OpenMap { map: RwLock::new(Some(file.map_with(&options)?)), read_only })
        })
    })
}

/// Where the map begins in memory; the same until untorn_unmap(). NULL with EBADF. Behind
/// untorn_map_len() bytes, rounded up to whole pages, memory cannot be accessed (SIGSEGV).
#[unsafe(no_mangle)]
pub extern "C" fn untorn_map_address(map: *const untorn_map) -> *mut c_void {
    guard(null_mut(), || with_map(map, |map| Ok(map.as_mut_ptr().cast())))
}

/// Bytes of the map that can be accessed now: those asked for, or up to the end of the file. -1 with
/// EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_map_len(map: *const untorn_map) -> i64 {
    guard(-1, || with_map(map, |map| Ok(map.len() as i64)))
}

/// How stores are found: UNTORN_TRACKER_SCAN or UNTORN_TRACKER_PAGEMAP. -1 with EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_map_tracker(map: *const untorn_map) -> c_int {
    guard(-1, || {
        with_map(map, |map| {
            Ok(match map.tracker()? {
                Tracker::Scan => UNTORN_TRACKER_SCAN,
                Tracker::PageMap => UNTORN_TRACKER_PAGEMAP,
            } as c_int)
        })
    })
}

/// Commits all uncommitted changes of the file, stores and writes alike, with the promise of
/// untorn_commit(). Returns 0, or -1 with an error as untorn_commit(); also EEXIST (another program
/// changed or truncated the file), EBUSY with UNTORN_E_RACING_STORE (see UNTORN_MAP_DEBUG_RACES).
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_map_sync(map: *mut untorn_map) -> c_int {
    guard(-1, || {
        with_writable(map, |map| {
            map.msync()?;
            Ok(0)
        })
    })
}

/// Starts a commit as untorn_map_sync(): what is stored by now belongs to it; the ticket tells when it
/// is durable. NULL with an error.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_map_sync_async(map: *mut untorn_map) -> *mut untorn_ticket {
    guard(null_mut(), || with_writable(map, |map| handle::insert(map.msync_async()?)))
}

/// Forgets all uncommitted changes of the file, in memory, too: it is as at its last commit. Returns
/// 0, or -1: EBUSY (the file is in a transaction), EBADF …
#[unsafe(no_mangle)]
pub extern "C" fn untorn_map_rollback(map: *mut untorn_map) -> c_int {
    guard(-1, || {
        with_writable(map, |map| {
            map.rollback()?;
            Ok(0)
        })
    })
}

/// Sets the file's size, in bytes, as untorn_truncate(). Addresses stay. Memory behind a smaller end
/// cannot be accessed any more; behind the old end of a larger one there are zeros. Returns 0, or -1:
/// ENOMEM (beyond the address space reserved), EINVAL, EBADF …
#[unsafe(no_mangle)]
pub extern "C" fn untorn_map_resize(map: *mut untorn_map, size: u64) -> c_int {
    guard(-1, || {
        with_writable(map, |map| {
            map.resize(arguments::offset(size)?)?;
            Ok(0)
        })
    })
}

/// Says that `len` bytes at `offset` of the map may have changed in a way that no tracker sees: by a
/// device that writes to memory itself, as with registered io_uring buffers and O_DIRECT reads that
/// are on their way during a commit. Returns 0, or -1: EINVAL (not inside the map), EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_mark_dirty(map: *mut untorn_map, offset: u64, len: u64) -> c_int {
    guard(-1, || {
        with_writable(map, |map| {
            map.mark_dirty(offset, len)?;
            Ok(0)
        })
    })
}

/// Gives memory back: brings the data file up to what is committed, then drops all pages that it holds
/// as well. NO THREAD may store to the file's maps during this call: a store could be lost. Returns
/// 0, or -1 with an error as untorn_store_checkpoint().
#[unsafe(no_mangle)]
pub extern "C" fn untorn_quiesce(map: *mut untorn_map) -> c_int {
    guard(-1, || {
        with_map(map, |map| {
            map.quiesce()?;
            Ok(0)
        })
    })
}

/// Ends the map; with the last map of a file its memory cannot be accessed any more. What was stored
/// and not committed stays an uncommitted change of the file; it is DISCARDED if the map was the file's
/// last handle. Waits for calls on this map that run in other threads. Returns 0, or -1 with an error;
/// the handle is closed in either case.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_unmap(map: *mut untorn_map) -> c_int {
    guard(-1, || {
        let entry = handle::take::<OpenMap, _>(map)?;
        let map = entry.map.write().unwrap_or_else(PoisonError::into_inner).take();
        map.ok_or_else(|| Failure::bad_handle("map"))?.unmap()?;
        Ok(0)
    })
}
