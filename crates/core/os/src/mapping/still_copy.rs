//! Copies of pages that are made while all other threads of the process stand still: with memory that was there before.

use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use std::io;
use std::ops::Range;
use std::ptr::NonNull;

/// Memory that is kept from one time to the next.
const KEPT_BYTES: usize = 8 << 20;

/// Zeros, which take memory as they are stored to.
pub struct Scratch {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: memory of its own.
unsafe impl Send for Scratch {}
// SAFETY: as above; it is changed through an exclusive reference, or by whoever says how.
unsafe impl Sync for Scratch {}

impl Scratch {
    /// So many bytes, and at least one page.
    pub fn new(bytes: usize) -> io::Result<Scratch> {
        let bytes = bytes.max(1).next_multiple_of(rustix::param::page_size());
        let (both, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping.
        let at = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), bytes, both, flags)? };
        let at = NonNull::new(at.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Scratch { at, bytes })
    }

    /// Where it is.
    pub fn address(&self) -> NonNull<u8> {
        self.at
    }

    /// All of it is zeros again, and its memory is given back.
    pub fn clear(&self) {
        // SAFETY: the mapping that `new` made; whoever uses it meanwhile does so by atomics, and finds zeros.
        let _ = unsafe { mm::madvise(self.at.as_ptr().cast(), self.bytes, Advice::LinuxDontNeed) };
    }

    /// Has memory for the first bytes now, and not when they are stored to.
    fn populate(&self, bytes: usize) {
        if bytes > 0 {
            // SAFETY: within the mapping, and contents stay. Only a wish.
            let _ = unsafe { mm::madvise(self.at.as_ptr().cast(), bytes.min(self.bytes), Advice::LinuxPopulateWrite) };
        }
    }

    /// Gives memory back behind so many bytes.
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

/// Ranges of pages, and what was in them.
pub struct StillCopy {
    ranges: Scratch,
    bytes: Scratch,
    found: usize,
    found_bytes: u64,
    copied: usize,
}

impl StillCopy {
    /// With room for a mapping of so many bytes.
    pub fn new(bytes: u64) -> io::Result<StillCopy> {
        let pages = bytes as usize / rustix::param::page_size() + 2;
        let ranges = Scratch::new(pages * size_of::<Range<u64>>())?;
        Ok(StillCopy { ranges, bytes: Scratch::new(bytes as usize)?, found: 0, found_bytes: 0, copied: 0 })
    }

    /// Whether there is room for a mapping of so many bytes.
    pub fn has_room(&self, bytes: u64) -> bool {
        bytes as usize <= self.bytes.bytes
    }

    /// So many bytes will be copied at most, as far as one can tell.
    pub fn expect(&self, bytes: usize) {
        self.bytes.populate(bytes.clamp(1 << 20, KEPT_BYTES));
        self.ranges.populate(bytes / rustix::param::page_size() * size_of::<Range<u64>>());
    }

    /// Nothing is in it. Ranges come behind each other, and do not overlap.
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

    /// Copies what is in the ranges, of a mapping at this address. Allocates nothing.
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

    /// Pages that were found.
    pub(crate) fn pages(&self) -> u64 {
        self.found_bytes / rustix::param::page_size() as u64
    }

    /// What was found.
    pub fn ranges(&self) -> &[Range<u64>] {
        // SAFETY: as in `push`.
        unsafe { std::slice::from_raw_parts(self.ranges.at.cast().as_ptr(), self.found) }
    }

    /// What was in the ranges, one behind the other. Less than they have: nothing was copied, or not all.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: so many bytes are there.
        unsafe { std::slice::from_raw_parts(self.bytes.at.as_ptr(), self.copied) }
    }

    /// Whether everything that was found was copied.
    pub fn is_whole(&self) -> bool {
        self.copied as u64 == self.found_bytes
    }

    /// Adds bytes at the end of a range, where copying is somebody else's.
    pub(crate) fn room(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.bytes.bytes - self.copied);
        // SAFETY: there is room, as was just seen.
        let room = unsafe { std::slice::from_raw_parts_mut(self.bytes.at.add(self.copied).as_ptr(), len) };
        self.copied += len;
        room
    }
}
