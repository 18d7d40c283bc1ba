//! Locks whose critical sections are all or nothing.

use super::heap_section::Section;
use super::open_heap::Heap;
use super::registry::WeakHeap;
use super::section_audit;
use super::section_log::LogWriter;
use super::section_mark::{MarkedLock, Mode};
use super::section_run;
use super::section_thread::writer;
use super::storable::Storable;
use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use untorn_journal::{Error, Result};

/// A lock for data in a live heap: from the first lock that a thread takes until it has given all of them back is a section,
/// of which a process that is killed leaves all or nothing. Several threads have sections at the same time, on different locks.
///
/// The lock may lie anywhere, in the heap, too: whoever was killed holds it no more.
#[repr(C)]
#[derive(Debug)]
pub struct SectionLock {
    /// The process that uses it; another one's is free. 0: none yet; 1: it is being made this one's.
    process: AtomicU64,
    /// The opening of its heap. 0: the first thread that takes it looks for it.
    opening: AtomicU64,
    lock: MarkedLock,
}

// SAFETY: numbers, and a lock that whoever was killed holds no more.
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

/// A number that no process before had; 0: it is not chosen yet.
static THIS_PROCESS: AtomicU64 = AtomicU64::new(0);

fn this_process() -> u64 {
    let known = THIS_PROCESS.load(Relaxed);
    if known != 0 {
        return known;
    }
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    let number = hasher.finish() | 2;
    THIS_PROCESS.compare_exchange(0, number, Relaxed, Relaxed).map_or_else(|others| others, |_| number)
}

thread_local! {
    /// The heap of the lock that this thread took last.
    static LAST: Cell<Option<WeakHeap>> = const { Cell::new(None) };
}

impl SectionLock {
    /// A lock that nobody has.
    pub const fn new() -> SectionLock {
        SectionLock { process: AtomicU64::new(0), opening: AtomicU64::new(0), lock: MarkedLock::new() }
    }

    /// Its heap: the one that was said, the one that it lies in, or the only live one that is open.
    #[inline]
    fn heap(&self) -> Result<WeakHeap> {
        let opening = self.opening.load(Acquire);
        match LAST.get() {
            Some(last)
                if last.opening() == opening && self.process.load(Relaxed) == this_process() && last.is_open() =>
            {
                Ok(last)
            }
            _ => self.find_heap(),
        }
    }

    #[cold]
    fn find_heap(&self) -> Result<WeakHeap> {
        section_audit::uses(&self.lock);
        let known = self.process.load(Acquire);
        if known != this_process() {
            if known != 1 && self.process.compare_exchange(known, 1, Acquire, Relaxed).is_ok() {
                self.free_for_this_process();
                self.process.store(this_process(), Release);
            }
            while self.process.load(Acquire) == 1 {
                std::thread::yield_now();
            }
        }
        let opening = self.opening.load(Acquire);
        let heap = match WeakHeap::of_opening(opening) {
            Some(heap) => heap,
            None => {
                let found = WeakHeap::of_lock(std::ptr::from_ref(self).expose_provenance())?;
                match self.opening.compare_exchange(opening, found.opening(), Release, Acquire) {
                    Ok(_) => {
                        self.lock.mark.clear();
                        found
                    }
                    Err(other) => WeakHeap::of_opening(other).ok_or(Error::Closed)?,
                }
            }
        };
        LAST.set(Some(heap));
        Ok(heap)
    }

    /// What another process left of it is gone.
    fn free_for_this_process(&self) {
        self.opening.store(0, Relaxed);
        self.lock.reset();
    }

    /// The lock is for sections of this heap, from now on. Without this call, it is for those of the heap that it lies in, or of
    /// the only live heap that is open.
    pub fn set_heap(&self, heap: WeakHeap) -> Result<()> {
        heap.section_heap()?;
        if self.process.swap(this_process(), Relaxed) != this_process() {
            self.free_for_this_process();
        }
        self.lock.mark.clear();
        self.opening.store(heap.opening(), Release);
        Ok(())
    }

    /// Takes the lock; a section begins, or goes on. To be given back by [`SectionLock::unlock`] in the same thread.
    ///
    /// # Errors
    /// [`Error::Invalid`]: it is not known of which live heap it is, or this thread is in a section of another one.
    /// [`Error::Closed`], [`Error::Forked`].
    #[inline]
    pub fn lock(&self) -> Result<()> {
        // SAFETY: this thread's.
        if unsafe { self.lock_at_once(writer()) } {
            return Ok(());
        }
        section_run::lock(self.heap()?, &self.lock, Mode::Exclusive)
    }

    /// Takes the lock together with others who only read.
    ///
    /// # Errors
    /// Those of [`SectionLock::lock`].
    pub fn lock_shared(&self) -> Result<()> {
        section_run::lock(self.heap()?, &self.lock, Mode::Shared)
    }

    /// Takes the lock if nobody has it. False: somebody has.
    ///
    /// # Errors
    /// Those of [`SectionLock::lock`].
    pub fn try_lock(&self) -> Result<bool> {
        section_run::try_lock(self.heap()?, &self.lock, Mode::Exclusive)
    }

    /// Takes the lock together with others who only read, if nobody has it who does not. False: somebody has.
    ///
    /// # Errors
    /// Those of [`SectionLock::lock`].
    pub fn try_lock_shared(&self) -> Result<bool> {
        section_run::try_lock(self.heap()?, &self.lock, Mode::Shared)
    }

    /// Gives it back. If it was the thread's last one, its section has happened.
    ///
    /// # Errors
    /// [`Error::Invalid`]: nobody has it so, or this thread is in no section.
    #[inline]
    pub fn unlock(&self) -> Result<()> {
        // SAFETY: this thread's.
        if unsafe { self.unlock_at_once(writer()) } {
            return Ok(());
        }
        self.give_back(Mode::Exclusive)
    }

    /// Gives it back after [`SectionLock::lock_shared`].
    ///
    /// # Errors
    /// Those of [`SectionLock::unlock`].
    pub fn unlock_shared(&self) -> Result<()> {
        self.give_back(Mode::Shared)
    }

    /// [`SectionLock::lock`] as most calls of it are. False: nothing was done.
    ///
    /// # Safety
    /// The writer is this thread's.
    #[inline(always)]
    pub(super) unsafe fn lock_at_once(&self, writer: *mut LogWriter) -> bool {
        let opening = self.opening.load(Acquire);
        self.process.load(Acquire) == THIS_PROCESS.load(Relaxed)
            // SAFETY: the caller's promise.
            && unsafe { section_run::lock_at_once(writer, opening, &self.lock) }
    }

    /// [`SectionLock::unlock`] as most calls of it are. False: nothing was done.
    ///
    /// # Safety
    /// The writer is this thread's.
    #[inline(always)]
    pub(super) unsafe fn unlock_at_once(&self, writer: *mut LogWriter) -> bool {
        // SAFETY: the caller's promise.
        unsafe { section_run::release_at_once(writer, &self.lock) }
    }

    fn give_back(&self, mode: Mode) -> Result<()> {
        let heap = self.heap()?;
        if !self.lock.is_locked(mode) {
            return Err(Error::invalid("this thread does not have the lock that it gives back"));
        }
        section_run::release(heap, Some((&self.lock, mode)))
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
    /// let heap = HeapOptions::new().live(true).open(&path)?;
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
    /// Those of [`SectionLock::lock`]; [`Error::Invalid`]: the lock is one of another heap.
    pub fn section_with<'h>(&'h self, lock: &'h SectionLock) -> Result<Section<'h>> {
        // SAFETY: this thread's.
        if lock.opening.load(Acquire) == self.downgrade().opening() && unsafe { lock.lock_at_once(writer()) } {
            return Ok(Section::of(self, Some(&lock.lock)));
        }
        if WeakHeap::of_opening(lock.opening.load(Acquire)).is_none() {
            lock.set_heap(self.downgrade())?;
        }
        let heap = lock.heap()?;
        if heap.opening() != self.downgrade().opening() {
            return Err(Error::invalid("the lock is for sections of another heap"));
        }
        section_run::lock(heap, &lock.lock, Mode::Exclusive)?;
        Ok(Section::of(self, Some(&lock.lock)))
    }
}
