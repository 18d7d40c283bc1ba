//! A barrier of which one side is free: threads that announce something often pay nothing, and the one that asks for it
//! seldom makes all of them pay at once.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{compiler_fence, fence};

const REGISTER: libc::c_int = 1 << 4;
const EXPEDITED: libc::c_int = 1 << 3;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: a call without pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether the kernel makes the other threads pay: [`light_barrier`] is one for the compiler alone then.
#[inline]
pub fn is_asymmetric() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| membarrier(REGISTER))
}

/// The side that is called often: stores before it are visible to whoever called [`heavy_barrier`] before the loads behind
/// it; or that one's stores are visible to these loads.
#[inline]
pub fn light_barrier() {
    if is_asymmetric() { compiler_fence(SeqCst) } else { fence(SeqCst) }
}

/// The side that is called seldom.
pub fn heavy_barrier() {
    // In a forked child nothing is registered; it has one thread then.
    if !is_asymmetric() || !membarrier(EXPEDITED) {
        fence(SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;

    /// Of two threads that each store and then load what the other one stores, one at least sees the other.
    #[test]
    fn one_of_two_sees_the_other() {
        for _ in 0..2000 {
            let (one, other) = (AtomicBool::new(false), AtomicBool::new(false));
            let (sees, seen) = std::thread::scope(|scope| {
                let often = scope.spawn(|| {
                    one.store(true, Relaxed);
                    light_barrier();
                    other.load(Relaxed)
                });
                other.store(true, Relaxed);
                heavy_barrier();
                (one.load(Relaxed), often.join().unwrap())
            });
            assert!(sees || seen);
        }
    }
}
