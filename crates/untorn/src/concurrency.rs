//! Locks, threads and time, in one place.
//!
//! With the feature `shuttle` they are those of a scheduler that runs one thread at a time and tries
//! one interleaving after the other. The crash laboratory's tests of concurrent commits use that; a
//! program must not, as nothing works outside of that scheduler.

#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicU64},
    thread,
    time::Instant,
};

#[cfg(feature = "shuttle")]
pub(crate) use scheduled::{Condvar, Instant, Mutex, MutexGuard, RwLock};
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::{
    sync::atomic::{AtomicBool, AtomicU64},
    sync::{RwLockReadGuard, RwLockWriteGuard},
    thread,
};

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

    /// Whether a wait ended because its time was over.
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

    /// A clock that the scheduler's seed drives, so that what depends on time can be repeated.
    pub(crate) struct Instant;

    impl Instant {
        pub(crate) fn now() -> Instant {
            Instant
        }

        /// Anything up to a millisecond.
        pub(crate) fn elapsed(&self) -> Duration {
            use shuttle::rand::Rng;
            Duration::from_micros(shuttle::rand::thread_rng().gen_range(0..1000))
        }
    }
}
