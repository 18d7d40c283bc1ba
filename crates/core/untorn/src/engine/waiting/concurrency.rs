//! Locks, threads and time, in one place.
//!
//! With the feature `shuttle`, they are those of a scheduler that runs one thread at a time and tries one interleaving
//! after the other. The crash laboratory's tests of concurrent commits use that feature; a program must not, because
//! nothing works outside of that scheduler.

#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::RawRwLock;
#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicU64},
    thread,
    time::Instant,
};

#[cfg(feature = "shuttle")]
pub(crate) use scheduled::{Condvar, Instant, Mutex, MutexGuard, RawRwLock, RwLock};
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::{
    sync::atomic::{AtomicBool, AtomicU64},
    sync::{RwLockReadGuard, RwLockWriteGuard},
    thread,
};

/// Unlocks, and passes the lock to the thread that has waited longest, if any waits.
#[cfg(not(feature = "shuttle"))]
pub(crate) fn unlock_fair<T>(guard: MutexGuard<'_, T>) {
    MutexGuard::unlock_fair(guard);
}

/// Unlocks; the scheduler is fair.
#[cfg(feature = "shuttle")]
pub(crate) fn unlock_fair<T>(guard: MutexGuard<'_, T>) {
    drop(guard);
}

/// A lock without a value.
#[cfg(not(feature = "shuttle"))]
pub(crate) fn new_raw_lock() -> RawRwLock {
    use parking_lot::lock_api::RawRwLock as _;
    RawRwLock::INIT
}

/// A lock without a value.
#[cfg(feature = "shuttle")]
pub(crate) fn new_raw_lock() -> RawRwLock {
    RawRwLock::default()
}

/// The scheduler's locks in the shape of `parking_lot`'s.
#[cfg(feature = "shuttle")]
mod scheduled {
    use std::ops::{Deref, DerefMut};
    use std::sync::PoisonError;
    use std::time::Duration;

    #[derive(Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    /// Empty only inside [`Condvar::wait`].
    pub(crate) struct MutexGuard<'a, T>(Option<shuttle::sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok().map(|guard| MutexGuard(Some(guard)))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.0.as_ref().expect("a lock that is held")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("a lock that is held")
        }
    }

    #[derive(Default)]
    pub(crate) struct RwLock<T>(shuttle::sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub(crate) fn new(value: T) -> RwLock<T> {
            RwLock(shuttle::sync::RwLock::new(value))
        }

        pub(crate) fn read(&self) -> shuttle::sync::RwLockReadGuard<'_, T> {
            self.0.read().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn write(&self) -> shuttle::sync::RwLockWriteGuard<'_, T> {
            self.0.write().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn try_write(&self) -> Option<shuttle::sync::RwLockWriteGuard<'_, T>> {
            self.0.try_write().ok()
        }
    }

    #[derive(Default)]
    pub(crate) struct Condvar(shuttle::sync::Condvar);

    /// Whether a wait ended by its time limit.
    pub(crate) struct WaitTimeoutResult(bool);

    impl WaitTimeoutResult {
        pub(crate) fn timed_out(&self) -> bool {
            self.0
        }
    }

    impl Condvar {
        pub(crate) fn new() -> Condvar {
            Condvar::default()
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let held = guard.0.take().expect("a lock that is held");
            guard.0 = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
        }

        pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, most: Duration) -> WaitTimeoutResult {
            let held = guard.0.take().expect("a lock that is held");
            let (held, timeout) = self.0.wait_timeout(held, most).unwrap_or_else(PoisonError::into_inner);
            guard.0 = Some(held);
            WaitTimeoutResult(timeout.timed_out())
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    #[derive(Default)]
    struct Holders {
        readers: usize,
        writer: bool,
        writers_waiting: usize,
    }

    /// Many readers, or one writer. New readers wait for a waiting writer.
    #[derive(Default)]
    pub(crate) struct RawRwLock {
        holders: Mutex<Holders>,
        changed: Condvar,
    }

    impl RawRwLock {
        pub(crate) fn lock_shared(&self) {
            let mut holders = self.holders.lock();
            while holders.writer || holders.writers_waiting > 0 {
                self.changed.wait(&mut holders);
            }
            holders.readers += 1;
        }

        /// # Safety
        /// The caller holds the lock for reading.
        pub(crate) unsafe fn unlock_shared(&self) {
            self.holders.lock().readers -= 1;
            self.changed.notify_all();
        }

        pub(crate) fn lock_exclusive(&self) {
            let mut holders = self.holders.lock();
            holders.writers_waiting += 1;
            while holders.writer || holders.readers > 0 {
                self.changed.wait(&mut holders);
            }
            holders.writers_waiting -= 1;
            holders.writer = true;
        }

        pub(crate) fn try_lock_exclusive(&self) -> bool {
            let mut holders = self.holders.lock();
            let free = !holders.writer && holders.readers == 0;
            holders.writer |= free;
            free
        }

        /// # Safety
        /// The caller holds the lock for writing.
        pub(crate) unsafe fn unlock_exclusive(&self) {
            self.holders.lock().writer = false;
            self.changed.notify_all();
        }
    }

    /// A clock driven by the scheduler's seed, so that time-dependent behaviour can be repeated.
    pub(crate) struct Instant;

    impl Instant {
        pub(crate) fn now() -> Instant {
            Instant
        }

        /// A random time below a millisecond.
        pub(crate) fn elapsed(&self) -> Duration {
            use shuttle::rand::Rng;
            Duration::from_micros(shuttle::rand::thread_rng().gen_range(0..1000))
        }
    }
}
