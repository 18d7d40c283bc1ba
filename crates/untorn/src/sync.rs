//! Locks, threads and time: the standard library's.
//!
//! With the feature `shuttle` they are those of a scheduler that runs one thread at a time and tries
//! one interleaving after the other. The crash laboratory's tests of concurrent commits use that; a
//! program must not, as nothing works outside of that scheduler.

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicU64},
    sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard},
    thread,
    time::Instant,
};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::{
    sync::atomic::{AtomicBool, AtomicU64},
    sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard},
    thread,
};

/// A clock that the scheduler's seed drives, so that what depends on time can be repeated.
#[cfg(feature = "shuttle")]
pub(crate) struct Instant;

#[cfg(feature = "shuttle")]
impl Instant {
    pub(crate) fn now() -> Instant {
        Instant
    }

    /// Anything up to a millisecond.
    pub(crate) fn elapsed(&self) -> std::time::Duration {
        use shuttle::rand::Rng;
        std::time::Duration::from_micros(shuttle::rand::thread_rng().gen_range(0..1000))
    }
}
