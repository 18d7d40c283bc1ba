//! Locks whose critical sections are all or nothing.

use crate::heap::alloc::registry::WeakHeap;
use crate::heap::collections::storable::Storable;
use crate::heap::handle::open_heap::Heap;
use crate::heap::log::section_log::LogWriter;
use crate::heap::log::section_mark::{MarkedLock, Mode};
use crate::heap::log::section_thread::writer;
use crate::heap::log::sections::Sections;
use crate::heap::sections::audit;
use crate::heap::sections::run;
use crate::heap::sections::section::Section;
use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use untorn_journal::{Error, Result};

/// A lock for data in a live heap. A section lasts from the first lock that a thread takes until it has given all of
/// them back; a process that is killed leaves all of a section's changes, or none. Several threads can have sections at
/// the same time, on different locks.
///
/// The lock may lie anywhere, also in the heap: a killed process holds it no more.
#[repr(C)]
#[derive(Debug)]
pub struct SectionLock {
    /// The [era](Sections::era) of the heap that uses the lock. The state of the lock in another era is void: it is
    /// that of a process that is gone, or of this process before a rollback. With [`MAKING`]: a thread is moving the
    /// lock to this era.
    era: AtomicU64,
    lock: MarkedLock,
}

/// Set while a thread moves a lock to its era. With another era it means nothing: the thread that set it is gone.
const MAKING: u64 = 1;

// SAFETY: a number, and a lock that a killed process holds no more.
unsafe impl Storable for SectionLock {}

impl std::fmt::Debug for MarkedLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MarkedLock").field("locked", &self.is_locked(Mode::Exclusive)).finish_non_exhaustive()
    }
}

impl Default for SectionLock {
    fn default() -> SectionLock {
        SectionLock::new()
    }
}

thread_local! {
    /// The heap of the lock that this thread took last.
    static LAST: Cell<Option<WeakHeap>> = const { Cell::new(None) };
}

impl SectionLock {
    /// A free lock.
    pub const fn new() -> SectionLock {
        SectionLock { era: AtomicU64::new(0), lock: MarkedLock::new() }
    }

    /// The lock's heap: the one that was set, the one that the lock lies in, or the only open live heap.
    #[inline]
    fn heap(&self) -> Result<WeakHeap> {
        match LAST.get() {
            Some(last) if self.is_of(&last.entry.sections) && last.is_open() => Ok(last),
            _ => self.find_heap(),
        }
    }

    #[cold]
    fn find_heap(&self) -> Result<WeakHeap> {
        let heap = match WeakHeap::of_era(self.era.load(Acquire)) {
            Some(heap) => heap,
            None => WeakHeap::of_lock(std::ptr::from_ref(self).expose_provenance())?,
        };
        LAST.set(Some(heap));
        Ok(heap)
    }

    /// Whether the lock is one of these sections, in the heap's present era.
    #[inline]
    fn is_of(&self, sections: &Sections) -> bool {
        self.era.load(Acquire) == sections.era()
    }

    /// Moves the lock to the present era of this heap. The heap cannot be rolled back meanwhile: the thread is in a
    /// section of it, or has a guard.
    #[inline]
    fn make_of(&self, heap: WeakHeap) -> Result<()> {
        if self.is_of(&heap.entry.sections) { Ok(()) } else { self.adopt(heap) }
    }

    /// Resets a lock of another era. One thread does it, and the others wait for it.
    #[cold]
    fn adopt(&self, heap: WeakHeap) -> Result<()> {
        audit::uses(&self.lock);
        let era = heap.entry.sections.era();
        let mut known = self.era.load(Acquire);
        while known != era {
            if known == era | MAKING {
                std::thread::yield_now();
                known = self.era.load(Acquire);
                continue;
            }
            let other = WeakHeap::of_era(known).filter(|other| other.opening() != heap.opening());
            if other.is_some_and(|other| other.entry.sections.era() == known & !MAKING) {
                return Err(Error::invalid("the lock is for sections of another heap"));
            }
            match self.era.compare_exchange(known, era | MAKING, Acquire, Acquire) {
                Ok(_) => {
                    self.lock.reset();
                    self.era.store(era, Release);
                    return Ok(());
                }
                Err(now) => known = now,
            }
        }
        Ok(())
    }

    /// Assigns the lock to sections of this heap. Without this call, the lock belongs to the heap in which it lies, or
    /// to the only open live heap.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the heap is not live, or the lock belongs to another heap that is open. [`Error::Closed`],
    /// [`Error::Forked`].
    pub fn set_heap(&self, heap: WeakHeap) -> Result<()> {
        heap.section_heap()?;
        heap.begin_hold()?;
        let made = self.make_of(heap);
        heap.end_hold()?;
        made
    }

    /// Takes the lock within a section that this thread has just begun, or ends that section.
    #[inline]
    fn within<R>(&self, heap: WeakHeap, take: impl FnOnce() -> Result<R>) -> Result<R> {
        run::begin(heap)?;
        match self.make_of(heap) {
            Ok(()) => take(),
            Err(e) => {
                run::release(heap, None)?;
                Err(e)
            }
        }
    }

    #[inline]
    fn take(&self, heap: WeakHeap, mode: Mode) -> Result<()> {
        self.within(heap, || run::take(heap, &self.lock, mode))
    }

    fn try_take(&self, mode: Mode) -> Result<bool> {
        let heap = self.heap()?;
        self.within(heap, || run::try_take(heap, &self.lock, mode))
    }

    /// Takes the lock; a section begins, or goes on. [`SectionLock::unlock`] in the same thread gives the lock back.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the live heap of the lock is not known, or this thread is in a section of another heap.
    /// [`Error::Closed`], [`Error::Forked`].
    #[inline]
    pub fn lock(&self) -> Result<()> {
        // SAFETY: this thread's.
        if unsafe { self.lock_at_once(writer()) } {
            return Ok(());
        }
        self.take(self.heap()?, Mode::Exclusive)
    }

    /// Takes the lock in shared mode, together with other readers.
    ///
    /// # Errors
    /// Those of [`SectionLock::lock`].
    pub fn lock_shared(&self) -> Result<()> {
        self.take(self.heap()?, Mode::Shared)
    }

    /// Takes the lock if it is free. False: another thread has it.
    ///
    /// # Errors
    /// Those of [`SectionLock::lock`].
    pub fn try_lock(&self) -> Result<bool> {
        self.try_take(Mode::Exclusive)
    }

    /// Takes the lock in shared mode, if no thread has it exclusively. False: a thread has.
    ///
    /// # Errors
    /// Those of [`SectionLock::lock`].
    pub fn try_lock_shared(&self) -> Result<bool> {
        self.try_take(Mode::Shared)
    }

    /// Gives the lock back. If it was the thread's last one, its section has happened.
    ///
    /// # Errors
    /// [`Error::Invalid`]: no thread holds the lock exclusively, or this thread is in no section.
    #[inline]
    pub fn unlock(&self) -> Result<()> {
        // SAFETY: this thread's.
        if unsafe { self.unlock_at_once(writer()) } {
            return Ok(());
        }
        self.give_back(Mode::Exclusive)
    }

    /// Gives the lock back after [`SectionLock::lock_shared`].
    ///
    /// # Errors
    /// Those of [`SectionLock::unlock`].
    pub fn unlock_shared(&self) -> Result<()> {
        self.give_back(Mode::Shared)
    }

    /// Takes the lock by the fast path of [`SectionLock::lock`]. False: nothing was done.
    ///
    /// # Safety
    /// The writer is this thread's.
    #[inline(always)]
    pub(crate) unsafe fn lock_at_once(&self, writer: *mut LogWriter) -> bool {
        // SAFETY: the caller's promise.
        unsafe { run::lock_at_once(writer, |sections| self.is_of(sections), &self.lock) }
    }

    /// Gives the lock back by the fast path of [`SectionLock::unlock`]. False: nothing was done.
    ///
    /// # Safety
    /// The writer is this thread's.
    #[inline(always)]
    pub(crate) unsafe fn unlock_at_once(&self, writer: *mut LogWriter) -> bool {
        // SAFETY: the caller's promise.
        unsafe { run::release_at_once(writer, &self.lock) }
    }

    fn give_back(&self, mode: Mode) -> Result<()> {
        let heap = self.heap()?;
        if !self.is_of(&heap.entry.sections) || !self.lock.is_locked(mode) {
            return Err(Error::invalid("this thread does not hold the lock that it releases"));
        }
        run::release(heap, Some((&self.lock, mode)))
    }
}

impl Heap {
    /// Takes a lock, as a section or as a part of this thread's section; both end when the result is dropped.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("bank");
    /// use untorn::heap::{HeapOptions, SectionLock};
    ///
    /// static LOCKS: [SectionLock; 2] = [const { SectionLock::new() }; 2];
    ///
    /// let heap = HeapOptions::new().create(true).live(true).open(&path)?;
    /// let accounts = heap.root_or("accounts", |_| [100i64, 0])?;
    /// {
    ///     let section = heap.section_with(&LOCKS[0])?;
    ///     let _also = heap.section_with(&LOCKS[1])?;
    ///     // SAFETY: whoever uses an account has its lock.
    ///     let [from, to] = unsafe { &mut *accounts.as_ptr() };
    ///     *section.modify(from)? -= 30;
    ///     *section.modify(to)? += 30;
    /// }
    /// heap.close()?;
    /// # Ok::<(), untorn::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`SectionLock::lock`]; [`Error::Invalid`]: the lock belongs to another heap.
    pub fn section_with<'h>(&'h self, lock: &'h SectionLock) -> Result<Section<'h>> {
        let heap = self.downgrade();
        // SAFETY: this thread's.
        if lock.is_of(&heap.entry.sections) && unsafe { lock.lock_at_once(writer()) } {
            return Ok(Section::of(self, Some(&lock.lock)));
        }
        lock.take(heap, Mode::Exclusive)?;
        Ok(Section::of(self, Some(&lock.lock)))
    }
}
