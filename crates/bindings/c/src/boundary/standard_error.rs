//! Messages on the standard error of the program that has loaded this library.
//!
//! The program has not asked for these messages. Descriptor 2 may belong to another file by now: a daemon closes its
//! standard streams, and the next files that it opens get their numbers. It may also be a pipe that nobody reads. So
//! a message goes only to the standard error that the program was started with, never ends the program by SIGPIPE,
//! and never blocks unless the user has asked for the log.

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The most bytes that a pipe with room takes at once; a longer write could block.
const PIPE_BYTES: usize = libc::PIPE_BUF;

/// Device and inode of descriptor 2 when the library was loaded; zeros if it was closed.
static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);

/// The loader calls this function before the program begins.
#[used]
// SAFETY: the section is a list of functions of this type.
#[unsafe(link_section = ".init_array")]
static REMEMBER: extern "C" fn() = remember;

extern "C" fn remember() {
    let (device, inode) = identity().unwrap_or_default();
    DEVICE.store(device, Relaxed);
    INODE.store(inode, Relaxed);
}

/// Device and inode of descriptor 2's file. None: it is closed.
fn identity() -> Option<(u64, u64)> {
    // SAFETY: zeros are a valid `stat`, which the kernel fills.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is writable.
    (unsafe { libc::fstat(2, &raw mut stat) } == 0).then_some((stat.st_dev, stat.st_ino))
}

/// Whether descriptor 2 is still of the file that the program was started with.
pub(crate) fn is_as_at_start() -> bool {
    identity() == Some((DEVICE.load(Relaxed), INODE.load(Relaxed)))
}

/// Writes a line. Without `waits`, writes only as much as is taken at once, because no message is worth a blocked
/// program. Allocates nothing.
pub(crate) fn write(line: &[u8], waits: bool) {
    if !is_as_at_start() {
        return;
    }
    without_sigpipe(|| {
        let mut left = if waits { line } else { &line[..line.len().min(PIPE_BYTES)] };
        while !left.is_empty() && is_ready(waits) {
            // SAFETY: the bytes of `left`.
            match unsafe { libc::write(2, left.as_ptr().cast(), left.len()) } {
                written @ 1.. => left = &left[written.cast_unsigned()..],
                _ if may_try_again() => {}
                _ => break,
            }
        }
    });
}

/// Whether a write that failed may be tried again.
fn may_try_again() -> bool {
    matches!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINTR | libc::EAGAIN))
}

fn is_ready(waits: bool) -> bool {
    let mut stream = libc::pollfd { fd: 2, events: libc::POLLOUT, revents: 0 };
    loop {
        // SAFETY: one structure, which is writable.
        match unsafe { libc::poll(&raw mut stream, 1, if waits { -1 } else { 0 }) } {
            -1 if may_try_again() => {}
            ready => return ready > 0,
        }
    }
}

/// Runs a function, and keeps a `SIGPIPE` that it causes from the program.
fn without_sigpipe(run: impl FnOnce()) {
    // SAFETY: sets of signals are numbers; the calls read and fill them.
    unsafe {
        let [mut pipe, mut before, mut pending]: [libc::sigset_t; 3] = std::mem::zeroed();
        libc::sigemptyset(&raw mut pipe);
        libc::sigaddset(&raw mut pipe, libc::SIGPIPE);
        if libc::pthread_sigmask(libc::SIG_BLOCK, &raw const pipe, &raw mut before) != 0 {
            return;
        }
        libc::sigpending(&raw mut pending);
        run();
        // A SIGPIPE that was pending before belongs to the program.
        if libc::sigismember(&raw const pending, libc::SIGPIPE) == 0 {
            let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(&raw const pipe, ptr::null_mut(), &raw const none);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
    }
}
