//! Exported functions: persistent heaps.

use std::alloc::Layout;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::size_of;
use std::ptr::{NonNull, null_mut};

use untorn::{Heap, HeapOptions, RootInfo, RootShape, StoreOptions, WeakHeap};

use crate::arguments;
use crate::error::untorn_error::UNTORN_E_NO_MEMORY;
use crate::error::{Failure, Result, guard, guard_status};
use crate::file::untorn_file;
use crate::handle;
use crate::options::{self, untorn_options};
use crate::store::untorn_store;
use crate::ticket::untorn_ticket;
use crate::txn::with_files;
use crate::versioned::{self, Versioned};

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
    /// Where a new heap will lie, always: a multiple of 4 MiB between 17 and 31 TiB, for programs that have
    /// several heaps open at once, whose address spaces must not overlap. 0: a random one, at which two
    /// heaps meet once in 224 times.
    pub address: u64,
    /// As in untorn_map_options: the most bytes of pages that will have been stored to and not dropped;
    /// for heaps that are larger than memory. 0: the heap's size.
    pub dirty_max: u64,
    /// UNTORN_HEAP_MUST_EXIST, UNTORN_HEAP_DEBUG_RACES, or'ed.
    pub flags: u32,
    /// Must be 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<untorn_heap_options>() == 40, "members may be added at the end, never removed");

// SAFETY: numbers.
unsafe impl Versioned for untorn_heap_options {
    const NAME: &'static str = "untorn_heap_options";
    const SIZE_MIN: usize = 40;
}

/// Numbers of a heap, in bytes unless they say otherwise.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct untorn_heap_stats {
    /// Set it to sizeof(untorn_heap_stats) before the call; the call fills that many bytes.
    pub size: usize,
    /// Length of the heap and of its file, which is sparse.
    pub heap_bytes: u64,
    /// What allocations take, with what they were rounded up to.
    pub used_bytes: u64,
    /// What can be allocated before the heap grows, in blocks of any size.
    pub free_bytes: u64,
    /// Number of allocations.
    pub allocations: u64,
    /// Number of named roots.
    pub roots: u64,
    /// Memory that changed pages take.
    pub private_bytes: u64,
    /// Address space: what the heap can grow to.
    pub address_space_bytes: u64,
}

const _: () = assert!(size_of::<untorn_heap_stats>() == 8 * 8, "no padding; members may only be added");

// SAFETY: numbers.
unsafe impl Versioned for untorn_heap_stats {
    const NAME: &'static str = "untorn_heap_stats";
    const SIZE_MIN: usize = 64;
}

/// Bytes of `untorn_heap_root_info.name`, NUL included.
pub const UNTORN_ROOT_NAME_BYTES: usize = 48;
/// Bytes of `untorn_heap_root_info.type_name`, NUL included.
pub const UNTORN_ROOT_TYPE_BYTES: usize = 112;

/// What a root points to, as it was when it was set.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct untorn_heap_root_info {
    /// Set it to sizeof(untorn_heap_root_info) before the call; the call fills that many bytes.
    pub size: usize,
    /// Where it is.
    pub address: *mut c_void,
    /// The type's size in bytes.
    pub bytes: u64,
    /// The type's alignment.
    pub align: u32,
    /// The program's own number of its layout.
    pub version: u32,
    /// The root's name.
    pub name: [c_char; UNTORN_ROOT_NAME_BYTES],
    /// The type's name, as much as fits.
    pub type_name: [c_char; UNTORN_ROOT_TYPE_BYTES],
}

const _: () = assert!(
    size_of::<untorn_heap_root_info>() == 32 + UNTORN_ROOT_NAME_BYTES + UNTORN_ROOT_TYPE_BYTES,
    "no padding; members may only be added"
);

// SAFETY: numbers, bytes and a pointer.
unsafe impl Versioned for untorn_heap_root_info {
    const NAME: &'static str = "untorn_heap_root_info";
    const SIZE_MIN: usize = 192;
}

/// # Safety
/// `options` is NULL or as large as its `size` says.
unsafe fn read(options: *const untorn_heap_options, store: StoreOptions) -> Result<HeapOptions> {
    let result = HeapOptions::new().store(store);
    // SAFETY: the caller's promise.
    let Some(options) = (unsafe { versioned::read(options)? }) else { return Ok(result) };
    if options.flags & !(UNTORN_HEAP_MUST_EXIST | UNTORN_HEAP_DEBUG_RACES) != 0 || options.reserved != 0 {
        return Err(Failure::invalid(format!("unknown bits in the heap flags {:#x}", options.flags)));
    }
    let mut result = result
        .create(options.flags & UNTORN_HEAP_MUST_EXIST == 0)
        .debug_races(options.flags & UNTORN_HEAP_DEBUG_RACES != 0);
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

/// What allocates in a heap, and guards it, as long as it is open: a handle that a thread uses again is not looked up.
#[inline(always)]
fn weak(heap: *const untorn_heap) -> Result<WeakHeap> {
    #[cold]
    fn look_up(heap: usize) -> Result<WeakHeap> {
        Ok(handle::get::<Heap, _>(std::ptr::without_provenance::<untorn_heap>(heap))?.downgrade())
    }
    WeakHeap::remembered(heap.addr(), look_up)
}

/// Makes one call on a heap.
fn with_heap<R>(heap: *const untorn_heap, call: impl FnOnce(&Heap) -> Result<R>) -> Result<R> {
    call(&*handle::get::<Heap, _>(heap)?)
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

fn layout(bytes: usize, align: usize) -> Result<Layout> {
    if !align.is_power_of_two() {
        return Err(Failure::invalid(format!("an alignment of {align} is no power of two")));
    }
    Layout::from_size_align(bytes, align).map_err(|_| too_much(&format!("{bytes} bytes")))
}

fn too_much(what: &str) -> Failure {
    let message = format!("{what} are more than a heap has");
    Failure { kind: UNTORN_E_NO_MEMORY, errno: libc::ENOMEM, message }
}

/// What `malloc` gives is good for anything.
const ALIGN: usize = 16;

/// Memory in the heap, of any contents, aligned to 16 bytes. It stays allocated after a restart, if it
/// was committed: hang it on a root, or on something that is. NULL: ENOMEM, ENOSPC, EBADF …
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_malloc(heap: *mut untorn_heap, bytes: usize) -> *mut c_void {
    guard(null_mut(), || Ok(weak(heap)?.allocate(layout(bytes, ALIGN)?)?.as_ptr().cast()))
}

/// The same with an alignment: a power of two up to 4096.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_aligned_alloc(heap: *mut untorn_heap, align: usize, bytes: usize) -> *mut c_void {
    guard(null_mut(), || Ok(weak(heap)?.allocate(layout(bytes, align)?)?.as_ptr().cast()))
}

/// Memory for `n` elements, all zeros. NULL as untorn_malloc().
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_calloc(heap: *mut untorn_heap, n: usize, bytes: usize) -> *mut c_void {
    guard(null_mut(), || {
        with_heap(heap, |heap| {
            let all = n.checked_mul(bytes).ok_or_else(|| too_much(&format!("{n} times {bytes} bytes")))?;
            let _mutating = heap.mutate();
            let block = heap.allocate(layout(all, ALIGN)?)?;
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
                return Ok(heap.allocate(layout(bytes, ALIGN)?)?.as_ptr().cast());
            };
            let has = heap.size_of(old)?;
            if bytes <= has && bytes >= has / 2 {
                return Ok(address);
            }
            let _mutating = heap.mutate();
            let new = heap.allocate(layout(bytes, ALIGN)?)?;
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
    guard_status(|| {
        let heap = weak(heap)?;
        if let Some(address) = NonNull::new(address.cast::<u8>()) {
            // SAFETY: the caller's promise.
            unsafe { heap.free(address)? };
        }
        Ok(())
    })
}

/// Bytes that an allocation has, at least as many as were asked for. 0 with EINVAL or EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_malloc_size(heap: *mut untorn_heap, address: *mut c_void) -> usize {
    guard(0, || {
        let address = NonNull::new(address.cast::<u8>()).ok_or_else(|| Failure::null("the address"))?;
        Ok(weak(heap)?.size_of(address)?)
    })
}

/// Where the heap begins in memory: the same after every restart. NULL with EBADF. What lies in a heap
/// may keep this address to allocate through untorn_heap_allocate_at().
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_base(heap: *const untorn_heap) -> *mut c_void {
    guard(null_mut(), || {
        if heap.is_null() {
            let message = "the heap is not open (is it used by a static object that is made before it?)".to_owned();
            return Err(Failure { message, ..Failure::bad_handle("heap") });
        }
        with_heap(heap, |heap| Ok(heap.memory().0.as_ptr().cast()))
    })
}

/// Allocates in the open heap that begins at `base`: for allocators that lie in heaps themselves.
/// NULL as untorn_aligned_alloc(); EBADF: no heap is open there.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_allocate_at(base: *const c_void, align: usize, bytes: usize) -> *mut c_void {
    guard(null_mut(), || Ok(WeakHeap::at(base.cast())?.allocate(layout(bytes, align)?)?.as_ptr().cast()))
}

/// Frees what untorn_heap_allocate_at() gave. Returns 0, or -1 as untorn_free().
///
/// # Safety
/// Nobody uses the memory any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_heap_free_at(base: *const c_void, address: *mut c_void) -> c_int {
    guard_status(|| {
        if let Some(address) = NonNull::new(address.cast::<u8>()) {
            // SAFETY: the caller's promise.
            unsafe { WeakHeap::at(base.cast())?.free(address)? };
        }
        Ok(())
    })
}

/// # Safety
/// NULL or a string that stays unchanged during `'a`.
unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str> {
    if text.is_null() {
        return Err(Failure::null(what));
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| Failure::invalid(format!("{what} is not UTF-8")))
}

fn shape(type_name: &str, bytes: usize, align: usize, version: u32) -> Result<RootShape<'_>> {
    let layout =
        Layout::from_size_align(bytes, align).map_err(|_| Failure::invalid("no type has this size and alignment"))?;
    Ok(RootShape { type_name, layout, version })
}

/// Finds a root: `*found` is what was hung on this name, or NULL. The type's name, size, alignment and
/// version must be those that it was set with: otherwise UNTORN_E_LAYOUT_CHANGED, and
/// untorn_heap_get_root_info() tells what it was. Build the new one of it, set the root, commit: that is one
/// change. Returns 1: found; 0: there is no such root; -1: EINVAL, EUCLEAN, EFAULT, EBADF.
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
        let (name, type_name) = unsafe { (text(name, "the root's name")?, text(type_, "the type's name")?) };
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
        let (name, type_name) = unsafe { (text(name, "the root's name")?, text(type_, "the type's name")?) };
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
    guard_status(|| Ok(weak(heap)?.begin_mutation()?))
}

/// Ends what untorn_heap_begin() began. Returns 0, or -1: EINVAL (this thread has begun nothing), EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_end(heap: *mut untorn_heap) -> c_int {
    guard_status(|| match weak(heap)?.end_mutation()? {
        true => Ok(()),
        false => Err(Failure::invalid("this thread has begun no change of the heap")),
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

/// Fills `stats`, whose `size` the caller has set; reads the metadata of the whole heap. Returns 0, or
/// -1: EINVAL (also if this thread is in a change of the heap), EFAULT, EUCLEAN, EBADF.
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

fn convert(root: &RootInfo) -> untorn_heap_root_info {
    fn text<const N: usize>(text: &str) -> [c_char; N] {
        let mut bytes = [0; N];
        // The last byte stays NUL, whatever the text's length.
        for (to, &from) in bytes[..N - 1].iter_mut().zip(text.as_bytes()) {
            *to = from as c_char;
        }
        bytes
    }
    untorn_heap_root_info {
        size: size_of::<untorn_heap_root_info>(),
        address: root.address.as_ptr().cast(),
        bytes: root.size,
        align: root.align,
        version: root.version,
        name: text(&root.name),
        type_name: text(&root.type_name),
    }
}

/// Tells what a root points to, whatever its type: for programs whose layout has changed. The member `size`
/// of `info` is set by the caller. Returns 1: told; 0: there is no such root; -1: EINVAL, EUCLEAN (it
/// points out of the heap), EFAULT, EBADF.
///
/// # Safety
/// `name` is a string; `info` is NULL or as large as its `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_heap_get_root_info(
    heap: *const untorn_heap,
    name: *const c_char,
    info: *mut untorn_heap_root_info,
) -> c_int {
    guard(-1, || {
        // SAFETY: the caller's promise.
        let size = unsafe { versioned::checked_size(info) }?;
        // SAFETY: the caller's promise.
        let name = unsafe { text(name, "the root's name") }?;
        with_heap(heap, |heap| {
            let Some(found) = heap.root_info(name)? else { return Ok(0) };
            // SAFETY: the caller's promise; there is no padding.
            unsafe { versioned::write(&convert(&found), info, size) };
            Ok(1)
        })
    })
}

/// The same for the root number `n`, in no certain order: for going through all of them, from 0 on, while
/// none is set. Returns 1: told; 0: there are not so many; -1: EINVAL, EFAULT, EBADF.
///
/// # Safety
/// `info` is NULL or as large as its `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_heap_nth_root_info(
    heap: *const untorn_heap,
    n: usize,
    info: *mut untorn_heap_root_info,
) -> c_int {
    guard(-1, || {
        // SAFETY: the caller's promise.
        let size = unsafe { versioned::checked_size(info) }?;
        with_heap(heap, |heap| {
            let roots = heap.roots();
            let Some(found) = roots.get(n) else { return Ok(0) };
            // SAFETY: the caller's promise; there is no padding.
            unsafe { versioned::write(&convert(found), info, size) };
            Ok(1)
        })
    })
}
