//! Locks of sections, each with a mark that names the last section that held it, if that may still be rolled back.

use super::section_log::SectionId;
use parking_lot::RawRwLock;
use parking_lot::lock_api::RawRwLock as _;
use std::cell::UnsafeCell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Names a section. Only the thread that holds the lock writes and reads it. All zeros: no section.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Mark {
    place: AtomicU64,
    number: AtomicU64,
    clock: AtomicU64,
}

impl Mark {
    pub(crate) const fn new() -> Mark {
        Mark { place: AtomicU64::new(0), number: AtomicU64::new(0), clock: AtomicU64::new(0) }
    }

    /// Whether the mark names no section.
    #[inline]
    pub(crate) fn is_clear(&self) -> bool {
        self.number.load(Relaxed) == 0
    }

    /// The section, and its thread's clock at that time.
    #[inline]
    pub(crate) fn read(&self) -> Option<(SectionId, u64)> {
        match self.number.load(Relaxed) {
            0 => None,
            number => Some((SectionId { place: self.place.load(Relaxed) as u8, number }, self.clock.load(Relaxed))),
        }
    }

    pub(crate) fn write(&self, section: SectionId, clock: u64) {
        self.place.store(u64::from(section.place), Relaxed);
        self.number.store(section.number, Relaxed);
        self.clock.store(clock, Relaxed);
    }

    pub(crate) fn clear(&self) {
        self.number.store(0, Relaxed);
    }
}

/// A lock that begins and ends sections, with the mark of the last section that held it.
#[repr(C)]
pub(crate) struct MarkedLock {
    raw: UnsafeCell<RawRwLock>,
    pub mark: Mark,
}

// SAFETY: a lock, and atomics.
unsafe impl Send for MarkedLock {}
// SAFETY: as above; the thread that replaces the lock is the only one that uses it.
unsafe impl Sync for MarkedLock {}

/// The mode in which a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
}

impl MarkedLock {
    pub(crate) const fn new() -> MarkedLock {
        MarkedLock { raw: UnsafeCell::new(RawRwLock::INIT), mark: Mark::new() }
    }

    #[inline]
    fn raw(&self) -> &RawRwLock {
        // SAFETY: replaced only by `reset`, while nobody uses it.
        unsafe { &*self.raw.get() }
    }

    /// Frees the lock: the thread that held it is gone.
    pub(crate) fn reset(&self) {
        self.mark.clear();
        // SAFETY: no other thread uses it before the caller has said that it is done.
        unsafe { self.raw.get().write(RawRwLock::INIT) };
    }

    #[inline]
    pub(crate) fn lock(&self, mode: Mode) {
        match mode {
            Mode::Exclusive => self.raw().lock_exclusive(),
            Mode::Shared => self.raw().lock_shared(),
        }
    }

    #[inline]
    pub(crate) fn try_lock(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => self.raw().try_lock_exclusive(),
            Mode::Shared => self.raw().try_lock_shared(),
        }
    }

    /// Whether any thread holds the lock in this mode.
    pub(crate) fn is_locked(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => self.raw().is_locked_exclusive(),
            Mode::Shared => self.raw().is_locked() && !self.raw().is_locked_exclusive(),
        }
    }

    /// # Safety
    /// This thread holds the lock in this mode.
    #[inline]
    pub(crate) unsafe fn unlock(&self, mode: Mode) {
        // SAFETY: the caller's promise.
        unsafe {
            match mode {
                Mode::Exclusive => self.raw().unlock_exclusive(),
                Mode::Shared => self.raw().unlock_shared(),
            }
        }
    }
}
