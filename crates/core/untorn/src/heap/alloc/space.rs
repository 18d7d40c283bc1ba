//! The space of a heap: its segments, which chunks are free, and allocations of whole chunks and segments.
//!
//! The heap records the use of its chunks in its metadata. The free chunks are remembered beside the heap, and read
//! from the metadata on demand, a segment at a time and in any order. So opening a heap reads nothing, a rollback
//! forgets everything, and no call reads more than a few segments, however large the heap is.

use super::arena::Arena;
use super::chunk_table::{ChunkTable, NOBODY};
use super::metadata::{Metadata, Number, Refused, Result, corrupt, split};
use crate::heap::image::layout::*;
use crate::invariant;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use untorn_os::holds;

/// The most segments that one allocation reads before the heap grows.
const LOOKS_MOST: usize = 8;
/// The most segments that an allocation of whole segments reads, which is little beside the time to fill one.
const LOOKS_MOST_HUGE: usize = 64;

/// The calls that the allocator makes to the heap's file.
pub(crate) trait Backing {
    /// Makes the heap this many segments long, longer or shorter.
    fn resize(&self, segments: usize) -> untorn_journal::Result<()>;
    /// Makes an unused range read as zeros, and frees its room.
    fn release(&self, offset: usize, bytes: usize) -> untorn_journal::Result<()>;
    /// Checks that this many bytes may be in use.
    fn check_memory(&self, bytes: u64) -> untorn_journal::Result<()>;
    /// Makes the header page of a group of segments writable.
    fn unlock_header(&self, _group: usize) -> untorn_journal::Result<()> {
        Ok(())
    }
    /// Makes the header page of a group of segments read-only again.
    fn lock_header(&self, _group: usize) {}
}

/// Runs `work` while the page of a header is writable.
fn with_header<T>(ground: &dyn Backing, group: usize, work: impl FnOnce() -> Result<T>) -> Result<T> {
    ground.unlock_header(group).map_err(Refused::Grow)?;
    let done = work();
    ground.lock_header(group);
    done
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Known {
    #[default]
    Nothing,
    /// Its metadata was read.
    All,
    /// It lies inside of an allocation, and so has no metadata.
    Inside,
}

/// The state of a segment beside the heap.
#[derive(Clone, Copy, Default)]
struct Segment {
    /// Free chunks, one bit each.
    free: u64,
    /// Freed chunks that still take room in the file, one bit each.
    freed: u64,
    /// The longest run of free chunks.
    run: u8,
    known: Known,
}

/// All chunks of a segment but its metadata.
const ALL_FREE: u64 = !1;

/// The part of a heap's space that one lock guards, and the chunks that no other arena owns.
pub(crate) struct Space {
    table: Arc<ChunkTable>,
    /// All segments of the heap.
    segments: Vec<Segment>,
    /// The number of segments that are not read yet.
    unread: usize,
    /// The segment to be read next, from the end of the heap towards its start.
    next: usize,
    /// The segment in which a free chunk was found last.
    recent: usize,
    pub(crate) arena: Arena,
    /// Segments with free chunks, by the length of their longest run.
    by_run: [BTreeSet<u32>; CHUNKS],
    /// Segments with freed chunks that still take room.
    freed: Vec<u32>,
}

impl Space {
    /// Makes the space of a heap with this many segments.
    pub(crate) fn new(table: Arc<ChunkTable>, segments: usize) -> Space {
        Space {
            segments: vec![Segment::default(); segments],
            unread: segments,
            next: segments.saturating_sub(1),
            recent: segments.saturating_sub(1),
            arena: Arena::new(table.clone(), NOBODY),
            by_run: [const { BTreeSet::new() }; CHUNKS],
            freed: Vec::new(),
            table,
        }
    }

    /// Forgets everything, after a rollback. The caller holds every lock, and makes all arenas forget, too.
    pub(crate) fn forget(&mut self, segments: usize) {
        self.table.forget();
        // A segment that had room is likely to have some again.
        let recent = self.recent.min(segments.saturating_sub(1));
        *self = Space { next: recent, recent, ..Space::new(self.table.clone(), segments) };
    }

    fn metadata(&self) -> &Metadata {
        &self.table.metadata
    }

    fn all(&self) -> usize {
        self.segments.len()
    }

    /// Reads a segment's metadata. A segment whose metadata makes no sense stays unread, and nothing in it is believed.
    fn look_at(&mut self, segment: usize) -> Result<()> {
        if self.segments[segment].known != Known::Nothing {
            return Ok(());
        }
        let metadata = self.metadata();
        if metadata.is_inside(segment) && holds(invariant::INSIDES_SKIPPED) {
            self.segments[segment].known = Known::Inside;
            self.unread -= 1;
            return Ok(());
        }
        let first = (segment * CHUNKS) as Number;
        let (mut free, mut with_blocks) = (0, Vec::new());
        let mut index = 1;
        while index < CHUNKS {
            let number = first + index as Number;
            match metadata.use_of(number)? {
                Use::Free => free |= 1 << index,
                Use::Blocks(class) => with_blocks.push((number, class)),
                Use::Large(chunks) => {
                    metadata.check_large(number, chunks)?;
                    index += chunks - 1;
                }
                Use::Huge(segments) => {
                    metadata.check_huge(number, segments, self.all())?;
                    break;
                }
                Use::Rest => {
                    return Err(corrupt(
                        number,
                        format_args!("marked as a part of an allocation, but no allocation contains it"),
                    ));
                }
            }
            index += 1;
        }
        self.enter(segment, free);
        for (number, class) in with_blocks {
            self.arena.remember(number, class);
        }
        Ok(())
    }

    /// Notes that a segment is read.
    fn enter(&mut self, segment: usize, free: u64) {
        if self.segments[segment].known == Known::Nothing {
            self.unread -= 1;
        }
        self.segments[segment].known = Known::All;
        self.table.enter(segment);
        self.set_free(segment, free);
    }

    /// Reads one more segment. False: all segments are read already.
    fn look_further(&mut self) -> Result<bool> {
        if self.unread == 0 {
            return Ok(false);
        }
        while self.segments[self.next].known != Known::Nothing {
            self.next = self.next.checked_sub(1).unwrap_or(self.all() - 1);
        }
        self.look_at(self.next)?;
        Ok(true)
    }

    fn set_free(&mut self, segment: usize, free: u64) {
        let (old, new) = (self.segments[segment].run as usize, longest_run(free));
        self.segments[segment].free = free;
        self.segments[segment].freed &= free;
        if old == new {
            return;
        }
        self.segments[segment].run = new as u8;
        self.by_run[old].remove(&(segment as u32));
        if new > 0 {
            self.by_run[new].insert(segment as u32);
        }
    }

    fn set_chunks_free(&mut self, first: Number, chunks: usize, free: bool) {
        let (segment, index) = split(first);
        let (bits, old) = (run_of(chunks) << index, self.segments[segment].free);
        self.set_free(segment, if free { old | bits } else { old & !bits });
    }

    /// Notes free chunks whose old bytes still take room in the file until they are given back.
    fn note_freed(&mut self, first: Number, chunks: usize) {
        let (segment, index) = split(first);
        if self.segments[segment].freed == 0 {
            self.freed.push(segment as u32);
        }
        self.segments[segment].freed |= run_of(chunks) << index;
    }

    /// Finds a run of free chunks in one segment, best fit first.
    fn find_run(&mut self, chunks: usize) -> Option<Number> {
        let segment = *self.by_run[chunks..].iter().find_map(BTreeSet::first)?;
        let free = self.segments[segment as usize].free;
        let starts = (1..chunks).fold(free, |starts, n| starts & (free >> n));
        self.recent = segment as usize;
        Some(segment * CHUNKS as Number + starts.trailing_zeros())
    }

    /// Allocates a block for an arena that has none of its class. `steal` lets the arena adopt a chunk of another
    /// arena.
    pub(crate) fn allocate_block(
        &mut self,
        arena: &mut Arena,
        class: usize,
        steal: &mut dyn FnMut(&mut Arena) -> bool,
        ground: &dyn Backing,
    ) -> Result<*mut u8> {
        let mut looks = LOOKS_MOST;
        loop {
            if let Some(block) = arena.take(class) {
                return Ok(block);
            }
            if let Some(number) = self.arena.roomy(class) {
                arena.adopt(&mut self.arena, number, class);
            } else if let Some(number) = self.find_run(1) {
                self.set_chunks_free(number, 1, false);
                self.metadata().set_use(number, Use::Blocks(class), 0);
                self.metadata().settle();
                self.arena.remember(number, class);
                arena.adopt(&mut self.arena, number, class);
            } else if looks > 0 && self.look_further()? {
                looks -= 1;
            } else if !steal(arena) {
                self.grow(1, ground)?;
            }
        }
    }

    /// Grows the heap by empty segments.
    fn grow(&mut self, more: usize, ground: &dyn Backing) -> Result<()> {
        let new = self.all().checked_add(more).ok_or(Refused::Absurd)?;
        let header = self.metadata().header();
        if header != header.summed() || header.segments != self.all() as u64 {
            return Err(Refused::Corrupt(format!("the header was overwritten: {header:?}")));
        }
        if new > self.table.segments_most() || ground.check_memory((new * SEGMENT_BYTES) as u64).is_err() {
            // Only chunks in use count against the memory limit: read all segments to find the free ones.
            while self.look_further()? {}
            ground.check_memory(self.used_bytes() + (more * SEGMENT_BYTES) as u64).map_err(Refused::Grow)?;
        }
        with_header(ground, 0, || {
            ground.resize(new).map_err(Refused::Grow)?;
            self.metadata().set_header(Header { segments: new as u64, ..header });
            self.metadata().settle();
            Ok(())
        })?;
        for segment in self.all()..new {
            self.segments.push(Segment::default());
            self.unread += 1;
            self.enter(segment, ALL_FREE);
        }
        Ok(())
    }

    /// Sets the number of bytes that the heap may grow to.
    pub(crate) fn set_address_space(&mut self, bytes: u64, ground: &dyn Backing) -> Result<()> {
        let header = self.metadata().header();
        if header.address_space == bytes {
            return Ok(());
        }
        with_header(ground, 0, || {
            self.metadata().set_header(Header { address_space: bytes, ..header });
            self.metadata().settle();
            Ok(())
        })
    }

    /// The bytes of chunks that are in use, or not known to be free.
    fn used_bytes(&self) -> u64 {
        let chunks = |segment: &Segment| CHUNKS as u64 - u64::from(segment.free.count_ones());
        self.segments.iter().map(chunks).sum::<u64>() * CHUNK_BYTES as u64
    }

    /// Allocates whole chunks, or whole segments.
    pub(crate) fn allocate_chunks(&mut self, bytes: usize, ground: &dyn Backing) -> Result<*mut u8> {
        let chunks = bytes.div_ceil(CHUNK_BYTES);
        if chunks >= CHUNKS {
            return self.allocate_segments(bytes, ground);
        }
        let mut looks = LOOKS_MOST;
        loop {
            if let Some(first) = self.find_run(chunks) {
                self.set_chunks_free(first, chunks, false);
                for number in first + 1..first + chunks as Number {
                    self.metadata().set_use(number, Use::Rest, 0);
                }
                self.metadata().set_use(first, Use::Large(chunks), bytes);
                self.metadata().settle();
                return Ok(self.metadata().address(first));
            }
            if looks > 0 && self.look_further()? {
                looks -= 1;
            } else {
                self.grow(1, ground)?;
            }
        }
    }

    /// Allocates whole segments in a row, whose bits for insides are in one group.
    fn allocate_segments(&mut self, bytes: usize, ground: &dyn Backing) -> Result<*mut u8> {
        let segments = bytes.checked_add(CHUNK_BYTES).ok_or(Refused::Absurd)?.div_ceil(SEGMENT_BYTES);
        if segments > INSIDES {
            ground.check_memory((segments as u64).saturating_mul(SEGMENT_BYTES as u64)).map_err(Refused::Grow)?;
            return Err(Refused::Absurd);
        }
        for _ in 0..LOOKS_MOST_HUGE {
            if !self.look_further()? {
                break;
            }
        }
        let mut run = 0..0;
        for empty in self.by_run[CHUNKS - 1].iter().map(|segment| *segment as usize) {
            let goes_on = empty == run.end && !empty.is_multiple_of(INSIDES);
            run = if goes_on { run.start..empty + 1 } else { empty..empty + 1 };
            if run.len() == segments {
                break;
            }
        }
        if run.len() < segments {
            // An empty end of the heap is used, and grown to the length that is needed.
            let mut start = if run.end == self.all() { run.start } else { self.all() };
            if start / INSIDES != (start + segments - 1) / INSIDES {
                start = start.next_multiple_of(INSIDES);
            }
            self.grow(start + segments - self.all(), ground)?;
            run = start..start + segments;
        }
        self.set_inside(run.start + 1..run.end, true, ground)?;
        for segment in run.clone() {
            self.set_free(segment, 0);
        }
        for segment in run.start + 1..run.end {
            self.segments[segment].known = Known::Inside;
            self.table.leave(segment);
        }
        let first = (run.start * CHUNKS) as Number + 1;
        self.metadata().set_use(first, Use::Huge(segments), bytes);
        self.metadata().settle();
        Ok(self.metadata().address(first))
    }

    /// Marks segments, all of one group, as inside of an allocation, or as not inside of one.
    fn set_inside(&self, segments: Range<usize>, inside: bool, ground: &dyn Backing) -> Result<()> {
        if segments.is_empty() {
            return Ok(());
        }
        with_header(ground, segments.start / INSIDES, || {
            self.metadata().set_inside(segments.clone(), inside);
            Ok(())
        })
    }

    /// Finds an allocation in a chunk that no other arena owns: its chunk, its use, and the block's number.
    fn find(&mut self, address: *mut u8) -> Result<(Number, Use, usize)> {
        let segment = self.metadata().offset_of(address) / SEGMENT_BYTES;
        if segment >= self.all() {
            return Err(Refused::NotAllocated);
        }
        self.look_at(segment)?;
        if self.segments[segment].known == Known::Inside {
            return Err(Refused::NotAllocated);
        }
        let found = self.arena.find(address)?;
        match found {
            (number, Use::Large(chunks), _) => self.metadata().check_large(number, chunks)?,
            (number, Use::Huge(segments), _) => self.metadata().check_huge(number, segments, self.all())?,
            _ => {}
        }
        Ok(found)
    }

    /// The bytes of an allocation in a chunk that no other arena owns.
    pub(crate) fn size_of(&mut self, address: *mut u8) -> Result<usize> {
        Ok(size_of_use(self.find(address)?.1))
    }

    /// Ends an allocation in a chunk that no other arena owns. If it is a block, the arena adopts its chunk.
    pub(crate) fn free(&mut self, arena: &mut Arena, address: *mut u8, ground: &dyn Backing) -> Result<()> {
        let (number, what, block) = self.find(address)?;
        match what {
            Use::Blocks(class) => {
                arena.adopt(&mut self.arena, number, class);
                if arena.free(number, class, block) {
                    self.take_back(arena, number, class);
                }
            }
            Use::Large(chunks) => {
                for number in number..number + chunks as Number {
                    self.metadata().set_use(number, Use::Free, 0);
                }
                self.metadata().settle();
                self.set_chunks_free(number, chunks, true);
                self.note_freed(number, chunks);
            }
            Use::Huge(segments) => {
                // The segments are released as zeros, and zeros are the metadata of an empty segment.
                let chunks = if holds(invariant::INSIDES_ZEROED) { segments * CHUNKS - 1 } else { 1 };
                let released = ground.release(number as usize * CHUNK_BYTES, chunks * CHUNK_BYTES);
                released.map_err(Refused::Grow)?;
                let first = split(number).0;
                self.set_inside(first + 1..first + segments, false, ground)?;
                self.metadata().set_use(number, Use::Free, 0);
                self.metadata().settle();
                for segment in first..first + segments {
                    self.enter(segment, ALL_FREE);
                }
            }
            Use::Free | Use::Rest => unreachable!("not an allocation"),
        }
        Ok(())
    }

    /// Takes an empty chunk back from an arena.
    pub(crate) fn take_back(&mut self, arena: &mut Arena, number: Number, class: usize) {
        if holds(invariant::FREE_CHUNK_UNLISTED) {
            arena.unlist(number, class);
        }
        arena.forget_chunk(number);
        self.table.set_owner(number, NOBODY);
        self.metadata().set_use(number, Use::Free, 0);
        self.metadata().settle();
        self.set_chunks_free(number, 1, true);
        self.note_freed(number, 1);
    }

    /// Takes at most `most` ranges of free chunks that take room. Nobody can allocate them before [`Self::given_back`].
    pub(crate) fn take_freed(&mut self, most: usize) -> Vec<Range<Number>> {
        let mut runs = Vec::new();
        while let Some(segment) = self.freed.last().map(|segment| *segment as usize) {
            let first = (segment * CHUNKS) as Number;
            while self.segments.get(segment).is_some_and(|segment| segment.freed != 0) {
                if runs.len() == most {
                    return runs;
                }
                let freed = self.segments[segment].freed;
                let start = freed.trailing_zeros();
                let run = first + start..first + start + (freed >> start).trailing_ones();
                self.set_chunks_free(run.start, run.len(), false);
                runs.push(run);
            }
            self.freed.pop();
        }
        runs
    }

    /// Makes chunks of [`Self::take_freed`] available again. `done`: they take no room any more.
    pub(crate) fn given_back(&mut self, run: Range<Number>, done: bool) {
        self.set_chunks_free(run.start, run.len(), true);
        if !done {
            self.note_freed(run.start, run.len());
        }
    }

    /// Gives the heap's end back if much of it is empty. A part stays, so that the heap does not shrink and grow in
    /// turns.
    pub(crate) fn trim(&mut self, ground: &dyn Backing) -> Result<()> {
        let mut end = self.all();
        while end > 1 {
            // All segments that are read here are empty, except for the last. Damage is reported when somebody needs
            // that segment.
            if self.look_at(end - 1).is_err() || self.segments[end - 1].free != ALL_FREE {
                break;
            }
            end -= 1;
        }
        let stays = 1 + end / 8;
        if self.all() - end <= 2 * stays {
            return Ok(());
        }
        let header = self.metadata().header();
        if header != header.summed() || header.segments != self.all() as u64 {
            return Err(Refused::Corrupt(format!("the header was overwritten: {header:?}")));
        }
        let new = end + stays;
        with_header(ground, 0, || {
            ground.resize(new).map_err(Refused::Grow)?;
            self.metadata().set_header(Header { segments: new as u64, ..header });
            self.metadata().settle();
            Ok(())
        })?;
        for segment in new..self.all() {
            self.set_free(segment, 0);
            self.table.leave(segment);
        }
        self.segments.truncate(new);
        self.next = self.next.min(new - 1);
        self.recent = self.recent.min(new - 1);
        Ok(())
    }
}

/// The bytes of an allocation of this use.
pub(crate) fn size_of_use(what: Use) -> usize {
    match what {
        Use::Blocks(class) => SIZES[class] as usize,
        Use::Large(chunks) => chunks * CHUNK_BYTES,
        Use::Huge(segments) => segments * SEGMENT_BYTES - CHUNK_BYTES,
        Use::Free | Use::Rest => unreachable!("not an allocation"),
    }
}

/// A word with this many ones.
fn run_of(bits: usize) -> u64 {
    u64::MAX >> (64 - bits)
}

fn longest_run(mut bits: u64) -> usize {
    let mut run = 0;
    while bits != 0 {
        bits &= bits << 1;
        run += 1;
    }
    run
}

#[cfg(test)]
mod tests;
