//! Flushes of a live heap's memory, if it is byte-addressable memory whose caches are lost with the power.
//!
//! A power cut leaves, of the stores since the last flush of their line, any subset of aligned parts of eight bytes. So
//! the order of stores that a killed process leaves is made by flushes: each step that others rely on is durable first.

use crate::invariant;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::atomic::{AtomicU64, compiler_fence};
use untorn_journal::format::crc64;
use untorn_os::{Invariant, LiveMedium, fence_lines, flush_lines, holds, sync_live_memory};

/// The offset of the medium in the head of the memory, on a cache line of its own. Two numbers follow: whether a flush of
/// all of the memory has failed, and whether the logs of all sections are void.
pub(crate) const MEDIUM_AT: usize = (64 << 10) - 64;

/// How the memory behind a head becomes durable.
#[derive(Clone, Copy)]
pub(crate) struct Flushing {
    head: NonNull<u8>,
}

impl Flushing {
    /// # Safety
    /// The head of live memory, or a copy, is mapped there for ever.
    pub(crate) unsafe fn at(head: NonNull<u8>) -> Flushing {
        Flushing { head }
    }

    fn word(&self, nth: usize) -> &AtomicU64 {
        // SAFETY: in the head, aligned, and accessed as an atomic alone.
        unsafe { self.head.add(MEDIUM_AT + nth * 8).cast().as_ref() }
    }

    /// The medium of the memory. None: the number is of no medium.
    pub(crate) fn known_medium(&self) -> Option<LiveMedium> {
        LiveMedium::of_number(self.word(0).load(Acquire))
    }

    /// Sets the medium, durably.
    pub(crate) fn set_medium(&self, medium: LiveMedium) {
        let flushes = self.is_on() || medium.is_flushed();
        self.word(0).store(medium.number(), Release);
        self.word(1).store(0, Release);
        if flushes {
            self.persist_here(self.word(0));
        }
    }

    /// Whether lines are flushed.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.word(0).load(Acquire) == LiveMedium::Flushed.number()
    }

    /// Whether a flush of all of the memory has failed: a power cut may have left anything.
    pub(crate) fn has_failed(&self) -> bool {
        self.word(1).load(Acquire) != 0
    }

    /// Whether the logs of all sections are void, whatever they contain.
    pub(crate) fn are_logs_void(&self) -> bool {
        self.word(2).load(Acquire) != 0
    }

    /// Makes the logs of all sections void, or makes them count again, when each of them is.
    pub(crate) fn set_logs_void(&self, void: bool) {
        compiler_fence(SeqCst);
        self.word(2).store(u64::from(void), Release);
        self.persist(invariant::LIVE_VOID_DURABLE, self.word(2));
        compiler_fence(SeqCst);
    }

    fn persist_here<T>(&self, value: &T) {
        // SAFETY: mapped, as it is borrowed.
        unsafe { flush_lines(std::ptr::from_ref(value) as usize, size_of::<T>()) };
        fence_lines();
    }

    /// Begins to flush bytes, if that is needed; [`Flushing::fence`] ends it. `needed` is what the flush ensures.
    ///
    /// # Safety
    /// The bytes are mapped.
    #[inline]
    pub(crate) unsafe fn flush(&self, needed: Invariant, address: usize, len: usize) {
        if self.is_on() && holds(needed) {
            // SAFETY: the caller's promise.
            unsafe { flush_lines(address, len) };
        }
    }

    /// Waits for the flushes of this thread, if there are any.
    #[inline]
    pub(crate) fn fence(&self) {
        if self.is_on() {
            fence_lines();
        }
    }

    /// Makes a value in the memory durable, if that needs a flush.
    #[inline]
    pub(crate) fn persist<T>(&self, needed: Invariant, value: &T) {
        if self.is_on() && holds(needed) {
            self.persist_here(value);
        }
    }

    /// Makes everything durable that is in the memory, if that needs a flush.
    pub(crate) fn sync(&self, needed: Invariant) -> std::io::Result<()> {
        if self.is_on() && holds(needed) { sync_live_memory(self.head) } else { Ok(()) }
    }

    /// Like [`Flushing::sync`], where a failure cannot be reported: it is noted in the memory, which then survives no power
    /// cut.
    pub(crate) fn sync_or_note(&self, needed: Invariant) {
        if let Err(e) = self.sync(needed) {
            self.word(1).store(1, Release);
            self.persist_here(self.word(1));
            tracing::error!(
                id = "untorn.heap.flush_failed",
                error = %e, "live memory could not be flushed: after a power cut the heap goes back to its last cut"
            );
        }
    }
}

/// Distinguishes the records of a log from older ones in its place.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed {
    /// The number of times that the log was taken by a thread, or made void.
    pub generation: u64,
    /// The number of the first section in the log.
    pub first: u64,
}

impl Seed {
    /// The checksum of a record at an offset of the log: of its two words, and of the bytes behind them.
    pub(crate) fn sum(&self, at: usize, words: [u64; 2], bytes: &[u8]) -> u64 {
        let behind = if bytes.is_empty() { 0 } else { crc64(bytes) };
        let all = [self.generation, self.first, at as u64, words[0], words[1], behind];
        // SAFETY: the bytes of numbers, in this machine's order, as the whole log is.
        crc64(unsafe { std::slice::from_raw_parts(all.as_ptr().cast(), size_of_val(&all)) })
    }
}
