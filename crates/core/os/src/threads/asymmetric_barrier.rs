//! An asymmetric barrier: threads that announce a state often pay nothing, and the rare thread that queries it makes
//! all of them pay at once.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{compiler_fence, fence};

const REGISTER: libc::c_int = 1 << 4;
const EXPEDITED: libc::c_int = 1 << 3;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: a call without pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether the kernel can make the other threads pay; if so, [`light_barrier`] restrains only the compiler.
#[inline]
pub fn is_asymmetric() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| membarrier(REGISTER))
}

/// The frequent side. If this thread stores before it and loads after it, and another thread does the same around
/// [`heavy_barrier`], at least one of the two sees the other's store.
#[inline]
pub fn light_barrier() {
    if is_asymmetric() { compiler_fence(SeqCst) } else { fence(SeqCst) }
}

/// The rare side.
pub fn heavy_barrier() {
    // A forked child is not registered, but it has a single thread then.
    if !is_asymmetric() || !membarrier(EXPEDITED) {
        fence(SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;

    /// Of two threads that each store and then load the other's value, at least one sees the other.
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
