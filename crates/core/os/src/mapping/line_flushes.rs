//! Flushes of cache lines that ordinary stores have changed, for byte-addressable memory whose caches are lost with the
//! power. A line is durable behind a flush and a fence of the same thread.
//!
//! A test sees each flush and each fence by [`observe_lines`], and can so tell which bytes a power cut spares.

use crate::mapping::line_stores::{LINE_BYTES, can_store, fence, flush};
use std::sync::OnceLock;

/// A step on the way of stores to the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineEvent {
    /// The line at this address is about to be flushed.
    Flush(usize),
    /// The thread's earlier flushes are durable.
    Fence,
    /// All of the live memory with its head at this address is durable.
    Sync(usize),
    /// The name of the live memory with its head at this address is durable.
    Name(usize),
}

type Observer = Box<dyn Fn(LineEvent) + Send + Sync>;

static OBSERVER: OnceLock<Observer> = OnceLock::new();

/// Calls a function at each step, in the thread that makes it, as long as the process runs. False: another function is
/// called already. For tests.
#[doc(hidden)]
pub fn observe_lines(observer: Observer) -> bool {
    OBSERVER.set(observer).is_ok()
}

/// Tells a test of a step.
#[inline]
pub(crate) fn note(event: LineEvent) {
    if let Some(observer) = OBSERVER.get() {
        observer(event);
    }
}

/// Whether this processor flushes lines to the memory.
pub fn can_flush_lines() -> bool {
    can_store()
}

/// Flushes the lines that have these bytes. They are durable behind the thread's next [`fence_lines`].
///
/// # Safety
/// The bytes are mapped, and [`can_flush_lines`] is true.
#[inline]
pub unsafe fn flush_lines(address: usize, len: usize) {
    let (first, end) = (address & !(LINE_BYTES - 1), address.saturating_add(len));
    for line in (first..end).step_by(LINE_BYTES) {
        note(LineEvent::Flush(line));
        // SAFETY: the caller's promise.
        unsafe { flush(line) };
    }
}

/// Returns when the lines that this thread has flushed are durable.
#[inline]
pub fn fence_lines() {
    fence();
    note(LineEvent::Fence);
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::Arc;

    #[test]
    fn each_line_of_a_range_is_flushed_once() {
        if !can_store() {
            return;
        }
        let memory = vec![0u8; 1024];
        let base = (memory.as_ptr() as usize).next_multiple_of(LINE_BYTES);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let events = seen.clone();
        let here = std::thread::current().id();
        let observer = move |event| {
            if std::thread::current().id() == here {
                events.lock().push(event);
            }
        };
        assert!(observe_lines(Box::new(observer)) && !observe_lines(Box::new(|_| {})));
        for (at, len, lines) in
            [(0, 0, 0..0), (0, 1, 0..1), (63, 1, 0..1), (63, 2, 0..2), (64, 64, 1..2), (10, 200, 0..4)]
        {
            // SAFETY: within the vector.
            unsafe { flush_lines(base + at, len) };
            fence_lines();
            let mut expected: Vec<_> = lines.map(|line| LineEvent::Flush(base + line * LINE_BYTES)).collect();
            expected.push(LineEvent::Fence);
            assert_eq!(std::mem::take(&mut *seen.lock()), expected, "{len} bytes at {at}");
        }
    }
}
