//! Undoes a thread's section, in the heap or in a copy of it.

use super::ThreadSections;
use crate::heap::log::section_log::{Record, parse};
use crate::invariant;
use std::ptr::null;

impl ThreadSections {
    /// The records that the section has logged so far.
    fn records(&self) -> Vec<Record<'_>> {
        let Some(log) = self.log.as_ref().filter(|log| log.begun) else { return Vec::new() };
        // SAFETY: this thread's log, up to where it has written.
        let all = unsafe { std::slice::from_raw_parts(log.logs.records(log.place).as_ptr(), self.writer().used()) };
        parse(&all[log.begun_at..]).flatten().map(|found| found.1).collect()
    }

    /// Passes the section's old bytes and their addresses to `put`, newest first; returns the blocks that it has
    /// allocated.
    fn take_back(&self, mut put: impl FnMut(usize, &[u8])) -> Vec<usize> {
        let mut allocated = Vec::new();
        for record in self.records().iter().rev() {
            match record {
                Record::Store { address, old, len } => put(*address, &old[..*len]),
                Record::Bytes { address, old } => put(*address, old),
                Record::Allocated { address } => allocated.push(*address),
                _ => {}
            }
        }
        allocated
    }

    /// Undoes the section in a copy of a heap at this address; returns the blocks that it has allocated.
    pub(crate) fn undo_in(&self, base: usize, copy: &mut [u8]) -> Vec<usize> {
        self.take_back(|address, old| {
            if let Some(there) = copy.get_mut(address - base..).and_then(|rest| rest.get_mut(..old.len())) {
                there.copy_from_slice(old);
            }
        })
    }

    /// Undoes the section so far; returns the blocks that it has allocated, for the caller to free.
    ///
    /// # Safety
    /// No other thread has seen any of its changes.
    pub(crate) unsafe fn undo(&mut self) -> Vec<usize> {
        self.frees.clear();
        self.then.clear();
        if !self.log.as_ref().is_some_and(|log| log.begun) {
            return Vec::new();
        }
        let flushing = self.heap.logs.flushing();
        let mut allocated = self.take_back(|address, old| {
            let at = std::ptr::with_exposed_provenance_mut::<u8>(address);
            // SAFETY: bytes of the heap that this section has changed.
            unsafe {
                at.copy_from_nonoverlapping(old.as_ptr(), old.len());
                flushing.flush(invariant::LIVE_ABORT_DURABLE, address, old.len());
            }
        });
        flushing.fence();
        self.changed.clear();
        // The frees of the blocks of an earlier abort were undone, too.
        allocated.append(&mut self.aborted);
        self.aborted.clone_from(&allocated);
        self.first = null();
        // A kill within this leaks the blocks that it had allocated.
        self.writer().cut_back();
        for address in &allocated {
            self.log_record(&Record::Allocated { address: *address });
        }
        // The section goes on, so it keeps its dependencies.
        for on in self.depends.clone() {
            self.log_record(&Record::Depends { on });
        }
        if let Some(clock) = self.log.as_ref().map(|log| log.clock) {
            self.log_record(&Record::Clock { clock });
        }
        allocated
    }
}
