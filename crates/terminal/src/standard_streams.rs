//! Standard streams that were closed when the process began. The runtime opens `/dev/null` in their place before `main`, so that
//! later nobody can tell them from those that were meant to go there.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// A bit for each of the three descriptors that was closed.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// The loader calls it before the runtime begins.
#[used]
// SAFETY: functions of this kind are what the section is a list of.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    for descriptor in 0..3 {
        // SAFETY: asks only.
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } == -1 {
            CLOSED.fetch_or(1 << descriptor, Relaxed);
        }
    }
}

/// Whether standard input was closed.
pub fn input_was_closed() -> bool {
    CLOSED.load(Relaxed) & 1 != 0
}

/// Whether standard output was closed.
pub fn output_was_closed() -> bool {
    CLOSED.load(Relaxed) & 2 != 0
}
