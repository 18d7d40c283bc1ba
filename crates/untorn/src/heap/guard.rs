//! Many that change a heap, or one that commits it.

use parking_lot::RawRwLock;
use parking_lot::lock_api::RawRwLock as _;
use parking_lot::lock_api::RawRwLockRecursive as _;
use std::cell::RefCell;
use std::marker::PhantomData;
use untorn_journal::care::{Care, kept};

thread_local! {
    /// Guards that this thread holds, by the lock's address.
    static HELD: RefCell<Vec<(usize, usize)>> = const { RefCell::new(Vec::new()) };
}

/// The heap's lock.
pub(crate) struct Guard {
    lock: RawRwLock,
}

impl Default for Guard {
    fn default() -> Self {
        Guard { lock: RawRwLock::INIT }
    }
}

impl Guard {
    fn key(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// One more that changes the heap. A thread that has one already never waits.
    pub(crate) fn mutate(&self) -> Mutating<'_> {
        self.enter();
        Mutating { guard: self, thread: PhantomData }
    }

    pub(crate) fn enter(&self) {
        let key = self.key();
        HELD.with_borrow_mut(|held| match held.iter_mut().find(|(lock, _)| *lock == key) {
            Some((_, depth)) => *depth += 1,
            None => {
                self.lock.lock_shared_recursive();
                held.push((key, 1));
            }
        });
    }

    /// False: this thread holds none.
    pub(crate) fn leave(&self) -> bool {
        let key = self.key();
        HELD.with_borrow_mut(|held| {
            let Some(at) = held.iter().position(|(lock, _)| *lock == key) else { return false };
            held[at].1 -= 1;
            if held[at].1 == 0 {
                held.swap_remove(at);
                // SAFETY: taken by this thread in `enter`.
                unsafe { self.lock.unlock_shared() };
            }
            true
        })
    }

    /// Waits until nobody changes the heap. None: this thread itself does.
    pub(crate) fn quiet(&self) -> Option<Quiet<'_>> {
        let key = self.key();
        if HELD.with_borrow(|held| held.iter().any(|(lock, _)| *lock == key)) {
            return None;
        }
        if kept(Care::HeapIsQuiet) {
            self.lock.lock_exclusive();
        }
        Some(Quiet { guard: self, thread: PhantomData })
    }
}

/// As long as it lives, the heap is not committed.
pub struct Mutating<'a> {
    guard: &'a Guard,
    /// It ends in the thread that began it.
    thread: PhantomData<*const ()>,
}

impl Drop for Mutating<'_> {
    fn drop(&mut self) {
        self.guard.leave();
    }
}

/// As long as it lives, nobody changes the heap.
pub(crate) struct Quiet<'a> {
    guard: &'a Guard,
    thread: PhantomData<*const ()>,
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        if kept(Care::HeapIsQuiet) {
            // SAFETY: taken in `quiet`, by this thread.
            unsafe { self.guard.lock.unlock_exclusive() };
        }
    }
}
