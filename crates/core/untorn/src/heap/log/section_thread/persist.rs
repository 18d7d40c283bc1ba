//! The changes of a section in memory that needs flushes: they are durable before the section ends.

use super::{Changed, ThreadSections};
use crate::invariant;

impl ThreadSections {
    /// Notes bytes that the section changes, if they have to be flushed.
    pub(super) fn has_changed(&mut self, bytes: Changed) {
        if self.log.as_ref().is_some_and(|log| log.is_checked) {
            self.changed.push(bytes);
        }
    }

    /// Makes everything durable that the section has changed, before it ends, if the memory needs flushes. `size_of` says
    /// how long the block at an address is, if there is one.
    #[inline]
    pub(crate) fn persist_changes(&mut self, size_of: impl Fn(usize) -> Option<usize>) {
        if !self.changed.is_empty() {
            self.persist_all(&size_of);
        }
    }

    #[cold]
    fn persist_all(&mut self, size_of: &dyn Fn(usize) -> Option<usize>) {
        let (flushing, addresses) = (self.heap.logs.flushing(), self.heap.addresses.clone());
        let mut referenced = Vec::new();
        for Changed { address, len, follows } in self.changed.drain(..) {
            // SAFETY: bytes in the heap, which is mapped, and to which the section alone stores.
            unsafe { flushing.flush(invariant::LIVE_CHANGES_DURABLE, address, len) };
            if follows {
                let words = address.next_multiple_of(8)..(address + len) & !7;
                // SAFETY: as above.
                let word = |at: usize| unsafe { std::ptr::with_exposed_provenance::<usize>(at).read_volatile() };
                referenced.extend(words.step_by(8).map(word).filter(|target| addresses.contains(target)));
            }
        }
        referenced.sort_unstable();
        referenced.dedup();
        for (block, bytes) in referenced.into_iter().filter_map(|block| Some((block, size_of(block)?))) {
            // SAFETY: a block in the heap.
            unsafe { flushing.flush(invariant::LIVE_REFERENCED_DURABLE, block, bytes) };
        }
        flushing.fence();
    }
}
