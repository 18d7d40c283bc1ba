//! Copies of pages that are made while all other threads of the process are stopped, into memory that was allocated
//! before.

use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use std::io;
use std::ops::Range;
use std::ptr::NonNull;

/// Memory that is kept for the next copy.
const KEPT_BYTES: usize = 8 << 20;

/// Zeros, which take memory only when they are stored to.
pub struct Scratch {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: memory of its own.
unsafe impl Send for Scratch {}
// SAFETY: as above; it is changed through an exclusive reference, or by users of the address, which state how.
unsafe impl Sync for Scratch {}

impl Scratch {
    /// Reserves this many bytes, and at least one page.
    pub fn new(bytes: usize) -> io::Result<Scratch> {
        let bytes = bytes.max(1).next_multiple_of(rustix::param::page_size());
        let (both, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping.
        let at = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), bytes, both, flags)? };
        let at = NonNull::new(at.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Scratch { at, bytes })
    }

    /// Its address.
    pub fn address(&self) -> NonNull<u8> {
        self.at
    }

    /// Makes everything zeros again, and gives the memory back.
    pub fn clear(&self) {
        // SAFETY: the mapping that `new` made; concurrent users access it by atomics, and find zeros.
        let _ = unsafe { mm::madvise(self.at.as_ptr().cast(), self.bytes, Advice::LinuxDontNeed) };
    }

    /// Allocates memory for the first bytes now, instead of at the first store.
    fn populate(&self, bytes: usize) {
        if bytes > 0 {
            // SAFETY: within the mapping, and contents stay. Only a wish.
            let _ = unsafe { mm::madvise(self.at.as_ptr().cast(), bytes.min(self.bytes), Advice::LinuxPopulateWrite) };
        }
    }

    /// Gives memory back, except the first [`KEPT_BYTES`], if more was used.
    fn shrink(&mut self, used: usize) {
        let kept = KEPT_BYTES.min(self.bytes);
        if used > kept {
            // SAFETY: the end of the mapping, which nobody refers to.
            let _ = unsafe { mm::madvise(self.at.as_ptr().add(kept).cast(), self.bytes - kept, Advice::LinuxDontNeed) };
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, which nobody uses any more.
        let _ = unsafe { mm::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

/// Ranges of pages, and their contents.
pub struct StillCopy {
    ranges: Scratch,
    bytes: Scratch,
    found: usize,
    found_bytes: u64,
    copied: usize,
}

impl StillCopy {
    /// Reserves room for a mapping of this size.
    pub fn new(bytes: u64) -> io::Result<StillCopy> {
        let pages = bytes as usize / rustix::param::page_size() + 2;
        let ranges = Scratch::new(pages * size_of::<Range<u64>>())?;
        Ok(StillCopy { ranges, bytes: Scratch::new(bytes as usize)?, found: 0, found_bytes: 0, copied: 0 })
    }

    /// Whether there is room for a mapping of this size.
    pub fn has_room(&self, bytes: u64) -> bool {
        bytes as usize <= self.bytes.bytes
    }

    /// Allocates memory in advance for a copy of probably at most this many bytes.
    pub fn expect(&self, bytes: usize) {
        self.bytes.populate(bytes.clamp(1 << 20, KEPT_BYTES));
        self.ranges.populate(bytes / rustix::param::page_size() * size_of::<Range<u64>>());
    }

    /// Empties the copy. The ranges that are added next must be in order and disjoint.
    pub fn clear(&mut self) {
        self.bytes.shrink(self.copied);
        (self.found, self.found_bytes, self.copied) = (0, 0, 0);
    }

    /// Adds a range of offsets, to be copied by [`StillCopy::copy_from`]. Allocates nothing.
    pub(crate) fn push(&mut self, range: Range<u64>) {
        self.found_bytes += range.end - range.start;
        let all = self.ranges.at.cast::<Range<u64>>();
        // SAFETY: ranges that were written before.
        let found = unsafe { std::slice::from_raw_parts_mut(all.as_ptr(), self.found) };
        match found.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => {
                assert!((self.found + 1) * size_of::<Range<u64>>() <= self.ranges.bytes);
                // SAFETY: there is room, as was just seen.
                unsafe { all.add(self.found).write(range) };
                self.found += 1;
            }
        }
    }

    /// Copies the contents of the ranges from a mapping at this address. Allocates nothing.
    ///
    /// # Safety
    /// The ranges are mapped there, and nobody stores to them.
    pub(crate) unsafe fn copy_from(&mut self, base: *const u8) {
        for n in 0..self.found {
            let range = self.ranges()[n].clone();
            let len = (range.end - range.start) as usize;
            assert!(len <= self.bytes.bytes - self.copied);
            // SAFETY: the caller's promise; there is room, as was just seen.
            unsafe {
                self.bytes
                    .at
                    .add(self.copied)
                    .copy_from_nonoverlapping(NonNull::new_unchecked(base.add(range.start as usize).cast_mut()), len)
            };
            self.copied += len;
        }
    }

    /// Number of pages in the ranges.
    pub(crate) fn pages(&self) -> u64 {
        self.found_bytes / rustix::param::page_size() as u64
    }

    /// The ranges that were added.
    pub fn ranges(&self) -> &[Range<u64>] {
        // SAFETY: as in `push`.
        unsafe { std::slice::from_raw_parts(self.ranges.at.cast().as_ptr(), self.found) }
    }

    /// The contents of the ranges, one after the other. Shorter than the ranges if nothing, or not everything, was
    /// copied.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: so many bytes are there.
        unsafe { std::slice::from_raw_parts(self.bytes.at.as_ptr(), self.copied) }
    }

    /// Whether the contents of all ranges were copied.
    pub fn is_whole(&self) -> bool {
        self.copied as u64 == self.found_bytes
    }

    /// Appends room for the contents of a range that the caller copies.
    pub(crate) fn room(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.bytes.bytes - self.copied);
        // SAFETY: there is room, as was just seen.
        let room = unsafe { std::slice::from_raw_parts_mut(self.bytes.at.add(self.copied).as_ptr(), len) };
        self.copied += len;
        room
    }
}
