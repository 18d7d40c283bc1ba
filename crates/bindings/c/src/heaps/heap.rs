//! Exported functions: open, change, commit and close persistent heaps.

use std::ffi::{c_char, c_int, c_void};
use std::mem::size_of;
use std::ptr::null_mut;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

use untorn::heap::{Cuts, Heap, HeapOptions, LiveStart, WeakHeap};
use untorn::{FailureClass, StoreOptions};

use crate::boundary::arguments;
use crate::boundary::error::{Failure, Result, guard, guard_status};
use crate::boundary::handle::{self, Handle, Handles, Kind};
use crate::boundary::options::{self, UNTORN_CLASS_MEMORY, UNTORN_CLASS_PROCESS, UNTORN_CREATE, untorn_options};
use crate::boundary::versioned::{self, Versioned};
use crate::stores::file::{untorn_file, with_files};
use crate::stores::map::tracker_of;
use crate::stores::store::untorn_store;
use crate::stores::ticket::untorn_ticket;

/// A persistent heap: memory in a file that is always mapped at the same address, so that pointers in the
/// heap stay valid after a restart.
#[allow(non_camel_case_types)]
pub struct untorn_heap {
    _opaque: (),
}

impl Handle for Heap {
    const KIND: Kind = Kind::Heap;
    fn handles() -> &'static Handles<Heap> {
        static OPEN: Handles<Heap> = Handles::new();
        &OPEN
    }
}

/// Heap flag, for debugging: a commit reports a store that another thread made during the commit, with the
/// store's address (UNTORN_E_RACING_STORE).
pub const UNTORN_HEAP_DEBUG_RACES: u32 = 2;

/// Heap flag, a promise: no thread stores to the heap during a commit, unless the thread is between
/// untorn_heap_begin() and untorn_heap_end(). Then commits drop memory that the file holds as well, and memory use
/// follows the working set. A store that breaks the promise can be undone in memory.
pub const UNTORN_HEAP_QUIET: u32 = 4;

/// Heap flag, for debugging: allocating or freeing outside of untorn_heap_begin() and untorn_heap_end() fails with
/// EINVAL, and so does the next commit.
pub const UNTORN_HEAP_DEBUG_GUARDS: u32 = 8;

/// Heap flag, for debugging: a commit is refused (EINVAL) if the heap has a pointer into other memory of this
/// process; the message names the allocation and the offset. The commit reads the whole heap.
pub const UNTORN_HEAP_DEBUG_POINTERS: u32 = 16;

/// Heap flag, for debugging with UNTORN_TRACKER_EXPLICIT: like UNTORN_MAP_DEBUG_UNMARKED.
pub const UNTORN_HEAP_DEBUG_UNMARKED: u32 = 32;

/// Heap flag: a live heap. Its working memory outlives the process, however the process ends, until the machine goes
/// down; the next opening with this flag continues with that memory. A commit is a cut: the state to which the heap
/// goes back after a power cut. untorn_heap_live_start() says how the heap began. Not with UNTORN_TRACKER_EXPLICIT. See
/// docs/LIVE_HEAPS.md.
pub const UNTORN_HEAP_LIVE: u32 = 64;

/// Heap flag, with UNTORN_HEAP_LIVE: the program calls untorn_section_log() before each store that it makes in a
/// section. For programs that are not built with untorn-cc or untorn-c++, and for languages that these do not
/// compile. Without this flag and without these hooks, sections are refused.
pub const UNTORN_HEAP_LOG_BY_HAND: u32 = 128;

/// Heap flag, with UNTORN_HEAP_LIVE: a cut waits until no thread is between untorn_heap_begin() and
/// untorn_heap_end(), between untorn_heap_hold_cuts() and untorn_heap_release_cuts(), or in a section; the program
/// promises to make all stores there. Without the flag, a cut briefly stops all threads of the process, wherever they
/// are, by a real-time signal (UNTORN_STOP_SIGNAL in the environment names another signal). See docs/LIVE_HEAPS.md.
pub const UNTORN_HEAP_CUTS_WAIT: u32 = 256;

/// untorn_heap_live_start(): the heap began without working memory of an earlier process.
pub const UNTORN_LIVE_NEW: c_int = 1;
/// untorn_heap_live_start(): the heap has everything that the process before had stored.
pub const UNTORN_LIVE_WENT_ON: c_int = 2;
/// untorn_heap_live_start(): the heap is as of the last cut.
pub const UNTORN_LIVE_LAST_CUT: c_int = 3;

const FLAGS: u32 = UNTORN_CREATE
    | UNTORN_HEAP_DEBUG_RACES
    | UNTORN_HEAP_QUIET
    | UNTORN_HEAP_DEBUG_GUARDS
    | UNTORN_HEAP_DEBUG_POINTERS
    | UNTORN_HEAP_DEBUG_UNMARKED
    | UNTORN_HEAP_LIVE
    | UNTORN_HEAP_LOG_BY_HAND
    | UNTORN_HEAP_CUTS_WAIT;

/// How to open a heap. Zero is the default of everything but `size`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct untorn_heap_options {
    /// sizeof(untorn_heap_options) of the header that the program was compiled with.
    pub size: usize,
    /// Bytes of address space for the heap: as long as it is open it cannot grow larger. Address space costs no
    /// memory. If the heap has less, it gets more, permanently; asking for less than it has is EINVAL. 0: the space
    /// that the heap has, or 64 GiB for a new heap.
    pub address_space: u64,
    /// The permanent address of a new heap: a multiple of 4 MiB between 17 and 31 TiB. For an existing heap, any
    /// address but its own is EINVAL. For programs that open several heaps at once: the address spaces of these must
    /// not overlap. 0: a random address; the probability that two heaps overlap is 1 in 196. Programs built with
    /// ThreadSanitizer or MemorySanitizer use other addresses: 0x550000000000 to 0x555500000000 (on aarch64
    /// 0xaaaa00000000 to 0xaaaaa0000000). Give a heap an address there if programs with and without these sanitizers
    /// are to open it.
    pub address: u64,
    /// The most bytes of pages that are changed in memory at any time, like `dirty_max` of untorn_map_options. Needed
    /// for heaps that use more than memory. 0: the number of bytes that the heap uses.
    pub dirty_max: u64,
    /// UNTORN_CREATE, UNTORN_HEAP_DEBUG_RACES, UNTORN_HEAP_QUIET, UNTORN_HEAP_DEBUG_GUARDS,
    /// UNTORN_HEAP_DEBUG_POINTERS, UNTORN_HEAP_DEBUG_UNMARKED, UNTORN_HEAP_LIVE, UNTORN_HEAP_LOG_BY_HAND,
    /// UNTORN_HEAP_CUTS_WAIT, or'ed.
    pub flags: u32,
    /// UNTORN_TRACKER_ANY, UNTORN_TRACKER_SCAN, UNTORN_TRACKER_PAGEMAP or UNTORN_TRACKER_EXPLICIT.
    pub tracker: u32,
    /// With UNTORN_HEAP_LIVE: the interval, in milliseconds, at which a thread commits if the program has stored
    /// anything. 0: only the program commits.
    pub cut_every_ms: u64,
    /// With `cut_every_ms`: the longest time that a cut should take, in milliseconds. A cut begins early if, by the
    /// speed of earlier cuts, writing the changes so far would otherwise take longer. A program that stores faster
    /// than the disk writes is not slowed down. 0: no limit.
    pub cut_within_ms: u64,
    /// With UNTORN_HEAP_LIVE: the class that the heap's working memory must have. UNTORN_CLASS_MEMORY: the memory survives
    /// kernel crashes and power cuts, because it is on byte-addressable memory (UNTORN_LIVE_DIR); elsewhere
    /// UNTORN_E_UNSUPPORTED. UNTORN_CLASS_PROCESS: it survives the end of the process alone, wherever it is. 0:
    /// UNTORN_CLASS_MEMORY where that is possible.
    pub live_class: u64,
}

const _: () = assert!(size_of::<untorn_heap_options>() == 64, "members may be added at the end, never removed");

// SAFETY: numbers.
unsafe impl Versioned for untorn_heap_options {
    const NAME: &'static str = "untorn_heap_options";
    const SIZE_MIN: usize = 40;
}

/// Statistics of a heap. Sizes are in bytes.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct untorn_heap_stats {
    /// Set it to sizeof(untorn_heap_stats) before the call; the call fills that many bytes.
    pub size: usize,
    /// Length of the heap and of its sparse file.
    pub heap_bytes: u64,
    /// Bytes in allocations, after rounding of their sizes.
    pub used_bytes: u64,
    /// Bytes that can be allocated before the heap grows, in blocks of any size.
    pub free_bytes: u64,
    /// Number of allocations.
    pub allocations: u64,
    /// Number of named roots.
    pub roots: u64,
    /// Memory that changed pages use.
    pub private_bytes: u64,
    /// Address space: the largest size that the heap can grow to.
    pub address_space_bytes: u64,
}

const _: () = assert!(size_of::<untorn_heap_stats>() == 8 * 8, "no padding; members may only be added");

// SAFETY: numbers.
unsafe impl Versioned for untorn_heap_stats {
    const NAME: &'static str = "untorn_heap_stats";
    const SIZE_MIN: usize = 64;
}

/// Reads a caller's options, of any version; NULL means defaults.
///
/// # Safety
/// `options` is NULL or as large as its `size` says.
unsafe fn read(options: *const untorn_heap_options, store: StoreOptions) -> Result<HeapOptions> {
    let result = HeapOptions::new().store(store);
    // SAFETY: the caller's promise.
    let Some(options) = (unsafe { versioned::read(options)? }) else { return Ok(result) };
    if options.flags & !FLAGS != 0 {
        return Err(Failure::invalid(format!("unknown bits in the heap flags {:#x}", options.flags)));
    }
    let mut result = result
        .create(options.flags & UNTORN_CREATE != 0)
        .debug_races(options.flags & UNTORN_HEAP_DEBUG_RACES != 0)
        .debug_guards(options.flags & UNTORN_HEAP_DEBUG_GUARDS != 0)
        .debug_pointers(options.flags & UNTORN_HEAP_DEBUG_POINTERS != 0)
        .debug_unmarked(options.flags & UNTORN_HEAP_DEBUG_UNMARKED != 0)
        .live(options.flags & UNTORN_HEAP_LIVE != 0);
    if options.flags & UNTORN_HEAP_CUTS_WAIT != 0 {
        result = result.cuts(Cuts::Wait);
    }
    if options.cut_every_ms != 0 {
        result = result.cut_every(Duration::from_millis(options.cut_every_ms));
    }
    if options.cut_within_ms != 0 {
        result = result.cut_within(Duration::from_millis(options.cut_within_ms));
    }
    match options.live_class {
        0 => {}
        class => result = result.live_class(options::class(u32::try_from(class).unwrap_or(u32::MAX))?),
    }
    if options.flags & UNTORN_HEAP_QUIET != 0 {
        // SAFETY: the caller's promise, which the flag states.
        result = unsafe { result.quiet(true) };
    }
    if let Some(tracker) = tracker_of(options.tracker)? {
        result = result.tracker(tracker);
    }
    if options.address_space != 0 {
        result = result.address_space(options.address_space);
    }
    if options.address != 0 {
        result = result.address(options.address as usize);
    }
    if options.dirty_max != 0 {
        result = result.dirty_max(options.dirty_max);
    }
    Ok(result)
}

/// The heap of a handle, for calls that are made millions of times a second: each thread remembers the heap
/// of its last call, and does not look the same handle up again while that heap is open.
#[inline(always)]
pub(crate) fn weak(heap: *const untorn_heap) -> Result<WeakHeap> {
    #[cold]
    fn look_up(heap: usize) -> Result<WeakHeap> {
        Ok(handle::get::<Heap, _>(std::ptr::without_provenance::<untorn_heap>(heap))?.downgrade())
    }
    WeakHeap::remembered(heap.addr(), look_up)
}

/// Whether a program reports its stores in sections by itself.
static LOGS_BY_HAND: AtomicBool = AtomicBool::new(false);

/// Whether a heap was opened with UNTORN_HEAP_LOG_BY_HAND.
pub(crate) fn is_logged_by_hand() -> bool {
    LOGS_BY_HAND.load(Acquire)
}

/// Whether the options say that the program reports its stores in sections by itself.
///
/// # Safety
/// As of [`read`].
unsafe fn logs_by_hand(options: *const untorn_heap_options) -> Result<bool> {
    // SAFETY: the caller's promise.
    let options = unsafe { versioned::read(options)? };
    Ok(options.is_some_and(|options| options.flags & UNTORN_HEAP_LOG_BY_HAND != 0))
}

/// Makes one call on a heap.
pub(crate) fn with_heap<R>(heap: *const untorn_heap, call: impl FnOnce(&Heap) -> Result<R>) -> Result<R> {
    call(&*handle::get::<Heap, _>(heap)?)
}

fn insert(heap: Heap, by_hand: bool) -> Result<*mut untorn_heap> {
    if by_hand {
        LOGS_BY_HAND.store(true, Release);
    }
    handle::insert(heap)
}

/// Opens a heap in a standalone file, with a private store beside it. With UNTORN_CREATE in the flags of `options`, a
/// missing heap is created; otherwise it is ENOENT. `options` and `store_options` may be NULL. A heap is always at the
/// same address: EINVAL if that address is in use, if this heap or a copy of the heap is already open in this process,
/// or if `address` or `address_space` conflicts with the heap's own. NULL with an error, also like untorn_open();
/// EMEDIUMTYPE: not a heap.
///
/// # Safety
/// `path` is a string; the options are NULL or as large as their `size` says.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_heap_open(
    path: *const c_char,
    options: *const untorn_heap_options,
    store_options: *const untorn_options,
) -> *mut untorn_heap {
    guard(null_mut(), || {
        // SAFETY: the caller's promise.
        let path = unsafe { arguments::path(path, "the path") }?;
        // SAFETY: the caller's promise.
        let (options, by_hand) = unsafe { (read(options, options::read(store_options)?)?, logs_by_hand(options)?) };
        insert(options.open(path)?, by_hand)
    })
}

/// Opens a heap by its name in a store. The heap and other files of the store can be committed together.
/// Otherwise as untorn_heap_open().
///
/// # Safety
/// `name` is a string; `options` is NULL or as large as its `size` says.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_heap_open_at(
    store: *mut untorn_store,
    name: *const c_char,
    options: *const untorn_heap_options,
) -> *mut untorn_heap {
    guard(null_mut(), || {
        let store = handle::get::<untorn::Store, _>(store)?;
        // SAFETY: the caller's promise.
        let name = unsafe { arguments::path(name, "the name") }?;
        // SAFETY: the caller's promise.
        let (options, by_hand) = unsafe { (read(options, StoreOptions::default())?, logs_by_hand(options)?) };
        insert(options.open_in(&store, name)?, by_hand)
    })
}

/// Closes the heap. Uncommitted changes are DISCARDED (a live heap makes its last cut instead, and its working memory is
/// removed), and pointers into the heap become invalid. Returns 0, or -1 with an error; the handle is closed in either case.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_close(heap: *mut untorn_heap) -> c_int {
    guard(-1, || {
        let heap = handle::take::<Heap, _>(heap)?;
        // If a call in another thread is still using the heap, the heap closes after that call.
        if let Ok(heap) = std::sync::Arc::try_unwrap(heap) {
            heap.close()?;
        }
        Ok(0)
    })
}

/// Returns how a live heap began: UNTORN_LIVE_NEW, UNTORN_LIVE_WENT_ON or UNTORN_LIVE_LAST_CUT; 0: the heap was not
/// opened with UNTORN_HEAP_LIVE. -1 with EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_live_start(heap: *const untorn_heap) -> c_int {
    guard(-1, || {
        with_heap(heap, |heap| {
            Ok(heap.live().map_or(0, |live| match live.start {
                LiveStart::New => UNTORN_LIVE_NEW,
                LiveStart::WentOn => UNTORN_LIVE_WENT_ON,
                LiveStart::LastCut(_) => UNTORN_LIVE_LAST_CUT,
            }))
        })
    })
}

/// Returns the class of a live heap's working memory: UNTORN_CLASS_MEMORY or UNTORN_CLASS_PROCESS; 0: the heap was not
/// opened with UNTORN_HEAP_LIVE. -1 with EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_live_class(heap: *const untorn_heap) -> c_int {
    guard(-1, || {
        with_heap(heap, |heap| {
            Ok(heap.live().map_or(0, |live| match live.class {
                FailureClass::Memory => UNTORN_CLASS_MEMORY as c_int,
                _ => UNTORN_CLASS_PROCESS as c_int,
            }))
        })
    })
}

/// Makes bytes of a live heap durable that were stored outside of sections. Needed if its memory is of
/// UNTORN_CLASS_MEMORY and its lines need flushes; does nothing otherwise. Bytes that were stored between
/// untorn_heap_begin() and untorn_heap_end() need no call. Returns 0, or -1: EINVAL (the bytes are not in the heap), EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_flush(heap: *mut untorn_heap, address: *const c_void, len: usize) -> c_int {
    guard_status(|| with_heap(heap, |heap| Ok(heap.flush(address.cast(), len)?)))
}

/// Holds off commits until untorn_heap_release_cuts() in the same thread: for changes in steps each of which leaves
/// the heap consistent, such as those of lock-free structures. If the process of a live heap ends in between, nothing
/// is lost; after untorn_heap_begin(), by contrast, the heap goes back to its last cut. Calls may be nested. Returns
/// 0, or -1 with EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_hold_cuts(heap: *mut untorn_heap) -> c_int {
    guard_status(|| Ok(weak(heap)?.begin_hold()?))
}

/// Ends the hold that untorn_heap_hold_cuts() began. Returns 0, or -1: EINVAL (this thread has begun none), EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_release_cuts(heap: *mut untorn_heap) -> c_int {
    guard_status(|| match weak(heap)?.end_hold()? {
        true => Ok(()),
        false => Err(Failure::invalid("this thread holds no cuts of the heap")),
    })
}

/// Returns the heap's address, which is the same after every restart. NULL with EBADF. Objects in a heap
/// may keep this address, to allocate by untorn_heap_allocate_at().
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_base(heap: *const untorn_heap) -> *mut c_void {
    guard(null_mut(), || {
        if heap.is_null() {
            let message = "the heap is not open (does a static object use it that is made before the heap is \
                           opened?)"
                .to_owned();
            return Err(Failure { message, ..Failure::bad_handle("heap") });
        }
        with_heap(heap, |heap| Ok(heap.memory().0.as_ptr().cast()))
    })
}

/// Marks `len` bytes at `address` in the heap as changed. The call may come before or after the store. With
/// UNTORN_TRACKER_EXPLICIT a commit has the bytes that were marked since the last commit, and the heap's own changes.
/// With any other tracker the heap finds stores by itself, and the call does nothing. Where several threads use the
/// heap, make the store and the call between untorn_heap_begin() and untorn_heap_end(). untorn_heap_calloc(),
/// untorn_heap_realloc() and the functions for roots mark their own changes; a block of untorn_heap_allocate_at() is
/// marked as a whole. Returns 0, or -1: EINVAL (not inside the heap, nothing was marked), EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_mark_dirty(heap: *mut untorn_heap, address: *const c_void, len: usize) -> c_int {
    guard_status(|| Ok(weak(heap)?.mark_dirty(address.cast(), len)?))
}

/// Begins changes that belong together: no commit takes place before the same thread calls
/// untorn_heap_end(). Calls may be nested. Needed only where several threads use a heap. Returns 0, or -1
/// with EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_begin(heap: *mut untorn_heap) -> c_int {
    guard_status(|| Ok(weak(heap)?.begin_mutation()?))
}

/// Ends the changes that untorn_heap_begin() began. Returns 0, or -1: EINVAL (this thread has begun none),
/// EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_end(heap: *mut untorn_heap) -> c_int {
    guard_status(|| match weak(heap)?.end_mutation()? {
        true => Ok(()),
        false => Err(Failure::invalid("this thread has not begun a change of the heap (untorn_heap_begin)")),
    })
}

/// Commits all changes of the heap, durable as by untorn_commit(). Waits until no thread is between
/// untorn_heap_begin() and untorn_heap_end(). Returns 0, or -1 with an error as untorn_commit(); EINVAL if
/// the calling thread is between these calls.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_commit(heap: *mut untorn_heap) -> c_int {
    guard(-1, || {
        with_heap(heap, |heap| {
            heap.commit()?;
            Ok(0)
        })
    })
}

/// Commits the heap and ordinary files of the same store as one. Returns 0, or -1 with an error like untorn_syncv().
///
/// # Safety
/// `files` is NULL or points to `n` handles.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_heap_syncv(heap: *mut untorn_heap, files: *const *mut untorn_file, n: usize) -> c_int {
    guard(-1, || {
        with_heap(heap, |heap| {
            // SAFETY: the caller's promise.
            unsafe {
                with_files(files, n, |_, files| {
                    heap.syncv(files)?;
                    Ok(0)
                })
            }
        })
    })
}

/// Starts a commit of the heap. All changes made before the call belong to the commit. The ticket reports when the
/// commit is durable. Of a live heap, a commit is a cut: the state to which the heap goes back after a power cut. NULL
/// with an error like untorn_heap_commit().
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_commit_async(heap: *mut untorn_heap) -> *mut untorn_ticket {
    guard(null_mut(), || with_heap(heap, |heap| handle::insert(heap.commit_async()?)))
}

/// Discards all changes since the last commit. Pointers to memory that was allocated since then become
/// invalid. Returns 0, or -1 with an error as untorn_heap_commit().
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_rollback(heap: *mut untorn_heap) -> c_int {
    guard(-1, || {
        with_heap(heap, |heap| {
            // SAFETY: the caller was told which pointers become invalid.
            unsafe { heap.rollback()? };
            Ok(0)
        })
    })
}

/// Fills `stats`, whose member `size` the caller has set. Reads the metadata of the whole heap. Returns 0,
/// or -1: EINVAL (also if this thread is between untorn_heap_begin() and untorn_heap_end()), EFAULT,
/// EUCLEAN, EBADF.
///
/// # Safety
/// `stats` is NULL or as large as its `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_heap_get_stats(heap: *const untorn_heap, stats: *mut untorn_heap_stats) -> c_int {
    guard(-1, || {
        // SAFETY: the caller's promise.
        let size = unsafe { versioned::checked_size(stats) }?;
        with_heap(heap, |heap| {
            let found = heap.stats()?;
            let filled = untorn_heap_stats {
                size,
                heap_bytes: found.heap_bytes,
                used_bytes: found.used_bytes,
                free_bytes: found.free_bytes,
                allocations: found.allocations,
                roots: found.roots,
                private_bytes: found.private_bytes,
                address_space_bytes: found.address_space_bytes,
            };
            // SAFETY: the caller's promise; there is no padding.
            unsafe { versioned::write(&filled, stats, size) };
            Ok(0)
        })
    })
}
