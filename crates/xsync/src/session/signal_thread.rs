//! Signals to the supervisor: they are passed on to the program, or answered.

use anyhow::{Context, Result, ensure};
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// Signals to the supervisor that are meant for the program.
const PASSED_ON: [libc::c_int; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];
/// The number of signals that end the session, even if the program goes on, when they come within this time.
const IMPATIENT: usize = 3;
const IN_SO_SHORT_A_TIME: Duration = Duration::from_secs(2);

/// The meaning of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A signal for the program.
    End(i32),
    /// Repeated signals: the session is to be ended.
    Impatience,
    /// The terminal has another size.
    Size,
    /// A request for a report.
    Report,
}

fn set() -> libc::sigset_t {
    // SAFETY: a set of signals is numbers, and `sigemptyset` makes it a valid one.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in PASSED_ON.into_iter().chain([libc::SIGWINCH, libc::SIGUSR1]) {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

/// Blocks the thread's signals in this thread and all threads that it starts. Returns the set that was blocked before.
pub fn block() -> Result<libc::sigset_t> {
    // SAFETY: both sets are valid, and outlive the call.
    unsafe {
        let mut before = std::mem::zeroed();
        let failed = libc::pthread_sigmask(libc::SIG_BLOCK, &set(), &mut before);
        ensure!(failed == 0, "cannot block signals: {}", io::Error::from_raw_os_error(failed));
        Ok(before)
    }
}

/// Starts the thread.
pub fn hear(mut on: impl FnMut(Heard) + Send + 'static) -> Result<()> {
    let listen = move || {
        let (set, mut ends) = (set(), Vec::new());
        loop {
            let mut signal = 0;
            // SAFETY: the set is valid, the call writes `signal`, and both outlive the call.
            if unsafe { libc::sigwait(&set, &mut signal) } != 0 {
                continue;
            }
            on(match signal {
                libc::SIGWINCH => Heard::Size,
                libc::SIGUSR1 => Heard::Report,
                signal => {
                    ends.retain(|at: &Instant| at.elapsed() < IN_SO_SHORT_A_TIME);
                    ends.push(Instant::now());
                    if ends.len() >= IMPATIENT { Heard::Impatience } else { Heard::End(signal) }
                }
            });
        }
    };
    thread::Builder::new().spawn(listen).map(drop).context("a thread for signals")
}

/// Stops this process as Ctrl-Z does. The kernel ignores the signal if no shell could notice the stop.
pub fn stop_this_process() {
    // SAFETY: SIGTSTP has its default action in this process, which any thread may ask for.
    unsafe { libc::kill(libc::getpid(), libc::SIGTSTP) };
}
