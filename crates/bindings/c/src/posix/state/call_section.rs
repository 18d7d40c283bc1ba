//! Refuses calls on managed files in signal handlers that interrupted such a call. The interrupted call holds locks,
//! for which the handler's call would wait for ever.

use std::cell::Cell;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering::*, compiler_fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::boundary::log;

thread_local! {
    /// The number of sections that this thread is in. Needs no destructor and no memory, so that handlers can read
    /// it.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Whether a refusal was printed, or is not to be printed.
static TOLD: AtomicBool = AtomicBool::new(false);

/// A part of a call in which a signal handler must not make another call. It ends when this value is dropped.
pub(crate) struct Section(PhantomData<*const ()>);

impl Section {
    pub fn begin() -> Section {
        DEPTH.with(|depth| depth.set(depth.get() + 1));
        compiler_fence(SeqCst);
        Section(PhantomData)
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        DEPTH.with(|depth| depth.set(depth.get().saturating_sub(1)));
    }
}

/// A guard, in a section until it is dropped.
pub(crate) struct Held<G> {
    // Dropped before the section ends.
    guard: G,
    _section: Section,
}

impl<G> Held<G> {
    /// Takes a lock.
    pub fn take(take: impl FnOnce() -> G) -> Held<G> {
        let section = Section::begin();
        Held { guard: take(), _section: section }
    }
}

impl<G: Deref> Deref for Held<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Held<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> Held<MutexGuard<'_, T>> {
    Held::take(|| mutex.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Reads whether refusals are to be printed, before a handler may need to know.
pub(crate) fn prepare() {
    if log::is_off() {
        TOLD.store(true, Release);
    }
}

/// Whether this thread is in a section. If so, the caller is a signal handler, or a function that the section calls.
pub(crate) fn is_inside() -> bool {
    DEPTH.with(Cell::get) > 0
}

/// Begins a call of the program. None, with EDEADLK: a signal handler makes the call in the middle of another one.
/// Prints this on standard error, once. Takes neither memory nor locks.
pub(crate) fn enter(call: &str) -> Option<Section> {
    if !is_inside() {
        return Some(Section::begin());
    }
    if !TOLD.swap(true, AcqRel) {
        let parts = [
            "untorn: ",
            call,
            ": refused (EDEADLK) in a signal handler that interrupted another call on managed files. Set a flag in the \
             handler, and make the call after it\n",
        ];
        let parts = parts.map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
        // SAFETY: the bytes of the parts. A failure cannot be reported if standard error is closed.
        let _ = unsafe { libc::writev(2, parts.as_ptr(), parts.len() as c_int) };
    }
    // SAFETY: each thread has an `errno` of its own, which is valid while the thread runs.
    unsafe { *libc::__errno_location() = libc::EDEADLK };
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_inside_a_section_is_refused() {
        let mutex = Mutex::new(1);
        {
            let first = enter("first").unwrap();
            *lock(&mutex) = 2;
            assert!(is_inside() && enter("second").is_none());
            assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EDEADLK));
            drop(first);
        }
        assert!(!is_inside() && enter("third").is_some());
        let held = lock(&mutex);
        assert!(*held == 2 && enter("fourth").is_none());
        drop(held);
        assert!(enter("fifth").is_some());
    }
}
