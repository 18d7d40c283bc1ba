//! Arenas: chunks with free blocks that one lock guards, listed by the size of their blocks. Each of a heap's slots for
//! threads has an arena, and so has the space behind the slots.

use super::chunk_table::{Chunk, ChunkTable, NO_BLOCKS, NOBODY, NOWHERE, UNCOUNTED};
use super::metadata::{Number, Refused, Result, corrupt, split};
use crate::heap::image::layout::{CHUNK_BYTES, SEGMENT_BYTES, SIZES, Use, blocks};
use std::sync::Arc;

/// The chunks that one lock guards. Methods are called under that lock, and only with chunks that this arena owns.
pub(crate) struct Arena {
    table: Arc<ChunkTable>,
    /// The number under which the table names this arena as the owner of a chunk.
    pub id: u8,
    /// Chunks with free blocks, or with blocks that nobody has counted yet, by size class.
    roomy: [Vec<Number>; SIZES.len()],
}

impl Arena {
    pub(crate) fn new(table: Arc<ChunkTable>, id: u8) -> Arena {
        Arena { table, id, roomy: [const { Vec::new() }; SIZES.len()] }
    }

    /// Forgets all chunks.
    pub(crate) fn forget(&mut self) {
        self.roomy.iter_mut().for_each(Vec::clear);
    }

    fn chunk(&mut self, number: Number) -> &mut Chunk {
        debug_assert_eq!(self.table.owner(number), self.id);
        // SAFETY: the caller holds the lock of this arena, which owns the chunk; the reference borrows the arena.
        unsafe { self.table.chunk(number) }
    }

    /// Notes that a chunk has blocks of a class. The free blocks are counted later, on demand: counting reads a cache
    /// line or more of each chunk.
    pub(crate) fn remember(&mut self, number: Number, class: usize) {
        *self.chunk(number) = Chunk { free: UNCOUNTED, hint: 0, class: class as u8, place: NOWHERE };
        self.list(number, class);
    }

    /// Counts the free blocks of a chunk.
    fn count(&mut self, number: Number, class: usize) -> u16 {
        if self.chunk(number).free == UNCOUNTED {
            self.chunk(number).free = self.table.metadata.count_free(number, class) as u16;
        }
        self.chunk(number).free
    }

    /// Notes that a chunk is free for any use.
    pub(crate) fn forget_chunk(&mut self, number: Number) {
        *self.chunk(number) = Chunk::NONE;
    }

    fn list(&mut self, number: Number, class: usize) {
        self.chunk(number).place = self.roomy[class].len() as u32;
        self.roomy[class].push(number);
    }

    pub(crate) fn unlist(&mut self, number: Number, class: usize) {
        let place = std::mem::replace(&mut self.chunk(number).place, NOWHERE) as usize;
        if place >= self.roomy[class].len() {
            return;
        }
        self.roomy[class].swap_remove(place);
        if let Some(moved) = self.roomy[class].get(place).copied() {
            self.chunk(moved).place = place as u32;
        }
    }

    /// Finds a chunk of this arena with free blocks of a class.
    pub(crate) fn roomy(&mut self, class: usize) -> Option<Number> {
        while let Some(number) = self.roomy[class].last().copied() {
            if self.count(number, class) > 0 {
                return Some(number);
            }
            self.unlist(number, class);
        }
        None
    }

    /// Moves a chunk from another arena, whose lock is held as well, to this arena.
    pub(crate) fn adopt(&mut self, from: &mut Arena, number: Number, class: usize) {
        if from.chunk(number).place != NOWHERE {
            from.unlist(number, class);
        }
        self.table.set_owner(number, self.id);
        if self.count(number, class) > 0 {
            self.list(number, class);
        }
    }

    /// Takes a free block of a class; it is in use from now on.
    #[inline]
    pub(crate) fn take(&mut self, class: usize) -> Option<*mut u8> {
        while let Some(number) = self.roomy[class].last().copied() {
            if let Some(block) = self.take_first(number, class) {
                return Some(self.table.metadata.address(number).wrapping_add(block * SIZES[class] as usize));
            }
            self.unlist(number, class);
        }
        None
    }

    /// Takes the first free block of a chunk.
    fn take_first(&mut self, number: Number, class: usize) -> Option<usize> {
        let (metadata, all) = (&self.table.metadata, blocks(class));
        // SAFETY: as in `chunk`.
        let chunk = unsafe { self.table.chunk(number) };
        // An arena that blocks are taken from has adopted its chunks, and adopting counts them.
        debug_assert_ne!(chunk.free, UNCOUNTED);
        if chunk.free == 0 {
            return None;
        }
        for word in chunk.hint as usize..all.div_ceil(64) {
            let bits = metadata.word(number, word);
            let block = word * 64 + bits.trailing_ones() as usize;
            if bits != u64::MAX && block < all {
                metadata.set_word(number, word, bits | 1 << (block % 64));
                chunk.hint = word as u8;
                chunk.free -= 1;
                return Some(block);
            }
        }
        None
    }

    /// Finds an allocation in a chunk of this arena: its chunk, its use, and the block's number.
    pub(crate) fn find(&mut self, address: *mut u8) -> Result<(Number, Use, usize)> {
        let (offset, number) = (self.table.metadata.offset_of(address), self.table.number_at(address));
        let number = number.filter(|number| split(*number).1 > 0).ok_or(Refused::NotAllocated)?;
        debug_assert!(offset / SEGMENT_BYTES < self.table.segments_most());
        let what = self.table.metadata.use_of(number)?;
        // A stray store may have changed the descriptor since the arena read it.
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
                let word = |block: usize| self.table.metadata.word(number, block / 64);
                let used = block < blocks(class) && word(block) >> (block % 64) & 1 == 1;
                if used { Ok((number, what, block)) } else { Err(Refused::NotAllocated) }
            }
            Use::Large(_) | Use::Huge(_) if inside == 0 => Ok((number, what, 0)),
            _ => Err(Refused::NotAllocated),
        }
    }

    /// The owner of the chunk that an address may be in.
    #[inline]
    pub(crate) fn owner_of(&self, address: *mut u8) -> u8 {
        self.table.number_at(address).map_or(NOBODY, |number| self.table.owner(number))
    }

    /// Ends an allocation in a chunk of this arena. Returns the chunk and its class if the space is to take the chunk
    /// back.
    pub(crate) fn free_at(&mut self, address: *mut u8) -> Result<Option<(Number, usize)>> {
        match self.find(address)? {
            (number, Use::Blocks(class), block) => Ok(self.free(number, class, block).then_some((number, class))),
            _ => Err(Refused::NotAllocated),
        }
    }

    /// Ends the use of a block. True: the chunk is empty, it is not the last one of its class, and the space is to take
    /// it back.
    pub(crate) fn free(&mut self, number: Number, class: usize, block: usize) -> bool {
        let metadata = &self.table.metadata;
        metadata.set_word(number, block / 64, metadata.word(number, block / 64) & !(1 << (block % 64)));
        let chunk = self.chunk(number);
        chunk.free = chunk.free.saturating_add(1);
        chunk.hint = chunk.hint.min((block / 64) as u8);
        let (free, listed) = (chunk.free as usize, chunk.place != NOWHERE);
        if !listed {
            self.list(number, class);
        }
        // A class keeps its last chunk, so that allocating and freeing one block in a loop costs nothing.
        if free < blocks(class) || self.roomy[class].len() == 1 {
            return false;
        }
        // Counts once more, in case somebody wrote to the bitmap: giving back a chunk with a block in use would zero
        // that block.
        let free = self.table.metadata.count_free(number, class);
        self.chunk(number).free = free as u16;
        free == blocks(class)
    }
}
