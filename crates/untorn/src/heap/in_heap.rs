//! The allocator that collections in a heap have, and the collections that come with it.

use super::registry::WeakHeap;
use std::alloc::Layout;
use std::ptr::NonNull;

/// A vector in a heap.
pub type HeapVec<T> = allocator_api2::vec::Vec<T, InHeap>;
/// A box in a heap.
pub type HeapBox<T> = allocator_api2::boxed::Box<T, InHeap>;

/// An allocator for collections that live in a heap: the heap's address, which is the same after a restart.
///
/// ```ignore
/// let map = hashbrown::HashMap::with_capacity_in(1, heap.allocator());
/// ```
///
/// A collection that is empty may point to a constant of the program, which is elsewhere in the next process:
/// `hashbrown` does so as long as it has allocated nothing. Make its maps and sets with room for one entry, and never
/// shrink them to none. (Vectors and boxes of `allocator-api2` point to nothing when they are empty.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct InHeap {
    pub(super) base: usize,
}

// SAFETY: blocks are the caller's until they are freed, and any copy of the allocator frees what another allocated.
unsafe impl allocator_api2::alloc::Allocator for InHeap {
    fn allocate(&self, layout: Layout) -> std::result::Result<NonNull<[u8]>, allocator_api2::alloc::AllocError> {
        let block = WeakHeap::at(self.base as *const u8).and_then(|heap| heap.allocate(layout)).map_err(|e| {
            tracing::error!(error = %e, bytes = layout.size(), "no memory from the heap");
            allocator_api2::alloc::AllocError
        })?;
        Ok(NonNull::slice_from_raw_parts(block, layout.size()))
    }

    unsafe fn deallocate(&self, address: NonNull<u8>, _layout: Layout) {
        // SAFETY: the caller's promise.
        let done = WeakHeap::at(self.base as *const u8).and_then(|heap| unsafe { heap.free(address) });
        if let Err(e) = done {
            tracing::error!(error = %e, "a block of the heap could not be freed");
        }
    }
}
