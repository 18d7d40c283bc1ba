//! Exported functions: persistent heaps.

use std::alloc::Layout;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::size_of;
use std::ptr::{NonNull, null_mut};

use untorn::{Heap, HeapOptions, RootShape, StoreOptions};

use crate::arguments;
use crate::error::{Failure, Result, guard};
use crate::file::untorn_file;
use crate::handle;
use crate::options::{self, SIZE_MAX, untorn_options};
use crate::store::untorn_store;
use crate::ticket::untorn_ticket;
use crate::txn::with_files;

/// A persistent heap: memory in a file that is always mapped at the same address, so that pointers in
/// it stay good after a restart.
#[allow(non_camel_case_types)]
pub struct untorn_heap {
    _opaque: (),
}

/// Heap flag: the heap must exist; otherwise fail with ENOENT.
pub const UNTORN_HEAP_MUST_EXIST: u32 = 1;
/// Heap flag, for finding bugs: a store to the heap during a commit is reported with its address
/// (UNTORN_E_RACING_STORE).
pub const UNTORN_HEAP_DEBUG_RACES: u32 = 2;

/// How to open a heap. Zero is the default of everything but `size`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct untorn_heap_options {
    /// sizeof(untorn_heap_options), as your compiler saw it: newer libraries may know more members.
    pub size: usize,
    /// Bytes of address space that a new heap gets: it can never outgrow them, and they cost nothing. 0:
    /// 64 GiB.
    pub address_space: u64,
    /// As in untorn_map_options: the most bytes of pages that will have been stored to and not dropped;
    /// for heaps that are larger than memory. 0: the heap's size.
    pub dirty_max: u64,
    /// UNTORN_HEAP_MUST_EXIST, UNTORN_HEAP_DEBUG_RACES, or'ed.
    pub flags: u32,
    /// Must be 0.
    pub reserved: u32,
}

const HEAP_OPTIONS_MIN: usize = 32;
const _: () = assert!(size_of::<untorn_heap_options>() == HEAP_OPTIONS_MIN, "members may only be added at the end");

/// Numbers of a heap, in bytes unless they say otherwise.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct untorn_heap_stats {
    /// sizeof(untorn_heap_stats), set by the caller.
    pub size: usize,
    /// Length of the heap.
    pub heap_bytes: u64,
    /// Memory that changed pages take.
    pub private_bytes: u64,
}

/// # Safety
/// `options` is NULL or as large as its `size` says.
unsafe fn read(options: *const untorn_heap_options, store: StoreOptions) -> Result<HeapOptions> {
    let mut result = HeapOptions::new().store(store);
    if options.is_null() {
        return Ok(result);
    }
    // SAFETY: not NULL; the rest is the caller's promise.
    let size = unsafe { (&raw const (*options).size).read() };
    if !(HEAP_OPTIONS_MIN..=SIZE_MAX).contains(&size) {
        return Err(Failure::invalid(format!("an untorn_heap_options of {size} bytes: set its size member")));
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(options.cast::<u8>(), size) };
    // SAFETY: at least as many bytes are there, and any bits are valid for every member.
    let options = unsafe { options.read() };
    let known = UNTORN_HEAP_MUST_EXIST | UNTORN_HEAP_DEBUG_RACES;
    if bytes[HEAP_OPTIONS_MIN..].iter().any(|&byte| byte != 0) || options.flags & !known != 0 || options.reserved != 0 {
        return Err(Failure::invalid("heap options that this version of the library does not know are set"));
    }
    result = result
        .create(options.flags & UNTORN_HEAP_MUST_EXIST == 0)
        .debug_races(options.flags & UNTORN_HEAP_DEBUG_RACES != 0);
    if options.address_space != 0 {
        result = result.address_space(options.address_space);
    }
    if options.dirty_max != 0 {
        result = result.dirty_max(options.dirty_max);
    }
    Ok(result)
}

/// Makes one call on a heap.
fn with_heap<R>(heap: *const untorn_heap, call: impl FnOnce(&Heap) -> Result<R>) -> Result<R> {
    call(&*handle::get::<Heap, _>(heap)?)
}

/// The heap at an address.
fn heap_at(base: *const c_void) -> Result<Heap> {
    Heap::at(base.cast()).ok_or_else(|| Failure::bad_handle("heap"))
}

/// Opens a heap in a file that has a store of its own beside it; makes it if there is none. `options`
/// and `store_options` may be NULL. A heap is always at the same address: EINVAL if something else is
/// there, or if this heap or a copy of it is open in this process. NULL with an error, also as
/// untorn_open(); EMEDIUMTYPE: not a heap.
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
        let options = unsafe { read(options, options::read(store_options)?) }?;
        handle::insert(options.open(path)?)
    })
}

/// Opens a heap by its name in a store: it can commit together with the store's other files. Otherwise
/// as untorn_heap_open().
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
        let options = unsafe { read(options, StoreOptions::default()) }?;
        handle::insert(options.open_in(&store, name)?)
    })
}

/// Closes the heap. What is not committed is DISCARDED, and pointers into it are good no more. Returns
/// 0, or -1 with an error; the handle is closed in either case.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_close(heap: *mut untorn_heap) -> c_int {
    guard(-1, || {
        let heap = handle::take::<Heap, _>(heap)?;
        // If a call in another thread is still using it, it closes when that is done.
        if let Ok(heap) = std::sync::Arc::try_unwrap(heap) {
            heap.close()?;
        }
        Ok(0)
    })
}

fn allocate(heap: &Heap, bytes: usize, align: usize) -> Result<NonNull<u8>> {
    if !align.is_power_of_two() {
        return Err(Failure::invalid(format!("an alignment of {align} is no power of two")));
    }
    let too_much =
        |_| Failure { errno: libc::ENOMEM, ..Failure::invalid(format!("{bytes} bytes are more than a heap has")) };
    let layout = Layout::from_size_align(bytes, align).map_err(too_much)?;
    Ok(heap.allocate(layout)?)
}

/// What `malloc` gives is good for anything.
const ALIGN: usize = 16;

/// Memory in the heap, of any contents, aligned to 16 bytes. It stays allocated after a restart, if it
/// was committed: hang it on a root, or on something that is. NULL: ENOMEM, ENOSPC, EBADF …
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_malloc(heap: *mut untorn_heap, bytes: usize) -> *mut c_void {
    guard(null_mut(), || with_heap(heap, |heap| Ok(allocate(heap, bytes, ALIGN)?.as_ptr().cast())))
}

/// The same with an alignment: a power of two up to 4096.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_aligned_alloc(heap: *mut untorn_heap, align: usize, bytes: usize) -> *mut c_void {
    guard(null_mut(), || with_heap(heap, |heap| Ok(allocate(heap, bytes, align)?.as_ptr().cast())))
}

/// Memory for `n` elements, all zeros. NULL as untorn_malloc().
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_calloc(heap: *mut untorn_heap, n: usize, bytes: usize) -> *mut c_void {
    guard(null_mut(), || {
        with_heap(heap, |heap| {
            let all = n.checked_mul(bytes).ok_or_else(|| Failure {
                errno: libc::ENOMEM,
                ..Failure::invalid(format!("{n} times {bytes} bytes are more than a heap has"))
            })?;
            let _mutating = heap.mutate();
            let block = allocate(heap, all, ALIGN)?;
            // SAFETY: allocated just now with so many bytes.
            unsafe { block.write_bytes(0, all) };
            Ok(block.as_ptr().cast())
        })
    })
}

/// Memory of another size with the same contents, as far as they fit; the old one is freed. `address`
/// NULL: as untorn_malloc(). NULL with an error: the old one is untouched.
///
/// # Safety
/// `address` is NULL or an allocation that nobody else uses.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_realloc(heap: *mut untorn_heap, address: *mut c_void, bytes: usize) -> *mut c_void {
    guard(null_mut(), || {
        with_heap(heap, |heap| {
            let Some(old) = NonNull::new(address.cast::<u8>()) else {
                return Ok(allocate(heap, bytes, ALIGN)?.as_ptr().cast());
            };
            let has = heap.size_of(old)?;
            if bytes <= has && bytes >= has / 2 {
                return Ok(address);
            }
            let _mutating = heap.mutate();
            let new = allocate(heap, bytes, ALIGN)?;
            // SAFETY: both are allocations of at least so many bytes, and not the same.
            unsafe {
                new.copy_from_nonoverlapping(old, bytes.min(has));
                heap.free(old)?;
            }
            Ok(new.as_ptr().cast())
        })
    })
}

/// Ends an allocation; NULL does nothing. Returns 0, or -1: EINVAL (not an allocation of this heap, or
/// freed already: nothing has changed), EBADF.
///
/// # Safety
/// Nobody uses the memory any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_free(heap: *mut untorn_heap, address: *mut c_void) -> c_int {
    guard(-1, || {
        with_heap(heap, |heap| {
            if let Some(address) = NonNull::new(address.cast::<u8>()) {
                // SAFETY: the caller's promise.
                unsafe { heap.free(address)? };
            }
            Ok(0)
        })
    })
}

/// Bytes that an allocation has, at least as many as were asked for. 0 with EINVAL or EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_malloc_size(heap: *mut untorn_heap, address: *mut c_void) -> usize {
    guard(0, || {
        let address = NonNull::new(address.cast::<u8>()).ok_or_else(|| Failure::null("the address"))?;
        with_heap(heap, |heap| Ok(heap.size_of(address)?))
    })
}

/// Where the heap begins in memory: the same after every restart. NULL with EBADF. What lies in a heap
/// may keep this address to allocate through untorn_heap_allocate_at().
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_base(heap: *const untorn_heap) -> *mut c_void {
    guard(null_mut(), || with_heap(heap, |heap| Ok(heap.memory().0.as_ptr().cast())))
}

/// Allocates in the open heap that begins at `base`: for allocators that lie in heaps themselves.
/// NULL as untorn_aligned_alloc(); EBADF: no heap is open there.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_allocate_at(base: *const c_void, align: usize, bytes: usize) -> *mut c_void {
    guard(null_mut(), || Ok(allocate(&heap_at(base)?, bytes, align)?.as_ptr().cast()))
}

/// Frees what untorn_heap_allocate_at() gave. Returns 0, or -1 as untorn_free().
///
/// # Safety
/// Nobody uses the memory any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_heap_free_at(base: *const c_void, address: *mut c_void) -> c_int {
    guard(-1, || {
        if let Some(address) = NonNull::new(address.cast::<u8>()) {
            // SAFETY: the caller's promise.
            unsafe { heap_at(base)?.free(address)? };
        }
        Ok(0)
    })
}

/// # Safety
/// Both are NULL or strings that stay unchanged during `'a`.
unsafe fn texts<'a>(name: *const c_char, type_name: *const c_char) -> Result<(&'a str, &'a str)> {
    let text = |text: *const c_char, what: &str| {
        if text.is_null() {
            return Err(Failure::null(what));
        }
        // SAFETY: the caller's promise.
        unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| Failure::invalid(format!("{what} is not UTF-8")))
    };
    Ok((text(name, "the root's name")?, text(type_name, "the type's name")?))
}

fn shape(type_name: &str, bytes: usize, align: usize, version: u32) -> Result<RootShape<'_>> {
    let layout =
        Layout::from_size_align(bytes, align).map_err(|_| Failure::invalid("no type has this size and alignment"))?;
    Ok(RootShape { type_name, layout, version })
}

/// Finds a root: `*found` is what was hung on this name, or NULL. The type's name, size, alignment and
/// version must be those that it was set with. Returns 1: found; 0: there is no such root; -1: EINVAL, the
/// program's layout has changed, and the message tells both; EUCLEAN, EFAULT, EBADF.
///
/// # Safety
/// `name` and `type` are strings; `found` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_heap_root(
    heap: *const untorn_heap,
    name: *const c_char,
    type_: *const c_char,
    bytes: usize,
    align: usize,
    version: u32,
    found: *mut *mut c_void,
) -> c_int {
    guard(-1, || {
        if found.is_null() {
            return Err(Failure::null("where the root's address goes"));
        }
        // SAFETY: not NULL; the rest is the caller's promise.
        unsafe { found.write(null_mut()) };
        // SAFETY: the caller's promise.
        let (name, type_name) = unsafe { texts(name, type_) }?;
        with_heap(heap, |heap| {
            let Some(at) = heap.find_root(name, &shape(type_name, bytes, align, version)?)? else { return Ok(0) };
            // SAFETY: as above.
            unsafe { found.write(at.as_ptr().cast()) };
            Ok(1)
        })
    })
}

/// Hangs something on a name (1 to 47 bytes); `address` NULL removes the root. What it was before is
/// not freed. Returns 0, or -1: EINVAL (outside of the heap, too many roots, no name), EBADF.
///
/// # Safety
/// `name` and `type` are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_heap_set_root(
    heap: *mut untorn_heap,
    name: *const c_char,
    address: *mut c_void,
    type_: *const c_char,
    bytes: usize,
    align: usize,
    version: u32,
) -> c_int {
    guard(-1, || {
        // SAFETY: the caller's promise.
        let (name, type_name) = unsafe { texts(name, type_) }?;
        with_heap(heap, |heap| {
            heap.put_root(name, NonNull::new(address.cast()), &shape(type_name, bytes, align, version)?)?;
            Ok(0)
        })
    })
}

/// Begins changes that belong together: no commit takes place before untorn_heap_end() in the same
/// thread. May be nested. Needed only where several threads use a heap. Returns 0, or -1 with EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_begin(heap: *mut untorn_heap) -> c_int {
    guard(-1, || {
        with_heap(heap, |heap| {
            heap.begin_mutation();
            Ok(0)
        })
    })
}

/// Ends what untorn_heap_begin() began. Returns 0, or -1: EINVAL (this thread has begun nothing), EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_end(heap: *mut untorn_heap) -> c_int {
    guard(-1, || {
        with_heap(heap, |heap| match heap.end_mutation() {
            true => Ok(0),
            false => Err(Failure::invalid("this thread has begun no change of the heap")),
        })
    })
}

/// Commits all changes of the heap, with the promise of untorn_commit(). Waits until no thread is
/// between untorn_heap_begin() and untorn_heap_end(). Returns 0, or -1 with an error as
/// untorn_commit(); EINVAL if this thread is between them itself.
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

/// Commits the heap and ordinary files of the same store as one. Returns 0, or -1 as untorn_syncv().
///
/// # Safety
/// `files` is NULL or points to `n` handles.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_heap_commit_with(
    heap: *mut untorn_heap,
    files: *const *mut untorn_file,
    n: usize,
) -> c_int {
    guard(-1, || {
        with_heap(heap, |heap| {
            // SAFETY: the caller's promise.
            unsafe {
                with_files(files, n, |_, files| {
                    heap.commit_with(files)?;
                    Ok(0)
                })
            }
        })
    })
}

/// Starts a commit: what was changed by now belongs to it; the ticket tells when it is durable. NULL
/// with an error as untorn_heap_commit().
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_commit_async(heap: *mut untorn_heap) -> *mut untorn_ticket {
    guard(null_mut(), || with_heap(heap, |heap| handle::insert(heap.commit_async()?)))
}

/// Back to the last commit. Pointers to what was allocated since are good no more. Returns 0, or -1
/// with an error as untorn_heap_commit().
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_rollback(heap: *mut untorn_heap) -> c_int {
    guard(-1, || {
        with_heap(heap, |heap| {
            heap.rollback()?;
            Ok(0)
        })
    })
}

/// Fills `stats`, whose `size` the caller has set. Returns 0, or -1: EINVAL, EFAULT, EBADF.
///
/// # Safety
/// `stats` is NULL or as large as its `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_heap_get_stats(heap: *const untorn_heap, stats: *mut untorn_heap_stats) -> c_int {
    guard(-1, || {
        if stats.is_null() {
            return Err(Failure::null("the stats pointer"));
        }
        // SAFETY: not NULL; the rest is the caller's promise.
        let size = unsafe { (&raw const (*stats).size).read() };
        if !(size_of::<untorn_heap_stats>()..=SIZE_MAX).contains(&size) {
            return Err(Failure::invalid(format!("an untorn_heap_stats of {size} bytes: set its size member")));
        }
        with_heap(heap, |heap| {
            let mapped = heap.file().store().status().maps.into_iter().find(|m| m.path == heap.file().path());
            let private_bytes = mapped.map_or(0, |m| m.private_bytes);
            // SAFETY: as large as this struct at least.
            unsafe { stats.write(untorn_heap_stats { size, heap_bytes: heap.memory().1 as u64, private_bytes }) };
            Ok(0)
        })
    })
}
