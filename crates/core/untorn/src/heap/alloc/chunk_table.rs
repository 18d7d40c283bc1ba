//! The table of a heap's chunks: their owners and their free blocks. It is kept in memory beside the heap, read from
//! the heap's metadata a segment at a time, and forgotten as a whole.

use super::metadata::{Metadata, Number, split};
use crate::heap::image::layout::{CHUNK_BYTES, CHUNKS, SEGMENT_BYTES};
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64};

/// No arena owns the chunk: the lock of the space guards it.
pub(crate) const NOBODY: u8 = u8::MAX;
/// No size class.
pub(crate) const NO_BLOCKS: u8 = u8::MAX;
/// No place in any list.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// Free blocks that nobody has counted yet.
pub(crate) const UNCOUNTED: u16 = u16::MAX;

/// The state of a chunk.
#[derive(Clone, Copy)]
pub(crate) struct Chunk {
    /// Free blocks, or `UNCOUNTED`.
    pub free: u16,
    /// No word of the bitmap before this one has a free bit.
    pub hint: u8,
    /// The class of its blocks, or `NO_BLOCKS`.
    pub class: u8,
    /// Its index in the list of its class, or `NOWHERE`.
    pub place: u32,
}

impl Chunk {
    pub(crate) const NONE: Chunk = Chunk { free: 0, hint: 0, class: NO_BLOCKS, place: NOWHERE };
}

/// On a cache line of its own: threads own chunks that are neighbours.
#[repr(align(64))]
struct Cell {
    owner: AtomicU8,
    chunk: UnsafeCell<Chunk>,
}

/// The chunks of a segment.
struct Row {
    /// The generation in which they were read. A row of an older generation counts as unread.
    generation: AtomicU64,
    cells: [Cell; CHUNKS],
}

// SAFETY: a chunk is accessed under its owner's lock alone.
unsafe impl Sync for Row {}

/// The states of a heap's chunks, and the heap's metadata.
pub(crate) struct ChunkTable {
    pub metadata: Metadata,
    rows: Box<[AtomicPtr<Row>]>,
    generation: AtomicU64,
}

impl ChunkTable {
    /// Makes a table for a heap that may grow to `segments_most` segments.
    pub(crate) fn new(metadata: Metadata, segments_most: usize) -> ChunkTable {
        let rows: Box<[*mut Row]> = vec![null_mut(); segments_most].into_boxed_slice();
        // SAFETY: an atomic pointer has the size and the bytes of a pointer. Made in this way the null pointers of a
        // large heap take no memory.
        let rows = unsafe { Box::from_raw(Box::into_raw(rows) as *mut [AtomicPtr<Row>]) };
        ChunkTable { metadata, rows, generation: AtomicU64::new(1) }
    }

    pub(crate) fn segments_most(&self) -> usize {
        self.rows.len()
    }

    fn row(&self, segment: usize) -> Option<&Row> {
        let row = self.rows.get(segment)?.load(Acquire);
        // SAFETY: a row lives as long as the table.
        let row = unsafe { row.as_ref()? };
        (row.generation.load(Acquire) == self.generation.load(Acquire)).then_some(row)
    }

    fn cell(&self, number: Number) -> &Cell {
        let (segment, index) = split(number);
        &self.row(segment).expect("a segment that was read").cells[index]
    }

    /// Marks a segment as read: nothing is known of its chunks yet, and nobody owns them. The caller holds the lock of
    /// the space.
    pub(crate) fn enter(&self, segment: usize) {
        let slot = &self.rows[segment];
        if slot.load(Acquire).is_null() {
            let cell = || Cell { owner: AtomicU8::new(NOBODY), chunk: UnsafeCell::new(Chunk::NONE) };
            let row = Row { generation: AtomicU64::new(0), cells: std::array::from_fn(|_| cell()) };
            slot.store(Box::into_raw(Box::new(row)), Release);
        }
        // SAFETY: as in `row`.
        let row = unsafe { &*slot.load(Acquire) };
        for cell in &row.cells {
            cell.owner.store(NOBODY, Relaxed);
            // SAFETY: an unread segment's chunks are nobody's, and so the caller's.
            unsafe { *cell.chunk.get() = Chunk::NONE };
        }
        row.generation.store(self.generation.load(Relaxed), Release);
    }

    /// Marks a segment as unread again. The caller holds the lock of the space, and nobody owns its chunks.
    pub(crate) fn leave(&self, segment: usize) {
        if let Some(row) = self.row(segment) {
            row.generation.store(0, Release);
        }
    }

    /// Marks all segments as unread. The caller holds every lock of the heap.
    pub(crate) fn forget(&self) {
        self.generation.fetch_add(1, Release);
    }

    /// The chunk that an address may be in.
    #[inline]
    pub(crate) fn number_at(&self, address: *mut u8) -> Option<Number> {
        let offset = self.metadata.offset_of(address);
        (offset / SEGMENT_BYTES < self.rows.len()).then_some((offset / CHUNK_BYTES) as Number)
    }

    /// The owner of a chunk; nobody owns a chunk of an unread segment.
    #[inline]
    pub(crate) fn owner(&self, number: Number) -> u8 {
        let (segment, index) = split(number);
        self.row(segment).map_or(NOBODY, |row| row.cells[index].owner.load(Acquire))
    }

    /// Sets the owner of a chunk. The caller holds the locks of the old owner and of the new one.
    pub(crate) fn set_owner(&self, number: Number, owner: u8) {
        self.cell(number).owner.store(owner, Release);
    }

    /// The state of a chunk.
    ///
    /// # Safety
    /// The caller holds its owner's lock, and no other reference to it.
    #[allow(clippy::mut_from_ref, reason = "the lock makes it the caller's")]
    pub(crate) unsafe fn chunk(&self, number: Number) -> &mut Chunk {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.cell(number).chunk.get() }
    }
}

impl Drop for ChunkTable {
    fn drop(&mut self) {
        for row in self.rows.iter_mut().map(|row| *row.get_mut()).filter(|row| !row.is_null()) {
            // SAFETY: made by `Box::into_raw` in `enter`, and never freed before.
            drop(unsafe { Box::from_raw(row) });
        }
    }
}
