//! Follows pointers through a heap: finds the allocations that are reached from the roots, and those that have leaked.

use super::{Checker, bit};
use crate::heap::image::layout::CHUNK_BYTES;
use crate::heap::image::report::{HeapLeak, HeapLeaks};
use untorn_journal::Result;
use untorn_journal::format::sized_memory;

/// The most leaks that are reported one by one.
const LEAKS_MOST: usize = 20;
/// The bytes of an allocation that are read at once.
const PIECE_BYTES: usize = 1 << 20;
/// The size of a pointer.
const WORD_BYTES: usize = 8;

fn set(words: &mut [u64], at: usize, n: usize) {
    words[at + n / 64] |= 1 << (n % 64);
}

/// The indices of the ones in a word.
fn ones(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let n = bits.trailing_zeros() as usize;
        bits &= bits.checked_sub(1)?;
        Some(n)
    })
}

impl Checker<'_> {
    /// Finds leaked allocations, if the heap is sound.
    pub(crate) fn find_leaks(&mut self, progress: &dyn Fn(u64, u64)) -> Result<()> {
        if !self.report.is_sound() {
            return Ok(());
        }
        let blocks: u64 = self.report.classes.iter().map(|class| class.used * class.block_bytes).sum();
        let all = blocks + self.report.large.bytes + self.report.huge.bytes;
        let mut done = 0;
        let mut buf = Vec::new();
        while let Some(number) = self.queue.pop_front() {
            self.chunks[number].queued = false;
            done += self.scan_chunk(number, &mut buf)?;
            progress(done, all);
        }
        let mut leaks = HeapLeaks::default();
        let mut largest = Vec::new();
        for (offset, bytes) in self.leaked() {
            leaks.count += 1;
            leaks.bytes += bytes;
            largest.push(HeapLeak { address: self.base + offset, bytes });
            if largest.len() == 2 * LEAKS_MOST {
                keep_largest(&mut largest);
            }
        }
        keep_largest(&mut largest);
        leaks.largest = largest;
        self.report.leaks = Some(leaks);
        Ok(())
    }

    /// The offset and size of every allocation that was not reached.
    pub(crate) fn leaked(&self) -> impl Iterator<Item = (u64, u64)> {
        self.allocations(false)
    }

    /// The offset and size of every allocation that was reached.
    pub(crate) fn reached_allocations(&self) -> impl Iterator<Item = (u64, u64)> {
        self.allocations(true)
    }

    fn allocations(&self, reached: bool) -> impl Iterator<Item = (u64, u64)> {
        let heads = self.chunks.iter().enumerate().filter(|(_, chunk)| chunk.back == 0);
        heads.flat_map(move |(number, chunk)| {
            let of = chunk.units();
            let left = (0..of.div_ceil(64)).flat_map(move |word| {
                let (used, seen) = (self.used[chunk.bits + word], self.reached[chunk.bits + word]);
                ones(used & if reached { seen } else { !seen }).map(move |n| word * 64 + n)
            });
            left.map(move |block| self.bounds((number, block)))
        })
    }

    /// Takes a word as a pointer, and reaches the allocation that it points into, or else the one that ends there.
    pub(super) fn reach(&mut self, address: u64) {
        let offset = address.wrapping_sub(self.base);
        if offset > self.report.heap_bytes {
            return;
        }
        let Some((number, block)) = self.find(offset).or_else(|| self.find(offset.checked_sub(1)?)) else { return };
        let at = self.chunks[number].bits;
        if bit(&self.reached, at, block) {
            return;
        }
        set(&mut self.reached, at, block);
        set(&mut self.waiting, at, block);
        if !std::mem::replace(&mut self.chunks[number].queued, true) {
            self.queue.push_back(number);
        }
    }

    /// Scans the allocations that wait in a chunk; returns their size in bytes.
    fn scan_chunk(&mut self, number: usize, buf: &mut Vec<u8>) -> Result<u64> {
        let chunk = self.chunks[number];
        let words = chunk.bits..chunk.bits + chunk.units().div_ceil(64);
        let mut waiting = Vec::new();
        for (word, bits) in self.waiting[words].iter_mut().enumerate() {
            waiting.extend(ones(std::mem::take(bits)).map(|n| word * 64 + n));
        }
        let found: Vec<_> = waiting.into_iter().map(|block| self.bounds((number, block))).collect();
        let bytes = found.iter().map(|(_, bytes)| bytes).sum();
        let start = (number * CHUNK_BYTES) as u64;
        if bytes < CHUNK_BYTES as u64 / 8 || bytes > CHUNK_BYTES as u64 {
            // Few blocks, or one large allocation.
            for (offset, bytes) in found {
                self.scan(offset, bytes, buf)?;
            }
            return Ok(bytes);
        }
        let mut all = std::mem::take(buf);
        sized_memory::resize(&mut all, CHUNK_BYTES, &self.report.path)?;
        self.image.read(&mut all, start)?;
        for (offset, bytes) in found {
            let at = (offset - start) as usize;
            self.scan_bytes(&all[at..at + bytes as usize]);
        }
        *buf = all;
        Ok(bytes)
    }

    fn scan(&mut self, offset: u64, bytes: u64, buf: &mut Vec<u8>) -> Result<()> {
        let mut piece = std::mem::take(buf);
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            // A pointer may lie across the end of a piece.
            let bytes = (end - at).min((PIECE_BYTES + WORD_BYTES - 1) as u64) as usize;
            sized_memory::resize(&mut piece, bytes, &self.report.path)?;
            self.image.read(&mut piece, at)?;
            self.scan_bytes(&piece);
            at += PIECE_BYTES as u64;
        }
        *buf = piece;
        Ok(())
    }

    fn scan_bytes(&mut self, bytes: &[u8]) {
        let (base, len) = (self.base, self.report.heap_bytes);
        for word in bytes.windows(WORD_BYTES) {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            if word.wrapping_sub(base) <= len {
                self.reach(word);
            }
        }
    }
}

fn keep_largest(leaks: &mut Vec<HeapLeak>) {
    leaks.sort_unstable_by_key(|leak| (std::cmp::Reverse(leak.bytes), leak.address));
    leaks.truncate(LEAKS_MOST);
}
