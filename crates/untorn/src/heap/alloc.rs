//! The allocator: which blocks are in use is written in the heap, which have room is remembered beside it.
//!
//! What is remembered is read from the heap when it is needed, a segment at a time: opening a heap reads nothing,
//! and after a roll-back everything is forgotten.

use super::layout::*;
use std::alloc::Layout;
use std::collections::BTreeSet;
use std::ptr::NonNull;
use untorn_journal::care::{Care, kept};

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
pub(crate) trait Ground {
    /// Makes the heap this many segments long.
    fn grow(&self, segments: usize) -> untorn_journal::Result<()>;
    /// A range that nobody uses reads as zeros from now on, and takes no room.
    fn give_back(&self, offset: usize, bytes: usize) -> untorn_journal::Result<()>;
}

/// What is remembered of a chunk of blocks.
#[derive(Clone, Copy, Default)]
struct Chunk {
    free: u16,
    /// No word of the bitmap before this one has a free bit.
    hint: u16,
    /// In its class's list.
    listed: bool,
}

/// A chunk by segment and number in it.
type Number = u32;

/// The allocator's memory of one heap.
pub(crate) struct Allocator {
    base: *mut u8,
    /// Segments before this one were read.
    next: usize,
    chunks: Vec<Chunk>,
    /// Chunks with free blocks, by class.
    roomy: [Vec<Number>; SIZES.len()],
    free: BTreeSet<Number>,
}

// SAFETY: the address is that of the heap, which the allocator alone may change under its lock.
unsafe impl Send for Allocator {}

impl Allocator {
    /// For the heap at this address, which stays mapped as long as the allocator is used.
    pub(crate) fn new(base: *mut u8) -> Allocator {
        Allocator {
            base,
            next: 0,
            chunks: Vec::new(),
            roomy: [const { Vec::new() }; SIZES.len()],
            free: BTreeSet::new(),
        }
    }

    /// Forgets everything, as the heap is another one now.
    pub(crate) fn forget(&mut self) {
        *self = Allocator::new(self.base);
    }

    fn header(&self) -> *mut Header {
        self.base.cast()
    }

    fn segments(&self) -> usize {
        // SAFETY: the header is mapped.
        unsafe { (*self.header()).segments as usize }
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
        descriptor.what(index).ok_or_else(|| Refused::Corrupt(format!("chunk {number}: {descriptor:?}")))
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
    /// have none.
    fn look_further(&mut self) -> Result<bool> {
        let segment = self.next;
        if segment >= self.segments() {
            return Ok(false);
        }
        self.next = segment + 1;
        self.chunks.resize(self.segments() * CHUNKS, Chunk::default());
        let first = (segment * CHUNKS) as Number;
        let mut number = first + 1;
        while number < first + CHUNKS as Number {
            let mut step = 1;
            match self.use_of(number)? {
                Use::Free => {
                    self.free.insert(number);
                }
                Use::Blocks(class) => self.remember(number, class),
                Use::Large(chunks) => step = chunks as Number,
                Use::Huge(segments) if segment + segments <= self.segments() => {
                    if kept(Care::InsidesSkipped) {
                        self.next = segment + segments;
                    }
                    break;
                }
                Use::Huge(segments) => {
                    return Err(Refused::Corrupt(format!("segment {segment}: an allocation of {segments} segments")));
                }
                Use::Rest => return Err(Refused::Corrupt(format!("chunk {number}: a part of nothing"))),
            }
            number += step;
        }
        Ok(true)
    }

    fn remember(&mut self, number: Number, class: usize) {
        let words = blocks(class).div_ceil(64);
        let bitmap = self.bitmap(number);
        // SAFETY: the bitmap's words, inside a mapped segment.
        let used: u32 = (0..words).map(|word| unsafe { (*bitmap.add(word)).count_ones() }).sum();
        let free = blocks(class).saturating_sub(used as usize) as u16;
        *self.chunk(number) = Chunk { free, hint: 0, listed: free > 0 };
        if free > 0 {
            self.roomy[class].push(number);
        }
    }

    /// Memory for this layout. Its contents are anything.
    pub(crate) fn allocate(&mut self, layout: Layout, ground: &dyn Ground) -> Result<NonNull<u8>> {
        if layout.align() > 4096 {
            return Err(Refused::Absurd);
        }
        let address = match class_of(layout.size().max(1), layout.align()) {
            Some(class) => self.allocate_block(class, ground)?,
            None => self.allocate_chunks(layout.size(), ground)?,
        };
        Ok(NonNull::new(address).expect("inside the heap"))
    }

    fn allocate_block(&mut self, class: usize, ground: &dyn Ground) -> Result<*mut u8> {
        loop {
            while let Some(number) = self.roomy[class].last().copied() {
                if let Some(block) = self.take(number, class) {
                    return Ok(self.address(number).wrapping_add(block * SIZES[class] as usize));
                }
                self.chunk(number).listed = false;
                self.roomy[class].pop();
            }
            if self.free.is_empty() && self.look_further()? {
                continue;
            }
            let number = match self.free.pop_first() {
                Some(number) => number,
                None => {
                    self.grow(1, ground)?;
                    continue;
                }
            };
            self.set_use(number, Use::Blocks(class), 0);
            self.remember(number, class);
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
                chunk.hint = word as u16;
                chunk.free -= 1;
                return Some(block);
            }
        }
        None
    }

    fn grow(&mut self, segments: usize, ground: &dyn Ground) -> Result<()> {
        let new = self.segments().checked_add(segments).ok_or(Refused::Absurd)?;
        ground.grow(new).map_err(Refused::Grow)?;
        // SAFETY: the header is mapped.
        unsafe { *self.header() = Header { segments: new as u64, ..*self.header() }.summed() };
        Ok(())
    }

    fn allocate_chunks(&mut self, bytes: usize, ground: &dyn Ground) -> Result<*mut u8> {
        let chunks = bytes.div_ceil(CHUNK_BYTES);
        if chunks >= CHUNKS {
            return self.allocate_segments(bytes, ground);
        }
        loop {
            if let Some(first) = self.find_run(chunks) {
                for number in first..first + chunks as Number {
                    self.free.remove(&number);
                    self.set_use(number, if number == first { Use::Large(chunks) } else { Use::Rest }, 0);
                }
                self.set_use(first, Use::Large(chunks), bytes);
                return Ok(self.address(first));
            }
            if !self.look_further()? {
                self.grow(1, ground)?;
            }
        }
    }

    /// So many free chunks in a row in one segment.
    fn find_run(&self, chunks: usize) -> Option<Number> {
        let mut run = 0..0;
        for number in &self.free {
            let joins = run.end == *number && split(run.start).0 == split(*number).0;
            run = if joins { run.start..number + 1 } else { *number..number + 1 };
            if (run.end - run.start) as usize == chunks {
                return Some(run.start);
            }
        }
        None
    }

    fn allocate_segments(&mut self, bytes: usize, ground: &dyn Ground) -> Result<*mut u8> {
        let segments = bytes.checked_add(CHUNK_BYTES).ok_or(Refused::Absurd)?.div_ceil(SEGMENT_BYTES);
        while self.look_further()? {}
        let all = self.segments();
        let mut run = 0..0;
        for segment in 0..all {
            let first = (segment * CHUNKS) as Number;
            if self.free.range(first..first + CHUNKS as Number).count() < CHUNKS - 1 {
                run = segment + 1..segment + 1;
                continue;
            }
            run.end = segment + 1;
            if run.len() == segments {
                break;
            }
        }
        if run.end < all && run.len() < segments {
            run = all..all;
        }
        let start = run.start.min(all);
        if start + segments > all {
            self.grow(start + segments - all, ground)?;
            while self.look_further()? {}
        }
        let first = (start * CHUNKS) as Number;
        for number in first..first + (segments * CHUNKS) as Number {
            self.free.remove(&number);
        }
        self.set_use(first + 1, Use::Huge(segments), bytes);
        Ok(self.address(first + 1))
    }

    /// Where an allocation is: its chunk, its use, and the block's number.
    fn find(&mut self, address: *mut u8) -> Result<(Number, Use, usize)> {
        let offset = (address as usize).wrapping_sub(self.base as usize);
        let number = (offset / CHUNK_BYTES) as Number;
        if offset / SEGMENT_BYTES >= self.segments() || split(number).1 == 0 {
            return Err(Refused::NotAllocated);
        }
        while self.next <= split(number).0 {
            self.look_further()?;
        }
        let what = self.use_of(number)?;
        let inside = offset % CHUNK_BYTES;
        match what {
            Use::Blocks(class) if inside.is_multiple_of(SIZES[class] as usize) => {
                let block = inside / SIZES[class] as usize;
                // SAFETY: a word of the chunk's bitmap, inside a mapped segment.
                let used =
                    block < blocks(class) && unsafe { *self.bitmap(number).add(block / 64) } >> (block % 64) & 1 == 1;
                if used { Ok((number, what, block)) } else { Err(Refused::NotAllocated) }
            }
            Use::Large(_) | Use::Huge(_) if inside == 0 => Ok((number, what, 0)),
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
    pub(crate) fn free(&mut self, address: *mut u8, ground: &dyn Ground) -> Result<()> {
        let (number, what, block) = self.find(address)?;
        match what {
            Use::Blocks(class) => self.free_block(number, class, block, ground),
            Use::Large(chunks) => {
                for number in number..number + chunks as Number {
                    self.set_use(number, Use::Free, 0);
                    self.free.insert(number);
                }
                ground.give_back(number as usize * CHUNK_BYTES, chunks * CHUNK_BYTES).map_err(Refused::Grow)
            }
            Use::Huge(segments) => {
                let first = number - 1;
                // What comes back as zeros are segments without any allocation.
                let bytes =
                    if kept(Care::InsidesZeroed) { segments * SEGMENT_BYTES - CHUNK_BYTES } else { CHUNK_BYTES };
                ground.give_back(number as usize * CHUNK_BYTES, bytes).map_err(Refused::Grow)?;
                self.set_use(number, Use::Free, 0);
                let last = first + (segments * CHUNKS) as Number;
                self.free.extend((first..last).filter(|number| split(*number).1 != 0));
                Ok(())
            }
            Use::Free | Use::Rest => unreachable!("not an allocation"),
        }
    }

    fn free_block(&mut self, number: Number, class: usize, block: usize, ground: &dyn Ground) -> Result<()> {
        // SAFETY: a word of the chunk's bitmap, inside a mapped segment.
        unsafe { *self.bitmap(number).add(block / 64) &= !(1 << (block % 64)) };
        let chunk = self.chunk(number);
        chunk.free += 1;
        chunk.hint = chunk.hint.min((block / 64) as u16);
        let (empty, listed) = (chunk.free as usize == blocks(class), chunk.listed);
        if !listed {
            chunk.listed = true;
            self.roomy[class].push(number);
        }
        // A class keeps its last chunk, so that making and freeing one block by turns costs nothing.
        if empty && self.roomy[class].len() > 1 {
            if kept(Care::FreeChunkUnlisted) {
                self.roomy[class].retain(|n| *n != number);
            }
            *self.chunk(number) = Chunk::default();
            self.set_use(number, Use::Free, 0);
            self.free.insert(number);
            return ground.give_back(number as usize * CHUNK_BYTES, CHUNK_BYTES).map_err(Refused::Grow);
        }
        Ok(())
    }
}

fn split(number: Number) -> (usize, usize) {
    (number as usize / CHUNKS, number as usize % CHUNKS)
}
