//! Signals are the program's: threads of this library get none.

use std::io;

/// Signals that a thread sends itself by an error or a filter: blocked, they would end the process past the program's
/// handler.
const OWN: [libc::c_int; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// Starts a thread, which inherits that all signals are blocked for the moment.
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
