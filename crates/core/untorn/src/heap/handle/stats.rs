//! Statistics of a heap: used and free room.

use super::open_heap::{Heap, Quiescent};
use crate::heap::image::layout::{
    BITMAP_WORDS, BITMAPS_AT, CHUNK_BYTES, CHUNKS, DESCRIPTORS_AT, Descriptor, SEGMENT_BYTES, SIZES, Use, blocks,
};
use untorn_journal::{Error, Result};

/// Statistics of a heap, in bytes unless they say otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapStats {
    /// Length of the heap and of its file, which is sparse.
    pub heap_bytes: u64,
    /// Bytes of allocations, rounded up to their block sizes.
    pub used_bytes: u64,
    /// Bytes that can be allocated before the heap grows, in blocks of any size.
    pub free_bytes: u64,
    /// The number of allocations.
    pub allocations: u64,
    /// The number of named roots.
    pub roots: u64,
    /// Memory of the pages that were changed.
    pub private_bytes: u64,
    /// Address space that the heap may grow to.
    pub address_space_bytes: u64,
}

impl HeapStats {
    fn add(&mut self, used: u64, free: u64, allocations: u64) {
        self.used_bytes += used;
        self.free_bytes += free;
        self.allocations += allocations;
    }
}

impl Heap {
    /// Reads the metadata of all segments: 36 KiB per 4 MiB.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; [`Error::Invalid`] if this thread holds a mutation guard.
    pub fn stats(&self) -> Result<HeapStats> {
        let quiescent = self.quiesce()?;
        let mut stats = HeapStats { heap_bytes: self.memory().1 as u64, ..HeapStats::default() };
        let mut segment = 0;
        while segment < self.memory().1 / SEGMENT_BYTES {
            segment += self.segment_stats(&quiescent, segment, &mut stats)?;
        }
        stats.roots = self.roots().len() as u64;
        let maps = self.file().store().status().maps;
        if let Some(map) = maps.into_iter().find(|map| map.path == self.file().path()) {
            stats.private_bytes = map.private_bytes;
            stats.address_space_bytes = map.address_space_bytes;
        }
        Ok(stats)
    }

    /// Adds a segment's numbers; returns the number of segments that they cover.
    fn segment_stats(&self, _quiescent: &Quiescent<'_>, segment: usize, stats: &mut HeapStats) -> Result<usize> {
        // SAFETY: a mapped segment, which nobody changes.
        let at = |offset: usize| unsafe { self.memory().0.add(segment * SEGMENT_BYTES + offset) };
        let mut index = 1;
        while index < CHUNKS {
            // SAFETY: as above; any bytes are a descriptor.
            let descriptor = unsafe { at(DESCRIPTORS_AT).cast::<Descriptor>().add(index).read() };
            let corrupt = || {
                let number = segment * CHUNKS + index;
                Error::corrupt(self.file().path(), format!("chunk {number}: {descriptor:?}; `untorn check` shows more"))
            };
            match descriptor.what(index).ok_or_else(corrupt)? {
                Use::Free => stats.add(0, CHUNK_BYTES as u64, 0),
                Use::Blocks(class) => {
                    let words = blocks(class).div_ceil(64);
                    // SAFETY: as above.
                    let word = |n| unsafe { at(BITMAPS_AT).cast::<u64>().add(index * BITMAP_WORDS + n).read() };
                    let used = (0..words).map(|n| u64::from(word(n).count_ones())).sum::<u64>();
                    let (bytes, free) = (u64::from(SIZES[class]), (blocks(class) as u64).saturating_sub(used));
                    stats.add(used * bytes, free * bytes, used);
                }
                Use::Large(chunks) => {
                    stats.add((chunks * CHUNK_BYTES) as u64, 0, 1);
                    index += chunks - 1;
                }
                Use::Huge(segments) if (segment + segments) * SEGMENT_BYTES <= self.memory().1 => {
                    stats.add((segments * SEGMENT_BYTES - CHUNK_BYTES) as u64, 0, 1);
                    return Ok(segments);
                }
                Use::Huge(_) | Use::Rest => return Err(corrupt()),
            }
            index += 1;
        }
        Ok(1)
    }
}
