//! Exported functions: allocation in persistent heaps.

use std::alloc::Layout;
use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};

use untorn::heap::WeakHeap;

use crate::boundary::error::untorn_error::UNTORN_E_NO_MEMORY;
use crate::boundary::error::{Failure, Result, guard, guard_status};
use crate::heaps::heap::{untorn_heap, weak, with_heap};

fn layout(bytes: usize, align: usize) -> Result<Layout> {
    if !align.is_power_of_two() {
        return Err(Failure::invalid(format!("an alignment of {align} is not a power of two")));
    }
    Layout::from_size_align(bytes, align).map_err(|_| too_much(&format!("{bytes} bytes")))
}

fn too_much(what: &str) -> Failure {
    let message = format!("{what} are more than a heap can have");
    Failure { kind: UNTORN_E_NO_MEMORY, errno: libc::ENOMEM, message }
}

/// The alignment of `malloc`, which is enough for every basic type.
const ALIGN: usize = 16;

/// Allocates memory in the heap, uninitialised, aligned to 16 bytes. A committed allocation stays allocated
/// after a restart: make the memory reachable from a root. NULL: ENOMEM, ENOSPC, EBADF …
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_malloc(heap: *mut untorn_heap, bytes: usize) -> *mut c_void {
    guard(null_mut(), || Ok(weak(heap)?.allocate(layout(bytes, ALIGN)?)?.as_ptr().cast()))
}

/// Allocates aligned memory in the heap; `align` is a power of two up to 4096. Otherwise as
/// untorn_heap_malloc().
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_aligned_alloc(heap: *mut untorn_heap, align: usize, bytes: usize) -> *mut c_void {
    guard(null_mut(), || Ok(weak(heap)?.allocate(layout(bytes, align)?)?.as_ptr().cast()))
}

/// Allocates memory for `n` elements of `bytes` bytes each, filled with zeros. NULL as untorn_heap_malloc().
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_calloc(heap: *mut untorn_heap, n: usize, bytes: usize) -> *mut c_void {
    guard(null_mut(), || {
        with_heap(heap, |heap| {
            let all = n.checked_mul(bytes).ok_or_else(|| too_much(&format!("{n} times {bytes} bytes")))?;
            // No one knows the new block before this returns, so a process that ends here has lost nothing.
            let _held = heap.hold_cuts();
            let block = heap.allocate(layout(all, ALIGN)?)?;
            // SAFETY: allocated just now with so many bytes.
            unsafe { block.write_bytes(0, all) };
            heap.mark_dirty(block.as_ptr(), all)?;
            Ok(block.as_ptr().cast())
        })
    })
}

/// Changes the size of an allocation, which may move: the contents are copied, as far as they fit, and the
/// old memory is freed. `address` NULL: as untorn_heap_malloc(). NULL with an error: the old allocation is
/// unchanged.
///
/// # Safety
/// `address` is NULL or an allocation that no other code uses.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_heap_realloc(
    heap: *mut untorn_heap,
    address: *mut c_void,
    bytes: usize,
) -> *mut c_void {
    guard(null_mut(), || {
        with_heap(heap, |heap| {
            let Some(old) = NonNull::new(address.cast::<u8>()) else {
                return Ok(heap.allocate(layout(bytes, ALIGN)?)?.as_ptr().cast());
            };
            let has = heap.size_of(old)?;
            if bytes <= has && bytes >= has / 2 {
                return Ok(address);
            }
            // No one knows the new block before this returns, so a process that ends here has lost nothing.
            let _held = heap.hold_cuts();
            let new = heap.allocate(layout(bytes, ALIGN)?)?;
            // SAFETY: both are allocations of at least so many bytes, and not the same.
            unsafe {
                new.copy_from_nonoverlapping(old, bytes.min(has));
                heap.mark_dirty(new.as_ptr(), bytes.min(has))?;
                heap.free(old)?;
            }
            Ok(new.as_ptr().cast())
        })
    })
}

/// Frees an allocation of the heap; NULL does nothing. Returns 0, or -1: EINVAL (not an allocation of this
/// heap, or already freed: nothing was changed), EBADF.
///
/// # Safety
/// No code uses the memory any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_heap_free(heap: *mut untorn_heap, address: *mut c_void) -> c_int {
    guard_status(|| {
        let heap = weak(heap)?;
        if let Some(address) = NonNull::new(address.cast::<u8>()) {
            // SAFETY: the caller's promise.
            unsafe { heap.free(address)? };
        }
        Ok(())
    })
}

/// Returns the size of an allocation, which is at least the size that was requested. 0 with EINVAL or
/// EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_malloc_usable_size(heap: *mut untorn_heap, address: *mut c_void) -> usize {
    guard(0, || {
        let address = NonNull::new(address.cast::<u8>()).ok_or_else(|| Failure::null("the address"))?;
        Ok(weak(heap)?.size_of(address)?)
    })
}

/// Allocates in the open heap whose address is `base`: for allocators that are stored in heaps. NULL as
/// untorn_heap_aligned_alloc(); EBADF: no heap is open at that address.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_allocate_at(base: *const c_void, align: usize, bytes: usize) -> *mut c_void {
    guard(null_mut(), || Ok(WeakHeap::at(base.cast())?.allocate_marked(layout(bytes, align)?)?.as_ptr().cast()))
}

/// Frees an allocation in the open heap whose address is `base`. Returns 0, or -1 as untorn_heap_free().
///
/// # Safety
/// No code uses the memory any more.
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
