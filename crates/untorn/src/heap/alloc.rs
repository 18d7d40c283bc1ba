//! The allocator: which blocks are in use is written in the heap, which have room is remembered beside it.
//!
//! What is remembered is read from the heap when it is needed, a segment at a time: opening a heap reads nothing,
//! and after a roll-back everything is forgotten.

use super::layout::*;
use crate::invariant;
use std::alloc::Layout;
use std::collections::BTreeSet;
use std::ptr::NonNull;
use untorn_os::holds;

/// Why there is no memory.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The heap's own bytes make no sense; what is wrong, and where.
    Corrupt(String),
    /// A pointer that no allocation has.
    NotAllocated,
    /// Too large, or an alignment beyond a page.
    Absurd,
    /// The heap cannot grow.
    Grow(untorn_journal::Error),
}

pub(crate) type Result<T> = std::result::Result<T, Refused>;

/// What the allocator needs of the heap's file.
pub(crate) trait Backing {
    /// Makes the heap this many segments long.
    fn grow(&self, segments: usize) -> untorn_journal::Result<()>;
    /// A range that nobody uses reads as zeros from now on, and takes no room.
    fn release(&self, offset: usize, bytes: usize) -> untorn_journal::Result<()>;
}

/// What is remembered of a chunk.
#[derive(Clone, Copy)]
struct Chunk {
    /// Free blocks.
    free: u16,
    /// No word of the bitmap before this one has a free bit.
    hint: u8,
    /// The class of its blocks, or `NO_BLOCKS`.
    class: u8,
    /// Its place in its class's list, or `NOWHERE`.
    place: u32,
}

const NO_BLOCKS: u8 = u8::MAX;
const NOWHERE: u32 = u32::MAX;

impl Default for Chunk {
    fn default() -> Self {
        Chunk { free: 0, hint: 0, class: NO_BLOCKS, place: NOWHERE }
    }
}

/// What is remembered of a segment.
#[derive(Clone, Copy, Default)]
struct Segment {
    /// Free chunks, a bit each.
    free: u64,
    /// The most of them in a row.
    run: u8,
    /// It lies inside of a huge allocation, and has no metadata.
    inside: bool,
}

/// All chunks of a segment but its metadata.
const ALL_FREE: u64 = !1;

/// A chunk by segment and number in it.
type Number = u32;

/// The allocator's memory of one heap.
pub(crate) struct Allocator {
    base: *mut u8,
    /// Segments of the heap.
    all: usize,
    /// Those that were read.
    segments: Vec<Segment>,
    /// Their chunks.
    chunks: Vec<Chunk>,
    /// Chunks with free blocks, by class.
    roomy: [Vec<Number>; SIZES.len()],
    /// Segments with free chunks, by the most of them in a row.
    by_run: [BTreeSet<u32>; CHUNKS],
}

// SAFETY: the address is that of the heap, which the allocator alone may change under its lock.
unsafe impl Send for Allocator {}

impl Allocator {
    /// For the heap of so many segments at this address, which stays mapped as long as the allocator is used.
    pub(crate) fn new(base: *mut u8, segments: usize) -> Allocator {
        Allocator {
            base,
            all: segments,
            segments: Vec::new(),
            chunks: Vec::new(),
            roomy: [const { Vec::new() }; SIZES.len()],
            by_run: [const { BTreeSet::new() }; CHUNKS],
        }
    }

    /// Forgets everything, as the heap is another one now.
    pub(crate) fn forget(&mut self, segments: usize) {
        *self = Allocator::new(self.base, segments);
    }

    fn header(&self) -> *mut Header {
        self.base.cast()
    }

    fn descriptor(&self, number: Number) -> *mut Descriptor {
        let (segment, index) = split(number);
        // SAFETY: inside a mapped segment.
        unsafe { self.base.add(segment * SEGMENT_BYTES + DESCRIPTORS_AT).cast::<Descriptor>().add(index) }
    }

    fn use_of(&self, number: Number) -> Result<Use> {
        // SAFETY: as above; any bytes are a descriptor.
        let descriptor = unsafe { *self.descriptor(number) };
        let index = split(number).1;
        descriptor.what(index).ok_or_else(|| corrupt(number, format_args!("{descriptor:?}")))
    }

    fn set_use(&mut self, number: Number, what: Use, bytes: usize) {
        // SAFETY: as above.
        unsafe { *self.descriptor(number) = Descriptor::new(what, bytes as u64) };
    }

    fn bitmap(&self, number: Number) -> *mut u64 {
        let (segment, index) = split(number);
        // SAFETY: inside a mapped segment.
        unsafe { self.base.add(segment * SEGMENT_BYTES + BITMAPS_AT).cast::<u64>().add(index * BITMAP_WORDS) }
    }

    fn address(&self, number: Number) -> *mut u8 {
        self.base.wrapping_add(number as usize * CHUNK_BYTES)
    }

    fn chunk(&mut self, number: Number) -> &mut Chunk {
        &mut self.chunks[number as usize]
    }

    /// Reads the next segment's metadata. False: there is none. In order, as those inside of a huge allocation
    /// have none. What makes no sense stays unread: nothing behind it is believed.
    fn look_further(&mut self) -> Result<bool> {
        let segment = self.segments.len();
        if segment >= self.all {
            return Ok(false);
        }
        let first = (segment * CHUNKS) as Number;
        let (mut free, mut spans, mut with_blocks) = (0, 1, Vec::new());
        let mut index = 1;
        while index < CHUNKS {
            let number = first + index as Number;
            match self.use_of(number)? {
                Use::Free => free |= 1 << index,
                Use::Blocks(class) => with_blocks.push((number, class)),
                Use::Large(chunks) => {
                    self.check_large(number, chunks)?;
                    index += chunks - 1;
                }
                Use::Huge(segments) if segment + segments <= self.all => {
                    spans = if holds(invariant::INSIDES_SKIPPED) { segments } else { 1 };
                    break;
                }
                Use::Huge(segments) => return Err(corrupt(number, format_args!("{segments} segments"))),
                Use::Rest => return Err(corrupt(number, format_args!("a part of nothing"))),
            }
            index += 1;
        }
        self.segments.resize(segment + spans, Segment { inside: true, ..Segment::default() });
        self.segments[segment].inside = false;
        self.chunks.resize((segment + spans) * CHUNKS, Chunk::default());
        self.set_free(segment, free);
        for (number, class) in with_blocks {
            self.remember(number, class);
        }
        Ok(true)
    }

    /// Whether a segment lies inside of a huge allocation, and has no metadata.
    pub(crate) fn is_inside(&mut self, segment: usize) -> Result<bool> {
        while self.segments.len() <= segment && self.look_further()? {}
        Ok(self.segments.get(segment).is_some_and(|segment| segment.inside))
    }

    /// The chunks behind the first one belong to it.
    fn check_large(&self, number: Number, chunks: usize) -> Result<()> {
        let mut rest = number + 1..number + chunks as Number;
        match rest.find(|rest| !matches!(self.use_of(*rest), Ok(Use::Rest))) {
            Some(other) => Err(corrupt(number, format_args!("chunk {} is not a part of it", split(other).1))),
            None => Ok(()),
        }
    }

    /// Blocks of a chunk that are not in use.
    fn count_free(&self, number: Number, class: usize) -> usize {
        let (bitmap, all) = (self.bitmap(number), blocks(class));
        let used = |word: usize| {
            // SAFETY: the bitmap's words, inside a mapped segment.
            (unsafe { *bitmap.add(word) } & word_mask(all, word)).count_ones() as usize
        };
        all - (0..all.div_ceil(64)).map(used).sum::<usize>()
    }

    fn remember(&mut self, number: Number, class: usize) {
        let free = self.count_free(number, class) as u16;
        *self.chunk(number) = Chunk { free, hint: 0, class: class as u8, place: NOWHERE };
        if free > 0 {
            self.list(number, class);
        }
    }

    fn list(&mut self, number: Number, class: usize) {
        self.chunk(number).place = self.roomy[class].len() as u32;
        self.roomy[class].push(number);
    }

    fn unlist(&mut self, number: Number, class: usize) {
        let place = std::mem::replace(&mut self.chunk(number).place, NOWHERE) as usize;
        self.roomy[class].swap_remove(place);
        if let Some(moved) = self.roomy[class].get(place).copied() {
            self.chunk(moved).place = place as u32;
        }
    }

    fn set_free(&mut self, segment: usize, free: u64) {
        let (old, new) = (self.segments[segment].run as usize, longest_run(free));
        self.segments[segment].free = free;
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

    /// Memory for this layout. Its contents are anything.
    pub(crate) fn allocate(&mut self, layout: Layout, ground: &dyn Backing) -> Result<NonNull<u8>> {
        if layout.align() > 4096 {
            return Err(Refused::Absurd);
        }
        let address = match class_of(layout.size().max(1), layout.align()) {
            Some(class) => self.allocate_block(class, ground)?,
            None => self.allocate_chunks(layout.size(), ground)?,
        };
        Ok(NonNull::new(address).expect("inside the heap"))
    }

    fn allocate_block(&mut self, class: usize, ground: &dyn Backing) -> Result<*mut u8> {
        loop {
            while let Some(number) = self.roomy[class].last().copied() {
                if let Some(block) = self.take(number, class) {
                    return Ok(self.address(number).wrapping_add(block * SIZES[class] as usize));
                }
                self.unlist(number, class);
            }
            match self.find_run(1) {
                Some(number) => {
                    self.set_chunks_free(number, 1, false);
                    self.set_use(number, Use::Blocks(class), 0);
                    self.remember(number, class);
                }
                None if self.look_further()? => {}
                None => self.grow(1, ground)?,
            }
        }
    }

    /// The first free block of a chunk, now in use.
    fn take(&mut self, number: Number, class: usize) -> Option<usize> {
        let (bitmap, all) = (self.bitmap(number), blocks(class));
        let chunk = self.chunk(number);
        if chunk.free == 0 {
            return None;
        }
        for word in chunk.hint as usize..all.div_ceil(64) {
            // SAFETY: a word of the chunk's bitmap, inside a mapped segment.
            let bits = unsafe { &mut *bitmap.add(word) };
            let block = word * 64 + bits.trailing_ones() as usize;
            if *bits != u64::MAX && block < all {
                *bits |= 1 << (block % 64);
                chunk.hint = word as u8;
                chunk.free -= 1;
                return Some(block);
            }
        }
        None
    }

    fn grow(&mut self, segments: usize, ground: &dyn Backing) -> Result<()> {
        let new = self.all.checked_add(segments).ok_or(Refused::Absurd)?;
        // SAFETY: the header is mapped; any bytes are one.
        let header = unsafe { *self.header() };
        if header != header.summed() || header.segments != self.all as u64 {
            return Err(Refused::Corrupt(format!("the header was overwritten: {header:?}")));
        }
        ground.grow(new).map_err(Refused::Grow)?;
        // SAFETY: as above.
        unsafe { *self.header() = Header { segments: new as u64, ..header }.summed() };
        self.all = new;
        Ok(())
    }

    fn allocate_chunks(&mut self, bytes: usize, ground: &dyn Backing) -> Result<*mut u8> {
        let chunks = bytes.div_ceil(CHUNK_BYTES);
        if chunks >= CHUNKS {
            return self.allocate_segments(bytes, ground);
        }
        loop {
            if let Some(first) = self.find_run(chunks) {
                self.set_chunks_free(first, chunks, false);
                for number in first + 1..first + chunks as Number {
                    self.set_use(number, Use::Rest, 0);
                }
                self.set_use(first, Use::Large(chunks), bytes);
                return Ok(self.address(first));
            }
            if !self.look_further()? {
                self.grow(1, ground)?;
            }
        }
    }

    /// So many free chunks in a row in one segment, where they fit best.
    fn find_run(&self, chunks: usize) -> Option<Number> {
        let segment = *self.by_run[chunks..].iter().find_map(BTreeSet::first)?;
        let free = self.segments[segment as usize].free;
        let starts = (1..chunks).fold(free, |starts, n| starts & (free >> n));
        Some(segment * CHUNKS as Number + starts.trailing_zeros())
    }

    /// Whole segments in a row. Each empty one is looked at, which is little beside the filling of one.
    fn allocate_segments(&mut self, bytes: usize, ground: &dyn Backing) -> Result<*mut u8> {
        let segments = bytes.checked_add(CHUNK_BYTES).ok_or(Refused::Absurd)?.div_ceil(SEGMENT_BYTES);
        while self.look_further()? {}
        let mut run = 0..0;
        for empty in self.by_run[CHUNKS - 1].iter().map(|segment| *segment as usize) {
            run = if empty == run.end { run.start..empty + 1 } else { empty..empty + 1 };
            if run.len() == segments {
                break;
            }
        }
        if run.len() < segments {
            // The heap's end may be empty, and grows to what is needed.
            run = if run.end == self.all { run } else { self.all..self.all };
            self.grow(segments - run.len(), ground)?;
            while self.look_further()? {}
        }
        for segment in run.start..run.start + segments {
            self.set_free(segment, 0);
            self.segments[segment].inside = segment > run.start;
        }
        let first = (run.start * CHUNKS) as Number + 1;
        self.set_use(first, Use::Huge(segments), bytes);
        Ok(self.address(first))
    }

    /// Where an allocation is: its chunk, its use, and the block's number.
    fn find(&mut self, address: *mut u8) -> Result<(Number, Use, usize)> {
        let offset = (address as usize).wrapping_sub(self.base as usize);
        let segment = offset / SEGMENT_BYTES;
        while segment < self.all && self.segments.len() <= segment {
            self.look_further()?;
        }
        let number = (offset / CHUNK_BYTES) as Number;
        if segment >= self.all || self.segments[segment].inside || split(number).1 == 0 {
            return Err(Refused::NotAllocated);
        }
        let what = self.use_of(number)?;
        // What was read must not be something else by now.
        let class = match what {
            Use::Blocks(class) => class as u8,
            _ => NO_BLOCKS,
        };
        if self.chunk(number).class != class {
            return Err(corrupt(number, format_args!("its use was overwritten: {what:?}")));
        }
        let inside = offset % CHUNK_BYTES;
        match what {
            Use::Blocks(class) if inside.is_multiple_of(SIZES[class] as usize) => {
                let block = inside / SIZES[class] as usize;
                // SAFETY: a word of the chunk's bitmap, inside a mapped segment.
                let used =
                    block < blocks(class) && unsafe { *self.bitmap(number).add(block / 64) } >> (block % 64) & 1 == 1;
                if used { Ok((number, what, block)) } else { Err(Refused::NotAllocated) }
            }
            Use::Large(chunks) if inside == 0 => {
                self.check_large(number, chunks)?;
                Ok((number, what, 0))
            }
            Use::Huge(segments) if inside == 0 => {
                let rest = self.segments[segment + 1..].iter().take_while(|segment| segment.inside).count();
                if rest + 1 != segments {
                    return Err(corrupt(number, format_args!("its length was overwritten: {what:?}")));
                }
                Ok((number, what, 0))
            }
            _ => Err(Refused::NotAllocated),
        }
    }

    /// Bytes that an allocation has.
    pub(crate) fn size_of(&mut self, address: *mut u8) -> Result<usize> {
        Ok(match self.find(address)?.1 {
            Use::Blocks(class) => SIZES[class] as usize,
            Use::Large(chunks) => chunks * CHUNK_BYTES,
            Use::Huge(segments) => segments * SEGMENT_BYTES - CHUNK_BYTES,
            Use::Free | Use::Rest => unreachable!("not an allocation"),
        })
    }

    /// Ends an allocation.
    pub(crate) fn free(&mut self, address: *mut u8, ground: &dyn Backing) -> Result<()> {
        let (number, what, block) = self.find(address)?;
        let release =
            |chunks: usize| ground.release(number as usize * CHUNK_BYTES, chunks * CHUNK_BYTES).map_err(Refused::Grow);
        match what {
            Use::Blocks(class) => self.free_block(number, class, block, ground),
            Use::Large(chunks) => {
                release(chunks)?;
                for number in number..number + chunks as Number {
                    self.set_use(number, Use::Free, 0);
                }
                self.set_chunks_free(number, chunks, true);
                Ok(())
            }
            Use::Huge(segments) => {
                // What comes back as zeros are segments without any allocation.
                release(if holds(invariant::INSIDES_ZEROED) { segments * CHUNKS - 1 } else { 1 })?;
                self.set_use(number, Use::Free, 0);
                let first = split(number).0;
                for segment in first..first + segments {
                    self.segments[segment].inside = false;
                    self.set_free(segment, ALL_FREE);
                }
                Ok(())
            }
            Use::Free | Use::Rest => unreachable!("not an allocation"),
        }
    }

    fn free_block(&mut self, number: Number, class: usize, block: usize, ground: &dyn Backing) -> Result<()> {
        // SAFETY: a word of the chunk's bitmap, inside a mapped segment.
        unsafe { *self.bitmap(number).add(block / 64) &= !(1 << (block % 64)) };
        let chunk = self.chunk(number);
        chunk.free = chunk.free.saturating_add(1);
        chunk.hint = chunk.hint.min((block / 64) as u8);
        let (free, listed) = (chunk.free as usize, chunk.place != NOWHERE);
        if !listed {
            self.list(number, class);
        }
        // A class keeps its last chunk, so that making and freeing one block by turns costs nothing.
        if free >= blocks(class) && self.roomy[class].len() > 1 {
            // Looked up once more, in case that somebody wrote to the bitmap: zeros over a block in use are for good.
            self.chunk(number).free = self.count_free(number, class) as u16;
            if self.chunk(number).free as usize == blocks(class) {
                ground.release(number as usize * CHUNK_BYTES, CHUNK_BYTES).map_err(Refused::Grow)?;
                if holds(invariant::FREE_CHUNK_UNLISTED) {
                    self.unlist(number, class);
                }
                *self.chunk(number) = Chunk::default();
                self.set_use(number, Use::Free, 0);
                self.set_chunks_free(number, 1, true);
            }
        }
        Ok(())
    }
}

fn corrupt(number: Number, what: std::fmt::Arguments<'_>) -> Refused {
    let (segment, index) = split(number);
    Refused::Corrupt(format!("segment {segment}, chunk {index}: {what}"))
}

fn split(number: Number) -> (usize, usize) {
    (number as usize / CHUNKS, number as usize % CHUNKS)
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
