//! The lock of a heap: many threads that change the heap share it, and a thread that commits it takes it exclusively.

use super::thread_local::LOCAL;
use crate::engine::waiting::concurrency::{RawRwLock, new_raw_lock};
use crate::heap::log::live_head::LiveHead;
use crate::invariant;
#[cfg(not(feature = "shuttle"))]
use parking_lot::lock_api::{RawRwLock as _, RawRwLockTimed as _};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64};
use std::time::Duration;
use untorn_os::{holds, process_generation};

#[cfg(not(feature = "shuttle"))]
thread_local! {
    /// Guards that a thread holds besides the last guard that it took.
    static OTHERS: Others = const { Others(RefCell::new(Vec::new())) };
}

/// Every thread that takes a guard makes one, and drops it when it ends.
#[cfg(not(feature = "shuttle"))]
struct Others(RefCell<Vec<(usize, usize)>>);

#[cfg(not(feature = "shuttle"))]
impl std::ops::Deref for Others {
    type Target = RefCell<Vec<(usize, usize)>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

#[cfg(not(feature = "shuttle"))]
impl Drop for Others {
    /// Releases the guards that the thread still holds: otherwise every commit would wait for ever.
    fn drop(&mut self) {
        let last = LOCAL.with(|local| local.guard.replace((0, 0)));
        for (key, _) in self.take().into_iter().chain([last]).filter(|(_, depth)| *depth > 0) {
            // SAFETY: the key is the address of a guard, which stays where it is for ever.
            let guard = unsafe { &*std::ptr::with_exposed_provenance::<Guard>(key) };
            guard.abandoned.store(true, Release);
            // SAFETY: taken by this thread in `enter`.
            unsafe { guard.lock.unlock_shared() };
        }
    }
}

#[cfg(feature = "shuttle")]
shuttle::thread_local! {
    static OTHERS: RefCell<Vec<(usize, usize)>> = RefCell::new(Vec::new());
}

/// The heap's lock. It stays where it is for ever.
pub(crate) struct Guard {
    lock: RawRwLock,
    /// A thread ended while it held the guard, so its change may be half done.
    abandoned: AtomicBool,
    /// The head of a live heap's memory, where changes in progress are counted. Null for any other heap.
    live: AtomicPtr<u8>,
    /// The process that has this memory: a forked child has not.
    process: AtomicU64,
}

impl Guard {
    pub(crate) fn new() -> Guard {
        Guard {
            lock: new_raw_lock(),
            abandoned: AtomicBool::new(false),
            live: AtomicPtr::new(null_mut()),
            process: AtomicU64::new(0),
        }
    }

    /// Whether this thread holds the guard.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.depth() > 0
    }

    fn key(&self) -> usize {
        std::ptr::from_ref(self).expose_provenance()
    }

    /// The number of times that this thread holds the guard.
    #[inline]
    fn depth(&self) -> usize {
        let (last, depth) = LOCAL.with(|local| local.guard.get());
        if last == self.key() { depth } else { self.depth_in_turn() }
    }

    /// The number of times that this thread holds a guard that is not the last one; it is the last one from now on.
    #[cold]
    fn depth_in_turn(&self) -> usize {
        // While a thread ends, the list is gone: then only the last guard that the thread took is known.
        let depth = OTHERS.try_with(|others| {
            let mut others = others.borrow_mut();
            let last = LOCAL.with(|local| local.guard.get());
            if last.1 > 0 {
                others.push(last);
            }
            let at = others.iter().position(|(lock, _)| *lock == self.key());
            at.map_or(0, |at| others.swap_remove(at).1)
        });
        let depth = depth.unwrap_or(0);
        LOCAL.with(|local| local.guard.set((self.key(), depth)));
        depth
    }

    /// Takes the guard to change the heap. A thread that holds it already never waits. Other threads queue behind a
    /// waiting commit, so that the commit does not starve.
    #[inline]
    pub(crate) fn mutate(&self) -> Mutating<'_> {
        self.enter();
        if let Some(live) = self.live() {
            live.begin_change();
        }
        Mutating { guard: self, changes: true, thread: PhantomData }
    }

    /// Takes the guard for steps each of which leaves the heap consistent: a process that ends between two steps loses
    /// nothing.
    #[inline]
    pub(crate) fn hold(&self) -> Mutating<'_> {
        self.enter();
        Mutating { guard: self, changes: false, thread: PhantomData }
    }

    /// Ends a change that [`Guard::mutate`] began. False: this thread holds no guard.
    #[inline]
    pub(crate) fn end(&self) -> bool {
        if self.depth() == 0 {
            return false;
        }
        if let Some(live) = self.live() {
            live.end_change();
        }
        self.leave()
    }

    #[inline]
    fn live(&self) -> Option<LiveHead> {
        let own = self.live_memory().filter(|_| self.process.load(Relaxed) == process_generation());
        // SAFETY: the head of a live heap, which is mapped for ever in this process.
        own.map(|head| unsafe { LiveHead::at(head) })
    }

    /// The head of a live heap's memory.
    #[inline]
    pub(crate) fn live_memory(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.live.load(Relaxed))
    }

    /// Assigns the guard to another heap; `head` is the head of the memory if that heap is live.
    pub(crate) fn set_live(&self, head: Option<NonNull<u8>>) {
        self.process.store(process_generation(), Relaxed);
        self.live.store(head.map_or(null_mut(), NonNull::as_ptr), Release);
    }

    #[inline]
    pub(crate) fn enter(&self) {
        let depth = self.depth();
        if depth == 0 {
            self.lock.lock_shared();
        }
        LOCAL.with(|local| local.guard.set((self.key(), depth + 1)));
    }

    /// Releases the guard once. False: this thread does not hold it.
    #[inline]
    pub(crate) fn leave(&self) -> bool {
        let depth = self.depth();
        if depth == 0 {
            return false;
        }
        LOCAL.with(|local| local.guard.set((self.key(), depth - 1)));
        if depth == 1 {
            // SAFETY: taken by this thread in `enter`.
            unsafe { self.lock.unlock_shared() };
        }
        true
    }

    /// Waits until no thread changes the heap. The caller's thread must not hold the guard.
    pub(crate) fn quiet(&self) -> Quiet<'_> {
        if holds(invariant::HEAP_IS_QUIET) {
            self.lock.lock_exclusive();
        }
        Quiet { guard: self, thread: PhantomData }
    }

    /// Like [`Guard::quiet`], but waits no longer than `most`: threads that wait for each other may need the guard to
    /// go on.
    pub(crate) fn quiet_for(&self, most: Duration) -> Option<Quiet<'_>> {
        #[cfg(not(feature = "shuttle"))]
        let quiet = !holds(invariant::HEAP_IS_QUIET) || self.lock.try_lock_exclusive_for(most);
        #[cfg(feature = "shuttle")]
        let quiet = !holds(invariant::HEAP_IS_QUIET) || (self.lock.try_lock_exclusive() && !most.is_zero());
        quiet.then(|| Quiet { guard: self, thread: PhantomData })
    }

    /// Whether a thread ended while it held the guard, since the last [`Guard::forgive`].
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Acquire)
    }

    /// Clears the mark of a thread that ended: its change is undone, or the guard has another heap now.
    pub(crate) fn forgive(&self) {
        self.abandoned.store(false, Release);
    }

    /// Whether no thread holds the guard. A thread that takes it afterwards sees the changes of this thread.
    pub(crate) fn is_idle(&self) -> bool {
        let idle = self.lock.try_lock_exclusive();
        if idle {
            // SAFETY: taken just now.
            unsafe { self.lock.unlock_exclusive() };
        }
        idle
    }
}

/// Guard of [`crate::heap::Heap::mutate`] and [`crate::heap::Heap::hold_cuts`]: while it lives, the heap is not
/// committed.
#[must_use = "a guard that is dropped at once guards nothing"]
pub struct Mutating<'a> {
    guard: &'a Guard,
    /// The heap is inconsistent if the process ends while this guard lives.
    changes: bool,
    /// Keeps the guard in the thread that took it.
    thread: PhantomData<*const ()>,
}

impl Drop for Mutating<'_> {
    fn drop(&mut self) {
        match self.changes {
            true => self.guard.end(),
            false => self.guard.leave(),
        };
    }
}

/// Exclusive guard: while it lives, nobody changes the heap.
pub(crate) struct Quiet<'a> {
    guard: &'a Guard,
    thread: PhantomData<*const ()>,
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        if holds(invariant::HEAP_IS_QUIET) {
            // SAFETY: taken in `quiet`, by this thread.
            unsafe { self.guard.lock.unlock_exclusive() };
        }
    }
}
