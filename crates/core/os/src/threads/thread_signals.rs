//! Signals belong to the program: threads of this library receive none.

use std::io;

/// Signals that a thread raises by its own error or a filter. If they were blocked, they would end the process without
/// the program's handler.
const OWN: [libc::c_int; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// Starts a thread, which inherits a mask that blocks all other signals.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: a set of signals is numbers; the calls fill it.
    let before = unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        OWN.iter().for_each(|signal| _ = libc::sigdelset(&mut all, *signal));
        match libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before) {
            0 => Ok(before),
            failed => Err(io::Error::from_raw_os_error(failed)),
        }
    };
    let started = start();
    if let Ok(before) = before {
        // SAFETY: the mask as it was.
        let _ = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    }
    started
}
