//! Passes signals that are sent to a session on to its program.

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{FromRawFd, OwnedFd};
use rustix::process::{Pid, Signal, set_parent_process_death_signal};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::thread;

/// Signals by which a user ends a program.
const ENDS: [libc::c_int; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];
/// Further signals that are passed on, besides the real-time signals. Left out are faults of a process itself, and
/// signals that stop and continue a process.
const TELLS: [libc::c_int; 8] = [
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGWINCH,
    libc::SIGIO,
    libc::SIGPWR,
];
/// Signals that a terminal sends to the whole process group.
const OF_TERMINALS: [libc::c_int; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGWINCH];
const LAST: libc::c_int = 64;

/// A set of signals: the lowest bit is signal 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signals(pub u64);

impl Signals {
    /// The signals that end a mount.
    pub fn that_end() -> Signals {
        ENDS.into_iter().collect()
    }

    /// The signals that a session passes on.
    pub fn that_are_passed_on() -> Signals {
        ENDS.into_iter().chain(TELLS).chain(libc::SIGRTMIN()..=libc::SIGRTMAX()).collect()
    }

    /// Blocks these signals in this thread and in those that it starts later, so it must be called before threads are
    /// started. Returns the signals that were blocked before.
    pub fn block(self) -> Result<Signals> {
        // SAFETY: both sets are valid, and outlive the calls.
        unsafe {
            let mut before = std::mem::zeroed();
            let failed = libc::pthread_sigmask(libc::SIG_BLOCK, &self.set(), &mut before);
            ensure!(failed == 0, "cannot block signals: {}", io::Error::from_raw_os_error(failed));
            Ok((1..=LAST).filter(|signal| libc::sigismember(&before, *signal) == 1).collect())
        }
    }

    /// Unblocks these signals in this thread.
    pub fn unblock(self) {
        // SAFETY: the set is valid, and outlives the call.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &self.set(), std::ptr::null_mut()) };
    }

    /// Makes a command begin with exactly these signals blocked, and end with the thread that starts it.
    pub fn for_command(self, command: &mut Command) -> &mut Command {
        let set = self.set();
        let prepare = move || {
            // SAFETY: the set is valid, and outlives the call.
            unsafe { libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut()) };
            Ok(())
        };
        // SAFETY: the closure makes a system call only, which may be made after fork.
        ends_with_us(unsafe { command.pre_exec(prepare) })
    }

    fn set(self) -> libc::sigset_t {
        // SAFETY: a set of signals is numbers, and `sigemptyset` makes it a valid one.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in (1..=LAST).filter(|signal| self.0 & bit(*signal) != 0) {
                libc::sigaddset(&mut set, signal);
            }
            set
        }
    }
}

impl FromIterator<libc::c_int> for Signals {
    fn from_iter<I: IntoIterator<Item = libc::c_int>>(signals: I) -> Signals {
        Signals(signals.into_iter().fold(0, |bits, signal| bits | bit(signal)))
    }
}

fn bit(signal: libc::c_int) -> u64 {
    1 << (signal - 1)
}

/// Makes a command end with the thread that starts it. The command inherits the blocked signals.
pub fn ends_with_us(command: &mut Command) -> &mut Command {
    // SAFETY: the closure makes a system call only, which may be made after fork.
    unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?)) }
}

/// A signal that was received.
#[derive(Clone, Copy)]
struct Heard {
    signal: libc::c_int,
    /// Origin of the signal: the kernel, `kill`, or a queue.
    code: libc::c_int,
    /// Value of a queued signal.
    value: usize,
}

impl Heard {
    /// Takes a pending signal.
    fn next() -> Option<Heard> {
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a structure of numbers, for which zero is a value; all outlive the call. A signal that was not queued
        // has other numbers in the place of the value.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let signal = libc::sigtimedwait(&Signals::that_are_passed_on().set(), &mut info, &at_once);
            let value = info.si_value().sival_ptr as usize;
            (signal > 0).then_some(Heard { signal, code: info.si_code, value })
        }
    }

    fn send(self, to: Pid) {
        let (pid, value) = (to.as_raw_pid(), libc::sigval { sival_ptr: self.value as *mut libc::c_void });
        // An error is ignored: the process may have ended just now.
        // SAFETY: system calls about another process, to which the value is a number.
        unsafe {
            match self.code {
                libc::SI_QUEUE => libc::sigqueue(pid, self.signal, value),
                _ => libc::kill(pid, self.signal),
            }
        };
    }

    fn is_of_terminal(self) -> bool {
        self.code > 0 && OF_TERMINALS.contains(&self.signal)
    }

    /// Whether the signal ends the work in progress; not if this process was started to ignore it (`nohup`).
    fn ends(self) -> bool {
        // SAFETY: a structure of numbers, for which zero is a value; it outlives the call.
        let is_ignored = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(self.signal, std::ptr::null(), &mut action);
            action.sa_sigaction == libc::SIG_IGN
        };
        ENDS.contains(&self.signal) && !is_ignored
    }
}

#[derive(Clone, Copy, Default)]
enum Whom {
    #[default]
    Nobody,
    /// A process that runs before the program, and that signals end.
    Preparing(Pid),
    Program(Pid),
}

/// The process that signals are meant for, and the signals that came before the program was there.
#[derive(Clone, Default)]
pub struct Meant(Arc<Mutex<(Whom, Vec<Heard>)>>);

impl Meant {
    /// Names the program, and passes on the earlier signals, even if the terminal sent them to the group: the program
    /// was not in it yet.
    pub fn is(&self, pid: Pid) {
        let mut meant = self.0.lock();
        meant.1.extend(std::iter::from_fn(Heard::next));
        meant.0 = Whom::Program(pid);
        meant.1.drain(..).for_each(|signal| signal.send(pid));
    }

    /// Names a process that runs before the program. Signals that end the session end this process.
    pub fn is_preparing(&self, pid: Pid) {
        let mut meant = self.0.lock();
        meant.0 = Whom::Preparing(pid);
        meant.1.iter().filter(|signal| signal.ends()).for_each(|signal| signal.send(pid));
    }

    /// Notes that the named process has ended.
    pub fn is_nobody(&self) {
        self.0.lock().0 = Whom::Nobody;
    }

    /// The signal that ended the work before the program was there.
    pub fn ended_by(&self) -> Option<libc::c_int> {
        let mut meant = self.0.lock();
        meant.1.extend(std::iter::from_fn(Heard::next));
        meant.1.iter().find(|signal| signal.ends()).map(|signal| signal.signal)
    }

    /// Takes all pending signals, and passes them on.
    fn hear(&self) {
        let mut meant = self.0.lock();
        while let Some(signal) = Heard::next() {
            match meant.0 {
                // The terminal has sent it to the program, too.
                Whom::Program(_) if signal.is_of_terminal() => {}
                Whom::Program(pid) => signal.send(pid),
                Whom::Preparing(pid) => {
                    meant.1.push(signal);
                    if signal.ends() && !signal.is_of_terminal() {
                        signal.send(pid);
                    }
                }
                Whom::Nobody => meant.1.push(signal),
            }
        }
    }
}

/// Starts a thread that passes signals on.
pub fn pass_on() -> Result<Meant> {
    // SAFETY: the set is valid, and outlives the call.
    let come = unsafe { libc::signalfd(-1, &Signals::that_are_passed_on().set(), libc::SFD_CLOEXEC) };
    if come < 0 {
        return Err(io::Error::last_os_error()).context("cannot receive signals");
    }
    // SAFETY: the call has just made it, and nobody else has it.
    let come = unsafe { OwnedFd::from_raw_fd(come) };
    let meant = Meant::default();
    let to = meant.clone();
    let listen = move || {
        loop {
            // Only waits. `hear` takes signals under the lock, so that no signal is in transit when the program begins.
            let _ = poll(&mut [PollFd::new(&come, PollFlags::IN)], None);
            to.hear();
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(listen).context("a thread for signals")?;
    Ok(meant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_the_same_as_bits_and_for_the_kernel() {
        let signals = Signals::that_are_passed_on();
        // SAFETY: the set is valid, and outlives the call.
        let is_in = |signal| unsafe { libc::sigismember(&signals.set(), signal) == 1 };
        for signal in [libc::SIGHUP, libc::SIGUSR1, libc::SIGRTMIN(), libc::SIGRTMAX()] {
            assert!(is_in(signal), "{signal}");
        }
        for signal in [libc::SIGKILL, libc::SIGSEGV, libc::SIGCHLD, libc::SIGCONT, libc::SIGTSTP, 32, 33] {
            assert!(!is_in(signal), "{signal}");
        }
        assert_eq!((1..=LAST).filter(|signal| is_in(*signal)).collect::<Signals>(), signals);
    }
}
