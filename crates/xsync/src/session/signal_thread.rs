//! Signals of the supervisor: passed on to the program, or answered.

use anyhow::{Context, Result, ensure};
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// Signals that somebody sends to the supervisor and means the program.
const PASSED_ON: [libc::c_int; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];
/// So many of these in so short a time, and the session is ended whatever the program wants.
const IMPATIENT: usize = 3;
const IN_SO_SHORT_A_TIME: Duration = Duration::from_secs(2);

/// What a signal means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// For the program.
    End(i32),
    /// The program does not end.
    Impatience,
    /// The terminal has another size.
    Size,
    /// Somebody wants to know how far it is.
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

/// Blocks what the thread is to hear, in this thread and all that it starts. Returns what was blocked before.
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
            // SAFETY: the set is valid, `signal` is where the call writes, and both outlive the call.
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

/// Stops this process as Ctrl-Z would: not at all where no shell would notice.
pub fn stop_this_process() {
    // SAFETY: SIGTSTP has its default action in this process, which any thread may ask for.
    unsafe { libc::kill(libc::getpid(), libc::SIGTSTP) };
}
