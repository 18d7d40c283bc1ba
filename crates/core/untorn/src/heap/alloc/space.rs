//! The space of a heap: its segments, which chunks are free, and allocations of whole chunks and segments.
//!
//! What is in use is written in the heap, and what has room is remembered beside it. It is read from the heap when it
//! is needed, a segment at a time and in any order: opening a heap reads nothing, after a rollback everything is
//! forgotten, and no call reads more than a few segments however large the heap is.

use super::arena::Arena;
use super::chunk_table::{ChunkTable, NOBODY};
use super::metadata::{Metadata, Number, Refused, Result, corrupt, split};
use crate::heap::image::layout::*;
use crate::invariant;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use untorn_os::holds;

/// Segments that one allocation reads at most before the heap grows.
const LOOKS_MOST: usize = 8;
/// Segments that an allocation of segments reads at most, which is little beside the filling of one.
const LOOKS_MOST_HUGE: usize = 64;

/// What the allocator needs of the heap's file.
pub(crate) trait Backing {
    /// Makes the heap this many segments long, or so short.
    fn resize(&self, segments: usize) -> untorn_journal::Result<()>;
    /// A range that nobody uses reads as zeros from now on, and takes no room.
    fn release(&self, offset: usize, bytes: usize) -> untorn_journal::Result<()>;
    /// So many bytes may be stored to.
    fn check_memory(&self, bytes: u64) -> untorn_journal::Result<()>;
    /// The page of the header of so manyth group of segments may be stored to.
    fn unlock_header(&self, _group: usize) -> untorn_journal::Result<()> {
        Ok(())
    }
    /// And may not any more.
    fn lock_header(&self, _group: usize) {}
}

/// Works while the page of a header may be stored to.
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
    /// It lies inside of an allocation, and has no metadata.
    Inside,
}

/// What is remembered of a segment.
#[derive(Clone, Copy, Default)]
struct Segment {
    /// Free chunks, a bit each.
    free: u64,
    /// Those that were freed and still take room, a bit each.
    freed: u64,
    /// The most free chunks in a row.
    run: u8,
    known: Known,
}

/// All chunks of a segment but its metadata.
const ALL_FREE: u64 = !1;

/// What one lock guards of a heap's space, and the chunks that no other arena owns.
pub(crate) struct Space {
    table: Arc<ChunkTable>,
    /// As many as the heap has.
    segments: Vec<Segment>,
    /// Those of which nothing is known.
    unread: usize,
    /// The segment to be read next, from the end of the heap towards its start.
    next: usize,
    /// Where a free chunk was found last.
    recent: usize,
    pub(crate) arena: Arena,
    /// Segments with free chunks, by the most of them in a row.
    by_run: [BTreeSet<u32>; CHUNKS],
    /// Segments with chunks that were freed and still take room.
    freed: Vec<u32>,
}

impl Space {
    /// For the heap of so many segments.
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

    /// Forgets everything, as the heap is another one now. The caller holds every lock, and all arenas forget, too.
    pub(crate) fn forget(&mut self, segments: usize) {
        self.table.forget();
        // Where there was room there may be some again.
        let recent = self.recent.min(segments.saturating_sub(1));
        *self = Space { next: recent, recent, ..Space::new(self.table.clone(), segments) };
    }

    fn metadata(&self) -> &Metadata {
        &self.table.metadata
    }

    fn all(&self) -> usize {
        self.segments.len()
    }

    /// Reads a segment's metadata. What makes no sense stays unread: nothing in it is believed.
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
                Use::Rest => return Err(corrupt(number, format_args!("a part of nothing"))),
            }
            index += 1;
        }
        self.enter(segment, free);
        for (number, class) in with_blocks {
            self.arena.remember(number, class);
        }
        Ok(())
    }

    /// A segment is known from now on.
    fn enter(&mut self, segment: usize, free: u64) {
        if self.segments[segment].known == Known::Nothing {
            self.unread -= 1;
        }
        self.segments[segment].known = Known::All;
        self.table.enter(segment);
        self.set_free(segment, free);
    }

    /// Reads one more segment. False: all are known.
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

    /// Free chunks that hold what was in them: they take room until they are given back.
    fn note_freed(&mut self, first: Number, chunks: usize) {
        let (segment, index) = split(first);
        if self.segments[segment].freed == 0 {
            self.freed.push(segment as u32);
        }
        self.segments[segment].freed |= run_of(chunks) << index;
    }

    /// So many free chunks in a row in one segment, where they fit best.
    fn find_run(&mut self, chunks: usize) -> Option<Number> {
        let segment = *self.by_run[chunks..].iter().find_map(BTreeSet::first)?;
        let free = self.segments[segment as usize].free;
        let starts = (1..chunks).fold(free, |starts, n| starts & (free >> n));
        self.recent = segment as usize;
        Some(segment * CHUNKS as Number + starts.trailing_zeros())
    }

    /// A block of a class for an arena that has none. `steal` lets the arena adopt a chunk of another one.
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

    /// Makes the heap longer, by empty segments.
    fn grow(&mut self, more: usize, ground: &dyn Backing) -> Result<()> {
        let new = self.all().checked_add(more).ok_or(Refused::Absurd)?;
        let header = self.metadata().header();
        if header != header.summed() || header.segments != self.all() as u64 {
            return Err(Refused::Corrupt(format!("the header was overwritten: {header:?}")));
        }
        if new > self.table.segments_most() || ground.check_memory((new * SEGMENT_BYTES) as u64).is_err() {
            // What is free takes no memory.
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

    /// The heap may have so many bytes one day.
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

    /// Bytes of chunks that are in use, or may be.
    fn used_bytes(&self) -> u64 {
        let chunks = |segment: &Segment| CHUNKS as u64 - u64::from(segment.free.count_ones());
        self.segments.iter().map(chunks).sum::<u64>() * CHUNK_BYTES as u64
    }

    /// An allocation of whole chunks, or of whole segments.
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

    /// Whole segments in a row, whose bits for insides are in one group.
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
            // The heap's end may be empty, and grows to what is needed.
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

    /// Marks segments, all of one group, as inside of an allocation or not.
    fn set_inside(&self, segments: Range<usize>, inside: bool, ground: &dyn Backing) -> Result<()> {
        if segments.is_empty() {
            return Ok(());
        }
        with_header(ground, segments.start / INSIDES, || {
            self.metadata().set_inside(segments.clone(), inside);
            Ok(())
        })
    }

    /// Where an allocation is of which no other arena owns the chunk: its chunk, its use, and the block's number.
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

    /// Bytes that an allocation has of which no other arena owns the chunk.
    pub(crate) fn size_of(&mut self, address: *mut u8) -> Result<usize> {
        Ok(size_of_use(self.find(address)?.1))
    }

    /// Ends an allocation of which no other arena owns the chunk. The arena adopts a chunk of blocks.
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
                // What comes back as zeros are segments without any allocation.
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

    /// Takes an arena's chunk that is empty.
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

    /// Free chunks that take room, as ranges of the heap, at most so many. Nobody gets them before [`Self::given_back`].
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

    /// Chunks of [`Self::take_freed`] are there to be allocated; `done`: they take no room any more.
    pub(crate) fn given_back(&mut self, run: Range<Number>, done: bool) {
        self.set_chunks_free(run.start, run.len(), true);
        if !done {
            self.note_freed(run.start, run.len());
        }
    }

    /// Gives the heap's end back if much of it is empty. A part of it stays, so that it does not come and go.
    pub(crate) fn trim(&mut self, ground: &dyn Backing) -> Result<()> {
        let mut end = self.all();
        while end > 1 {
            // Each segment that is read here is empty, but for one. Damage is told when somebody needs what is there.
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

/// Bytes of an allocation.
pub(crate) fn size_of_use(what: Use) -> usize {
    match what {
        Use::Blocks(class) => SIZES[class] as usize,
        Use::Large(chunks) => chunks * CHUNK_BYTES,
        Use::Huge(segments) => segments * SEGMENT_BYTES - CHUNK_BYTES,
        Use::Free | Use::Rest => unreachable!("not an allocation"),
    }
}

/// So many ones.
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
