//! A heap in plain memory, without a file: its allocator and its checker, for tests that damage it.

use super::arena::Arena;
use super::chunk_table::{ChunkTable, NOBODY};
use super::metadata::{Metadata, Refused};
use super::space::{Backing, Space, size_of_use};
use crate::heap::image::check::{Checker, HeapImage};
use crate::heap::image::layout::*;
use crate::heap::image::report::HeapReport;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use untorn_journal::{Error, Result};

/// Zeroed memory for a heap to grow in; pages that nothing touched take no room.
pub(crate) struct Memory {
    base: NonNull<u8>,
    most: usize,
    segments: Cell<usize>,
}

impl Memory {
    /// A new heap of one segment that may grow to `most` segments.
    pub(crate) fn new(most: usize) -> Memory {
        // SAFETY: a size that is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(Memory::layout(most)) }).expect("memory");
        let memory = Memory { base, most, segments: Cell::new(1) };
        memory.set_segments(1);
        memory
    }

    fn layout(most: usize) -> Layout {
        Layout::from_size_align(most * SEGMENT_BYTES, 4096).expect("a layout")
    }

    /// Sets the number of segments, and writes a header that says so.
    pub(crate) fn set_segments(&self, segments: usize) {
        assert!((1..=self.most).contains(&segments));
        self.segments.set(segments);
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            segment_bytes: SEGMENT_BYTES as u32,
            // Pointers in the heap are valid for this address.
            address: ADDRESS_MIN as u64,
            address_space: (self.most * SEGMENT_BYTES) as u64,
            segments: segments as u64,
            sum: 0,
        };
        // SAFETY: the first bytes of the allocation.
        unsafe { self.base.cast::<Header>().write(header.summed()) };
    }

    #[cfg(test)]
    pub(crate) fn segments(&self) -> usize {
        self.segments.get()
    }

    fn table(&self) -> Arc<ChunkTable> {
        Arc::new(ChunkTable::new(Metadata::new(self.base.as_ptr(), None, None), self.most))
    }

    /// The bytes of the heap.
    ///
    /// # Safety
    /// No allocator of this memory works while the bytes are changed.
    #[allow(clippy::mut_from_ref, reason = "the caller promises to be alone")]
    pub(crate) unsafe fn bytes(&self) -> &mut [u8] {
        // SAFETY: this many bytes were allocated; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.segments.get() * SEGMENT_BYTES) }
    }

    pub(crate) fn check(&self) -> Result<HeapReport> {
        Ok(Checker::new(self, Path::new("memory"), &|_, _| {})?.report)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.base.as_ptr(), Memory::layout(self.most)) };
    }
}

impl Backing for Memory {
    fn resize(&self, segments: usize) -> Result<()> {
        if segments > self.most {
            return Err(Error::invalid("no room"));
        }
        let old = self.segments.get().min(segments);
        self.segments.set(segments);
        // SAFETY: inside of the allocation, and nobody uses the bytes behind the old end.
        unsafe { self.base.add(old * SEGMENT_BYTES).write_bytes(0, (segments - old) * SEGMENT_BYTES) };
        Ok(())
    }

    fn check_memory(&self, _bytes: u64) -> Result<()> {
        Ok(())
    }

    fn release(&self, offset: usize, bytes: usize) -> Result<()> {
        assert!(offset + bytes <= self.segments.get() * SEGMENT_BYTES, "beyond the end");
        // SAFETY: inside of the allocation; the allocator says that nobody uses it.
        unsafe { self.base.add(offset).write_bytes(0, bytes) };
        Ok(())
    }
}

impl HeapImage for Memory {
    fn bytes(&self) -> Result<u64> {
        Ok((self.segments.get() * SEGMENT_BYTES) as u64)
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        // SAFETY: only this thread uses the memory, and no slice of it is about.
        buf.copy_from_slice(&unsafe { self.bytes() }[offset as usize..][..buf.len()]);
        Ok(())
    }
}

/// An allocator at work, and its allocations: no two overlap, and none overlaps metadata.
pub(crate) struct Work<'a> {
    pub memory: &'a Memory,
    pub space: Space,
    /// The arenas of two threads, which take turns.
    arenas: [Arena; 2],
    turn: usize,
    pub given: BTreeMap<usize, usize>,
}

impl Work<'_> {
    pub(crate) fn new(memory: &Memory) -> Work<'_> {
        let table = memory.table();
        Work {
            memory,
            space: Space::new(table.clone(), memory.segments.get()),
            arenas: [Arena::new(table.clone(), 0), Arena::new(table, 1)],
            turn: 0,
            given: BTreeMap::new(),
        }
    }

    fn address(&self, offset: usize) -> *mut u8 {
        self.memory.base.as_ptr().wrapping_add(offset)
    }

    /// Switches to the other thread.
    #[cfg(test)]
    pub(crate) fn turn(&mut self) {
        self.turn = 1 - self.turn;
    }

    /// Forgets all state beside the heap, as after a rollback.
    #[cfg(test)]
    pub(crate) fn forget(&mut self) {
        self.space.forget(self.memory.segments());
        self.arenas.iter_mut().for_each(Arena::forget);
    }

    /// Gives freed chunks back, as a commit does first.
    #[cfg(test)]
    pub(crate) fn give_back(&mut self) {
        loop {
            let runs = self.space.take_freed(3);
            if runs.is_empty() {
                break;
            }
            for run in runs {
                let (at, bytes) = (run.start as usize * CHUNK_BYTES, run.len() * CHUNK_BYTES);
                self.memory.release(at, bytes).expect("memory");
                self.space.given_back(run, true);
            }
        }
        self.space.trim(self.memory).expect("trim");
    }

    /// Allocates; returns the offset.
    pub(crate) fn allocate(&mut self, bytes: usize) -> std::result::Result<usize, Refused> {
        let [one, other] = &mut self.arenas;
        let (mine, other) = if self.turn == 0 { (one, other) } else { (other, one) };
        let block = match class_of(bytes.max(1), 8) {
            Some(class) => {
                let mut steal = |arena: &mut Arena| {
                    let number = other.roomy(class);
                    number.inspect(|number| arena.adopt(other, *number, class)).is_some()
                };
                self.space.allocate_block(mine, class, &mut steal, self.memory)?
            }
            None => self.space.allocate_chunks(bytes, self.memory)?,
        };
        let at = block as usize - self.memory.base.as_ptr() as usize;
        let bytes = self.size_of(at)?;
        assert!(at + bytes <= self.memory.segments.get() * SEGMENT_BYTES, "beyond the end");
        assert!(at % SEGMENT_BYTES >= CHUNK_BYTES, "metadata was given out");
        let before = self.given.range(..at + bytes).next_back();
        assert!(before.is_none_or(|(other, bytes)| other + bytes <= at), "given out twice");
        self.given.insert(at, bytes);
        Ok(at)
    }

    /// Frees the allocation at an offset, if there is one.
    pub(crate) fn free(&mut self, at: usize) -> std::result::Result<(), Refused> {
        let address = self.address(at);
        match self.space.arena.owner_of(address) {
            NOBODY => self.space.free(&mut self.arenas[self.turn], address, self.memory)?,
            owner => {
                let arena = &mut self.arenas[usize::from(owner)];
                if let Some((number, class)) = arena.free_at(address)? {
                    self.space.take_back(arena, number, class);
                }
            }
        }
        self.given.remove(&at);
        Ok(())
    }

    pub(crate) fn size_of(&mut self, at: usize) -> std::result::Result<usize, Refused> {
        let address = self.address(at);
        match self.space.arena.owner_of(address) {
            NOBODY => self.space.size_of(address),
            owner => Ok(size_of_use(self.arenas[usize::from(owner)].find(address)?.1)),
        }
    }
}

/// Fuzz target: lays bytes over a heap's metadata, behind the header, checks the heap, and lets an allocator work in
/// it. The first byte gives the number of segments, among which the rest is divided, and the number of bytes that are
/// operations. Panics if Untorn has a bug.
pub fn fuzz_heap(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else { return };
    let segments = usize::from(first % 3) + 1;
    let (operations, rest) = rest.split_at(rest.len().min(usize::from(first / 4)));
    let memory = Memory::new(6);
    memory.set_segments(segments);
    for (n, share) in rest.chunks(rest.len().div_ceil(segments).max(1)).enumerate().take(segments) {
        let share = &share[..share.len().min(CHUNK_BYTES - DESCRIPTORS_AT)];
        // SAFETY: nobody uses the heap yet.
        let at = &mut unsafe { memory.bytes() }[n * SEGMENT_BYTES + DESCRIPTORS_AT..];
        at[..share.len()].copy_from_slice(share);
    }
    let report = memory.check().expect("memory can be read");
    let mut work = Work::new(&memory);
    for operation in operations {
        let size = usize::from(operation / 4) + 1;
        let done = match operation % 4 {
            0 => work.allocate(size * 40).map(drop),
            1 => work.allocate(size * 20_000).map(drop),
            2 => {
                let at = work.given.keys().nth(size % work.given.len().max(1)).copied();
                at.map_or(Ok(()), |at| work.free(at))
            }
            _ => {
                // An address that may have been allocated before.
                let at = size * CHUNK_BYTES + (size % 3) * 4096;
                let used = work.given.range(..=at).next_back().is_some_and(|(other, bytes)| other + bytes > at);
                if used { Ok(()) } else { work.free(at) }
            }
        };
        if let Err(Refused::Corrupt(detail)) = done {
            let blocks = report.problems.iter().filter(|problem| !problem.starts_with("root")).count();
            assert!(blocks > 0, "called sound, and then {detail}");
        }
    }
}
