//! Signals that somebody sends to a session and means its program.

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

const PASSED_ON: [libc::c_int; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// The process that is meant, and a signal that came when nobody was.
#[derive(Clone, Default)]
pub struct Meant(Arc<Mutex<(Option<Pid>, Option<Signal>)>>);

impl Meant {
    /// This one; it gets what came before.
    pub fn is(&self, pid: Pid) {
        let mut meant = self.lock();
        meant.0 = Some(pid);
        if let Some(signal) = meant.1.take() {
            let _ = kill_process(pid, signal);
        }
    }

    /// Nobody: that process has ended.
    pub fn is_nobody(&self) {
        self.lock().0 = None;
    }

    fn heard(&self, signal: Signal) {
        let mut meant = self.lock();
        match meant.0 {
            // It may have ended just now.
            Some(pid) => kill_process(pid, signal).unwrap_or(()),
            None => meant.1 = Some(signal),
        }
    }

    fn lock(&self) -> MutexGuard<'_, (Option<Pid>, Option<Signal>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn set() -> libc::sigset_t {
    // SAFETY: a set of signals is numbers, and `sigemptyset` makes it a valid one.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in PASSED_ON {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

/// Which signals were blocked before.
#[derive(Clone, Copy)]
pub struct Before(libc::sigset_t);

/// From now on they end neither this process nor its threads. Must come before threads.
pub fn block() -> Result<Before> {
    // SAFETY: both sets are valid, and outlive the call.
    unsafe {
        let mut before = std::mem::zeroed();
        let failed = libc::pthread_sigmask(libc::SIG_BLOCK, &set(), &mut before);
        ensure!(failed == 0, "cannot block signals: {}", io::Error::from_raw_os_error(failed));
        Ok(Before(before))
    }
}

/// This thread takes them again.
pub fn unblock() {
    // SAFETY: the set is valid, and outlives the call.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set(), std::ptr::null_mut()) };
}

impl Before {
    /// The command begins with these blocked, and ends if the thread ends that starts it.
    pub fn for_command(self, command: &mut Command) -> &mut Command {
        let prepare = move || {
            // SAFETY: the set is valid, and outlives the call.
            unsafe { libc::sigprocmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
            Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
        };
        // SAFETY: the closure makes system calls only, which may be made after fork.
        unsafe { command.pre_exec(prepare) }
    }
}

/// Starts a thread that passes them on. A terminal has sent them to the whole group already.
pub fn pass_on() -> Result<Meant> {
    let meant = Meant::default();
    let to = meant.clone();
    let listen = move || {
        let set = set();
        loop {
            // SAFETY: a structure of numbers, for which zero is a value.
            let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
            // SAFETY: both are valid, and outlive the call.
            let signal = unsafe { libc::sigwaitinfo(&set, &mut info) };
            let by_a_process = info.si_code <= 0;
            if let (true, Some(signal)) = (by_a_process, Signal::from_named_raw(signal)) {
                to.heard(signal);
            }
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(listen).context("a thread for signals")?;
    Ok(meant)
}
