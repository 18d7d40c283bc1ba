//! Waiting for a number in memory to change.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

fn call(word: &AtomicU32, operation: libc::c_int, value: u32, most: Option<Duration>) {
    let most = most.map(|most| libc::timespec { tv_sec: most.as_secs() as _, tv_nsec: most.subsec_nanos().into() });
    let most = most.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: a word that is borrowed, and a time or none.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, most) };
}

/// Waits until a thread of this process wakes the word, or returns at once if its value differs; may return early.
/// Async-signal-safe.
pub(crate) fn wait(word: &AtomicU32, value: u32, most: Option<Duration>) {
    call(word, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, value, most);
}

/// Wakes threads of this process. Async-signal-safe.
pub(crate) fn wake(word: &AtomicU32) {
    call(word, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX as u32, None);
}

/// Waits until any process wakes the word, which is in shared memory, or returns at once if its value differs; may
/// return early.
pub fn wait_shared(word: &AtomicU32, value: u32, most: Duration) {
    call(word, libc::FUTEX_WAIT, value, Some(most));
}

/// Wakes all waiters for a word in shared memory.
pub fn wake_shared(word: &AtomicU32) {
    call(word, libc::FUTEX_WAKE, i32::MAX as u32, None);
}
