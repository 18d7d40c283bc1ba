//! The allocator of collections in a heap.

use super::storable::Storable;
use crate::heap::alloc::registry::WeakHeap;
use crate::heap::log::section_thread::log;
use std::alloc::Layout;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

/// A vector in a heap.
pub type HeapVec<'h, T> = allocator_api2::vec::Vec<T, InHeap<'h>>;
/// A box in a heap.
pub type HeapBox<'h, T> = allocator_api2::boxed::Box<T, InHeap<'h>>;

/// An allocator for collections that live in a heap: the heap's address, which is the same after a restart.
///
/// A collection with this allocator must be dropped before the handle of the heap:
///
/// ```compile_fail,E0505
/// # let dir = tempfile::tempdir().unwrap();
/// let heap = untorn::heap::Heap::open_or_create(dir.path().join("heap"))?;
/// let mut numbers = untorn::heap::HeapVec::new_in(heap.allocator());
/// numbers.push(1);
/// heap.close()?;
/// println!("{numbers:?}");
/// # Ok::<(), untorn::Error>(())
/// ```
///
/// A type of the program's own that has such collections has a lifetime parameter for them, that of the handle; the
/// heap itself stores no lifetimes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct InHeap<'h> {
    base: usize,
    heap: PhantomData<&'h ()>,
}

impl<'h> InHeap<'h> {
    pub(crate) fn new(base: usize) -> InHeap<'h> {
        InHeap { base, heap: PhantomData }
    }

    /// Notes that a collection is about to change bytes: the thread's section logs them, and with the tracker `explicit`
    /// they join the dirty ranges. Bytes that are not in the heap are ignored.
    ///
    /// # Safety
    /// They can be read, and no other thread changes them.
    #[inline]
    pub(crate) unsafe fn changes(self, at: *const u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { log(at as usize, len) };
        if let Ok(heap) = WeakHeap::at(self.base as *const u8) {
            heap.tell(at, len);
        }
    }

    /// Like [`InHeap::changes`], for a value.
    #[inline]
    pub(crate) fn changes_value<T: ?Sized>(self, value: &mut T) {
        // SAFETY: the value is the caller's alone.
        unsafe { self.changes(std::ptr::from_mut(value).cast(), size_of_val(value)) };
    }

    /// Like [`InHeap::changes`], for a part of a vector; the part is clipped to the vector's capacity.
    #[inline]
    pub(crate) fn changes_part<T>(self, vector: &mut HeapVec<'_, T>, part: Range<usize>) {
        let (start, end) = (part.start.min(vector.capacity()), part.end.min(vector.capacity()));
        if start < end {
            // SAFETY: memory of the vector, which is the caller's alone.
            unsafe { self.changes(vector.as_mut_ptr().add(start).cast(), (end - start) * size_of::<T>()) };
        }
    }

    /// The allocator without the lifetime of a handle, for structures that keep the handle beside the collection.
    ///
    /// # Safety
    /// Nothing allocated with it is used after the heap is closed.
    pub unsafe fn unbound(self) -> InHeap<'static> {
        InHeap::new(self.base)
    }
}

// SAFETY: an address, which is that of the heap for ever.
unsafe impl Storable for InHeap<'_> {}
// SAFETY: a pointer into the heap, whose elements may be stored.
unsafe impl<T: Storable> Storable for HeapVec<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Storable> Storable for HeapBox<'_, T> {}

// SAFETY: blocks are the caller's until they are freed, and any copy of the allocator frees what another allocated.
// They stay where they are as long as the heap is open.
unsafe impl allocator_api2::alloc::Allocator for InHeap<'_> {
    fn allocate(&self, layout: Layout) -> std::result::Result<NonNull<[u8]>, allocator_api2::alloc::AllocError> {
        let block =
            WeakHeap::at(self.base as *const u8).and_then(|heap| heap.allocate_marked(layout)).map_err(|e| {
                tracing::error!(
                    id = "untorn.heap.no_memory",
                    error = %e, bytes = layout.size(), "no memory from the heap"
                );
                allocator_api2::alloc::AllocError
            })?;
        Ok(NonNull::slice_from_raw_parts(block, layout.size()))
    }

    unsafe fn deallocate(&self, address: NonNull<u8>, _layout: Layout) {
        // SAFETY: the caller's promise.
        let done = WeakHeap::at(self.base as *const u8).and_then(|heap| unsafe { heap.free(address) });
        if let Err(e) = done {
            tracing::error!(id = "untorn.heap.not_freed", error = %e, "a block of the heap could not be freed");
        }
    }
}
