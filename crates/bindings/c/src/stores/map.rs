//! Exported functions: mapped files.

use parking_lot::RwLock;
use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::ptr::null_mut;

use untorn::{Map, MapOptions, TrackerKind};

use crate::boundary::arguments;
use crate::boundary::error::{Failure, Result, guard};
use crate::boundary::handle::{self, Handle, Handles, Kind};
use crate::boundary::versioned::{self, Versioned};
use crate::stores::file::{untorn_file, with_open};
use crate::stores::ticket::untorn_ticket;

/// A map of a file, or of a part of a file. All maps and handles of one file show the same contents: a
/// store through one map is seen at once through all others.
#[allow(non_camel_case_types)]
pub struct untorn_map {
    _opaque: (),
}

/// Tracker: the best one that works on this system. The default.
pub const UNTORN_TRACKER_ANY: u32 = 0;
/// Tracker: PAGEMAP_SCAN with an asynchronous userfaultfd; Linux 6.7 or newer, where userfaultfd is
/// permitted. The cost of a commit follows the number of pages stored to since the last commit.
pub const UNTORN_TRACKER_SCAN: u32 = 1;
/// Tracker: /proc/self/pagemap, on any kernel. A commit compares all pages that were stored to since they
/// were last dropped from memory.
pub const UNTORN_TRACKER_PAGEMAP: u32 = 2;
/// Tracker: explicit dirty ranges. The program says which bytes it changes, by untorn_map_mark_dirty() or
/// untorn_heap_mark_dirty(). A commit has exactly these bytes, and costs as much as they do. A store that the program
/// did not mark is in NO commit: it stays in memory, and is gone when the file is opened again.
pub const UNTORN_TRACKER_EXPLICIT: u32 = 3;

/// Map flag: the program promises that no thread stores to the file's maps during untorn_map_msync().
/// Commits may then drop pages that are also in the data file, and memory use follows the working set.
/// Only the flag of a file's first map counts.
pub const UNTORN_MAP_QUIET: u32 = 1;
/// Map flag, for debugging: untorn_map_msync() looks for stores that were made during the commit, and
/// reports the first one (UNTORN_E_RACING_STORE).
pub const UNTORN_MAP_DEBUG_RACES: u32 = 2;
/// Map flag: read the file into memory at once.
pub const UNTORN_MAP_POPULATE: u32 = 4;
/// Map flag: ask for huge pages, where kernel and file system have them.
pub const UNTORN_MAP_HUGE_PAGES: u32 = 8;
/// Map flag: the map may extend behind the end of the file. Memory behind the end can be accessed once the
/// file has grown that far; until then an access is SIGSEGV.
pub const UNTORN_MAP_BEYOND_END: u32 = 16;
/// Map flag, for debugging with UNTORN_TRACKER_EXPLICIT: a commit is refused (EINVAL) if the program stored to bytes
/// that it did not mark by untorn_map_mark_dirty(); the message names their addresses. No thread may store while a
/// commit runs. The environment variable UNTORN_DEBUG_UNMARKED=1 has the same effect without the flag;
/// UNTORN_DEBUG_UNMARKED=warn prints the places instead, once each.
pub const UNTORN_MAP_DEBUG_UNMARKED: u32 = 32;

const ALL_FLAGS: u32 = UNTORN_MAP_QUIET
    | UNTORN_MAP_DEBUG_RACES
    | UNTORN_MAP_POPULATE
    | UNTORN_MAP_HUGE_PAGES
    | UNTORN_MAP_BEYOND_END
    | UNTORN_MAP_DEBUG_UNMARKED;

/// How to map a file. Zero is the default of every member but `size`. So both
/// untorn_map_options_init(&options, sizeof options) and `untorn_map_options options = {.size = sizeof
/// options};` set the defaults: a map of the whole file, which grows with the file.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct untorn_map_options {
    /// sizeof(untorn_map_options) of the header that the program was compiled with.
    pub size: usize,
    /// Offset in the file at which the map begins, in bytes.
    pub offset: u64,
    /// Length of the map, in bytes. 0: to the end of the file, also when the file grows.
    pub len: u64,
    /// Bytes of address space to reserve; a mapped file cannot grow larger. Address space costs no memory.
    /// 0: 64 GiB or four times the file's size, whichever is more, or less if the process cannot have as
    /// much.
    pub address_space: u64,
    /// The address of the file's offset 0, a multiple of the page size. NULL: any address.
    pub address: *mut c_void,
    /// The most bytes of pages that are changed in memory at any time. Needed for files that are larger
    /// than memory. 0: the file's size.
    pub dirty_max: u64,
    /// UNTORN_TRACKER_ANY, UNTORN_TRACKER_SCAN, UNTORN_TRACKER_PAGEMAP or UNTORN_TRACKER_EXPLICIT.
    pub tracker: u32,
    /// UNTORN_MAP_QUIET, UNTORN_MAP_DEBUG_RACES, UNTORN_MAP_POPULATE, UNTORN_MAP_HUGE_PAGES,
    /// UNTORN_MAP_BEYOND_END, UNTORN_MAP_DEBUG_UNMARKED, or'ed.
    pub flags: u32,
}

const _: () = assert!(size_of::<untorn_map_options>() == 56, "members may be added at the end, never removed");

// SAFETY: numbers and a pointer.
unsafe impl Versioned for untorn_map_options {
    const NAME: &'static str = "untorn_map_options";
    const SIZE_MIN: usize = 56;
}

/// Reads a caller's options, of any version; NULL means defaults.
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
        .debug_unmarked(has(UNTORN_MAP_DEBUG_UNMARKED))
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
    Ok(tracker_of(options.tracker)?.map_or(result, |tracker| result.tracker(tracker)))
}

/// The tracker with a number. None: the best one that works.
pub(crate) fn tracker_of(number: u32) -> Result<Option<TrackerKind>> {
    match number {
        UNTORN_TRACKER_ANY => Ok(None),
        UNTORN_TRACKER_SCAN => Ok(Some(TrackerKind::Scan)),
        UNTORN_TRACKER_PAGEMAP => Ok(Some(TrackerKind::PageMap)),
        UNTORN_TRACKER_EXPLICIT => Ok(Some(TrackerKind::Explicit)),
        other => Err(Failure::invalid(format!("there is no tracker {other}"))),
    }
}

/// The value behind a map handle. Calls share the lock while they run; closing takes it exclusively.
struct OpenMap {
    map: RwLock<Option<Map>>,
    read_only: bool,
}

impl Handle for OpenMap {
    const KIND: Kind = Kind::Map;
    fn handles() -> &'static Handles<OpenMap> {
        static OPEN: Handles<OpenMap> = Handles::new();
        &OPEN
    }
}

/// Makes one call on a map.
fn with_map<R>(raw: *const untorn_map, call: impl FnOnce(&Map) -> Result<R>) -> Result<R> {
    let entry = handle::get::<OpenMap, _>(raw)?;
    // Only closing takes the lock exclusively.
    let guard = entry.map.try_read().ok_or_else(|| Failure::bad_handle("map"))?;
    call(guard.as_ref().ok_or_else(|| Failure::bad_handle("map"))?)
}

/// Makes one call that changes the file; a map of a read-only handle is refused.
fn with_writable<R>(raw: *const untorn_map, call: impl FnOnce(&Map) -> Result<R>) -> Result<R> {
    if handle::get::<OpenMap, _>(raw)?.read_only {
        return Err(Failure { errno: libc::EBADF, ..Failure::invalid("the file was opened with UNTORN_RDONLY") });
    }
    with_map(raw, call)
}

/// Sets all members to their defaults. `size` is sizeof(untorn_map_options). Returns 0, or -1 with EFAULT
/// or EINVAL.
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

/// Maps an open file. The program loads from and stores to the memory at untorn_map_address(). No store
/// reaches the file before a commit, and a commit is always of the whole file, all or nothing. The map stays
/// open when the file's handle is closed. No thread should store while a commit runs: such a store belongs
/// to that commit or to the next one.
///
/// `options` NULL: a map of the whole file, which grows with the file. Close the map with
/// untorn_map_close(). NULL: ENOMEM (memory or address space; the message names the limit), EINVAL (the
/// range is behind the end of the file, or the file is mapped in another way), EFBIG, EOPNOTSUPP (the
/// tracker does not work on this system), EBADF …
///
/// # Safety
/// `options` is NULL or as large as its `size` says.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_map_open(
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

/// Returns the address of the map, which does not change until untorn_map_close(). NULL with EBADF. An
/// access behind untorn_map_len() bytes, rounded up to whole pages, is SIGSEGV.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_map_address(map: *const untorn_map) -> *mut c_void {
    guard(null_mut(), || with_map(map, |map| Ok(map.as_mut_ptr().cast())))
}

/// Returns the number of bytes of the map that can be accessed now: its length, but not more than up to the
/// end of the file. -1 with EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_map_len(map: *const untorn_map) -> i64 {
    guard(-1, || with_map(map, |map| Ok(map.len() as i64)))
}

/// Returns how stores are found: UNTORN_TRACKER_SCAN, UNTORN_TRACKER_PAGEMAP or UNTORN_TRACKER_EXPLICIT. -1 with
/// EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_map_tracker(map: *const untorn_map) -> c_int {
    guard(-1, || {
        with_map(map, |map| {
            Ok(match map.tracker()? {
                TrackerKind::Scan => UNTORN_TRACKER_SCAN,
                TrackerKind::PageMap => UNTORN_TRACKER_PAGEMAP,
                TrackerKind::Explicit => UNTORN_TRACKER_EXPLICIT,
            } as c_int)
        })
    })
}

/// Commits all uncommitted changes of the file, stores and writes alike, durable as by untorn_commit().
/// Returns 0, or -1 with an error as untorn_commit(); also EEXIST (another program changed or truncated the
/// file), EBUSY with UNTORN_E_RACING_STORE (see UNTORN_MAP_DEBUG_RACES).
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_map_msync(map: *mut untorn_map) -> c_int {
    guard(-1, || {
        with_writable(map, |map| {
            map.msync()?;
            Ok(0)
        })
    })
}

/// Starts a commit like untorn_map_msync(). All stores made before the call belong to the commit. The ticket reports
/// when the commit is durable. NULL with an error.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_map_msync_async(map: *mut untorn_map) -> *mut untorn_ticket {
    guard(null_mut(), || with_writable(map, |map| handle::insert(map.msync_async()?)))
}

/// Discards all uncommitted changes of the file, also in memory: the file is as of its last commit.
/// Returns 0, or -1: EBUSY (the file is in a transaction), EBADF …
#[unsafe(no_mangle)]
pub extern "C" fn untorn_map_rollback(map: *mut untorn_map) -> c_int {
    guard(-1, || {
        with_writable(map, |map| {
            map.rollback()?;
            Ok(0)
        })
    })
}

/// Sets the file's size, in bytes, like untorn_ftruncate(). The map keeps its address. If the file shrinks, memory
/// behind its new end can no longer be accessed; if it grows, the new bytes are zeros. Returns 0, or -1: ENOMEM
/// (beyond the reserved address space), EINVAL, EBADF …
#[unsafe(no_mangle)]
pub extern "C" fn untorn_map_resize(map: *mut untorn_map, size: u64) -> c_int {
    guard(-1, || {
        with_writable(map, |map| {
            map.resize(arguments::offset(size)?)?;
            Ok(0)
        })
    })
}

/// Marks `len` bytes at `address` in the map as changed: they are in the next commit. With UNTORN_TRACKER_EXPLICIT a
/// commit has exactly the bytes that were marked since the last commit, and a rollback undoes exactly these. The other
/// trackers find stores by themselves, except those of a device that writes to memory, as with registered io_uring
/// buffers, and with O_DIRECT reads that run during a commit. The call may come before or after the store, from any
/// thread; both must be on the same side of a commit: if another thread may commit between them, make the call after
/// the store. Returns 0, or -1: EINVAL (not inside the map, nothing was marked), EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_map_mark_dirty(map: *mut untorn_map, address: *const c_void, len: usize) -> c_int {
    guard(-1, || {
        with_writable(map, |map| {
            map.mark_dirty(address.cast(), len)?;
            Ok(0)
        })
    })
}

/// Reclaims memory: applies all committed changes to the data file, then drops every page that the data
/// file also holds. NO THREAD may store to the file's maps during this call: a store could be lost.
/// Returns 0, or -1 with an error as untorn_store_checkpoint().
#[unsafe(no_mangle)]
pub extern "C" fn untorn_map_reclaim(map: *mut untorn_map) -> c_int {
    guard(-1, || {
        with_map(map, |map| {
            map.reclaim()?;
            Ok(0)
        })
    })
}

/// Closes the map. When the file's last map is closed, the memory can no longer be accessed. Uncommitted
/// stores stay uncommitted changes of the file; they are DISCARDED if the map was the file's last handle.
/// Waits for calls on this map that run in other threads. Returns 0, or -1 with an error; the handle is
/// closed in either case.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_map_close(map: *mut untorn_map) -> c_int {
    guard(-1, || {
        let entry = handle::take::<OpenMap, _>(map)?;
        let map = entry.map.write().take();
        map.ok_or_else(|| Failure::bad_handle("map"))?.unmap()?;
        Ok(0)
    })
}
