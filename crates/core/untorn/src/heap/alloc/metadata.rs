//! The metadata of a heap in its mapped memory. A thread that changes a chunk's metadata holds the lock of the chunk's
//! owner.

use crate::engine::region::Marked;
use crate::heap::image::layout::*;
use crate::heap::log::live_head::LiveHead;
use crate::invariant;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use untorn_os::holds;

/// The reason why the allocator refuses a call.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The heap's own bytes make no sense; the text says where and why.
    Corrupt(String),
    /// A pointer that belongs to no allocation.
    NotAllocated,
    /// Too large, or an alignment beyond a page.
    Absurd,
    /// The heap cannot grow.
    Grow(untorn_journal::Error),
}

pub(crate) type Result<T> = std::result::Result<T, Refused>;

/// A chunk's number in the heap: its segment's number times the chunks of a segment, plus its index there.
pub(crate) type Number = u32;

pub(crate) fn corrupt(number: Number, what: std::fmt::Arguments<'_>) -> Refused {
    let (segment, index) = split(number);
    Refused::Corrupt(format!("segment {segment}, chunk {index}: {what}"))
}

pub(crate) fn split(number: Number) -> (usize, usize) {
    (number as usize / CHUNKS, number as usize % CHUNKS)
}

/// A heap's metadata, in memory that stays mapped as long as it is used.
pub(crate) struct Metadata {
    base: *mut u8,
    /// With the tracker `explicit`, the dirty ranges: every store here is added to them.
    marked: Option<Arc<Marked>>,
    /// The head of a live heap: the old bytes of a change that spans several lines are kept there until the change is
    /// complete.
    live: Option<LiveHead>,
}

// SAFETY: an address; each access says under which lock it is.
unsafe impl Send for Metadata {}
// SAFETY: as above.
unsafe impl Sync for Metadata {}

impl Metadata {
    pub(crate) fn new(base: *mut u8, marked: Option<Arc<Marked>>, live: Option<LiveHead>) -> Metadata {
        Metadata { base, marked, live }
    }

    /// Saves bytes that are about to change. The caller has the lock of the space.
    fn save(&self, at: *const u8, len: usize) {
        if let Some(live) = &self.live {
            // SAFETY: metadata in a mapped segment, which the caller is about to change.
            live.save(at as usize - self.base as usize, unsafe { std::slice::from_raw_parts(at, len) });
        }
    }

    /// Declares the changes since the last call complete: a process that ends now keeps them. The caller has the lock
    /// of the space.
    pub(crate) fn settle(&self) {
        if let Some(live) = &self.live {
            live.settle(self.base as usize);
        }
    }

    /// Adds the bytes of this value to the dirty ranges.
    #[inline]
    fn tell<T>(&self, at: *mut T) {
        if let Some(marked) = self.marked.as_ref().filter(|_| holds(invariant::HEAP_MARKS)) {
            marked.mark_dirty(self.base as usize, at as usize, size_of::<T>());
        }
    }

    pub(crate) fn header(&self) -> Header {
        // SAFETY: the header is mapped; any bytes are one.
        unsafe { *self.base.cast::<Header>() }
    }

    pub(crate) fn set_header(&self, header: Header) {
        self.save(self.base, size_of::<Header>());
        // SAFETY: as above.
        unsafe { *self.base.cast::<Header>() = header.summed() };
        self.tell(self.base.cast::<Header>());
    }

    fn descriptor(&self, number: Number) -> *mut Descriptor {
        let (segment, index) = split(number);
        // SAFETY: inside a mapped segment.
        unsafe { self.base.add(segment * SEGMENT_BYTES + DESCRIPTORS_AT).cast::<Descriptor>().add(index) }
    }

    pub(crate) fn use_of(&self, number: Number) -> Result<Use> {
        // SAFETY: as above; any bytes are a descriptor.
        let descriptor = unsafe { *self.descriptor(number) };
        let index = split(number).1;
        descriptor.what(index).ok_or_else(|| corrupt(number, format_args!("{descriptor:?}")))
    }

    pub(crate) fn set_use(&self, number: Number, what: Use, bytes: usize) {
        self.save(self.descriptor(number).cast(), size_of::<Descriptor>());
        // SAFETY: as above.
        unsafe { *self.descriptor(number) = Descriptor::new(what, bytes as u64) };
        self.tell(self.descriptor(number));
    }

    fn bitmap(&self, number: Number) -> *mut u64 {
        let (segment, index) = split(number);
        // SAFETY: inside a mapped segment.
        unsafe { self.base.add(segment * SEGMENT_BYTES + BITMAPS_AT).cast::<u64>().add(index * BITMAP_WORDS) }
    }

    /// A word of a chunk's bitmap.
    #[inline]
    pub(crate) fn word(&self, number: Number, word: usize) -> u64 {
        assert!(word < BITMAP_WORDS);
        // SAFETY: a word of the chunk's bitmap, inside a mapped segment.
        unsafe { *self.bitmap(number).add(word) }
    }

    #[inline]
    pub(crate) fn set_word(&self, number: Number, word: usize, bits: u64) {
        assert!(word < BITMAP_WORDS);
        // SAFETY: as above.
        let at = unsafe { self.bitmap(number).add(word) };
        // An atomic store, as the process may end at any moment.
        // SAFETY: as above; every thread that reads or writes the word has the same lock.
        let word = unsafe { AtomicU64::from_ptr(at) };
        word.store(bits, Relaxed);
        if let Some(live) = &self.live {
            // Before anybody stores the address of a block, or gets one that was freed.
            live.flushing().persist(invariant::LIVE_BITS_DURABLE, word);
        }
        self.tell(at);
    }

    /// Blocks of a chunk that are not in use.
    pub(crate) fn count_free(&self, number: Number, class: usize) -> usize {
        let all = blocks(class);
        let used = |word: usize| (self.word(number, word) & word_mask(all, word)).count_ones() as usize;
        all - (0..all.div_ceil(64)).map(used).sum::<usize>()
    }

    pub(crate) fn address(&self, number: Number) -> *mut u8 {
        self.base.wrapping_add(number as usize * CHUNK_BYTES)
    }

    /// The offset of an address in the heap; beyond the heap's end if the address is not in it.
    pub(crate) fn offset_of(&self, address: *mut u8) -> usize {
        (address as usize).wrapping_sub(self.base as usize)
    }

    /// Whether a segment lies inside of an allocation.
    pub(crate) fn is_inside(&self, segment: usize) -> bool {
        let (at, bit) = inside_bit(segment);
        // SAFETY: in the metadata of a segment that no allocation spans, at or before this one.
        unsafe { *self.base.add(at) & bit != 0 }
    }

    pub(crate) fn set_inside(&self, segments: std::ops::Range<usize>, inside: bool) {
        let mut saved = usize::MAX;
        for segment in segments {
            let (at, bit) = inside_bit(segment);
            if at - at % 64 != saved {
                saved = at - at % 64;
                self.save(self.base.wrapping_add(saved), 64);
            }
            // SAFETY: as above.
            let byte = unsafe { &mut *self.base.add(at) };
            *byte = if inside { *byte | bit } else { *byte & !bit };
            self.tell(byte);
        }
    }

    /// Checks that the chunks behind the first one of a large allocation belong to it.
    pub(crate) fn check_large(&self, number: Number, chunks: usize) -> Result<()> {
        let mut rest = number + 1..number + chunks as Number;
        match rest.find(|rest| !matches!(self.use_of(*rest), Ok(Use::Rest))) {
            Some(other) => Err(corrupt(number, format_args!("chunk {} is not a part of it", split(other).1))),
            None => Ok(()),
        }
    }

    /// Checks that the segments behind the first one of an allocation are marked as inside of it, and that the next one
    /// is not.
    pub(crate) fn check_huge(&self, number: Number, segments: usize, all: usize) -> Result<()> {
        let first = split(number).0;
        let end = first.checked_add(segments).filter(|end| *end <= all && first / INSIDES == (end - 1) / INSIDES);
        let right = end.is_some_and(|end| {
            (first + 1..end).all(|segment| self.is_inside(segment)) && (end >= all || !self.is_inside(end))
        });
        if right { Ok(()) } else { Err(corrupt(number, format_args!("{segments} segments are not inside of it"))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::NonNull;
    use untorn_os::LIVE_HEAD_BYTES;

    /// Aligned like a descriptor.
    #[derive(Clone, Copy)]
    #[repr(C, align(64))]
    struct Line([u8; 64]);

    /// An undo brings back any number of unsettled changes, and no settled one.
    #[test]
    fn what_is_not_settled_is_undone() {
        let mut memory = vec![Line([0; 64]); SEGMENT_BYTES / 64];
        let mut head = vec![Line([0; 64]); LIVE_HEAD_BYTES / 64];
        // SAFETY: as many bytes as a head has, which outlive every use.
        let head = unsafe { LiveHead::at(NonNull::from(&mut head[..]).cast()) };
        let base = memory.as_mut_ptr().cast::<u8>();
        let metadata = Metadata::new(base, None, Some(head));
        // SAFETY: the memory above.
        let bytes = || unsafe { std::slice::from_raw_parts(base, CHUNK_BYTES) }.to_vec();
        metadata.set_use(5, Use::Blocks(3), 0);
        metadata.settle();
        for changes in 0..4 {
            let before = bytes();
            let header = Header { segments: 7, ..metadata.header() };
            let change: [&dyn Fn(); 3] =
                [&|| metadata.set_use(5, Use::Large(9), 9 * CHUNK_BYTES), &|| metadata.set_header(header), &|| {
                    metadata.set_inside(3..1200, true)
                }];
            change[..changes].iter().for_each(|change| change());
            assert_eq!(changes > 0, bytes() != before);
            let undone = head.undo(|old, at| {
                // SAFETY: within the memory above.
                unsafe { base.add(at as usize).copy_from(old.as_ptr(), old.len()) };
                Ok::<(), ()>(())
            });
            head.forget_saved();
            assert!(undone.is_ok() && bytes() == before, "{changes} changes");
        }
    }
}
