//! Signals that somebody sends to a session and means its program.

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{FromRawFd, OwnedFd};
use rustix::process::{Pid, Signal, set_parent_process_death_signal};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// What ends a program that somebody does not want any more.
const ENDS: [libc::c_int; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];
/// What programs are told besides, with the real-time signals. Not among them: faults of a process itself, and what stops it
/// and lets it go on.
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
/// What a terminal sends, and to the whole group.
const OF_TERMINALS: [libc::c_int; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGWINCH];
const LAST: libc::c_int = 64;

/// A set of signals: the lowest bit is signal 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signals(pub u64);

impl Signals {
    /// Those that end a mount.
    pub fn that_end() -> Signals {
        ENDS.into_iter().collect()
    }

    /// Those that a session passes on.
    pub fn that_are_passed_on() -> Signals {
        ENDS.into_iter().chain(TELLS).chain(libc::SIGRTMIN()..=libc::SIGRTMAX()).collect()
    }

    /// From now on they end neither this process nor its threads. Must come before threads. Returns what was blocked before.
    pub fn block(self) -> Result<Signals> {
        // SAFETY: both sets are valid, and outlive the calls.
        unsafe {
            let mut before = std::mem::zeroed();
            let failed = libc::pthread_sigmask(libc::SIG_BLOCK, &self.set(), &mut before);
            ensure!(failed == 0, "cannot block signals: {}", io::Error::from_raw_os_error(failed));
            Ok((1..=LAST).filter(|signal| libc::sigismember(&before, *signal) == 1).collect())
        }
    }

    /// This thread takes them again.
    pub fn unblock(self) {
        // SAFETY: the set is valid, and outlives the call.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &self.set(), std::ptr::null_mut()) };
    }

    /// The command begins with these blocked and no others, and ends with the thread that starts it.
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

/// The command ends with the thread that starts it. What is blocked here is blocked there.
pub fn ends_with_us(command: &mut Command) -> &mut Command {
    // SAFETY: the closure makes a system call only, which may be made after fork.
    unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?)) }
}

/// A signal that was received.
#[derive(Clone, Copy)]
struct Heard {
    signal: libc::c_int,
    /// Who has sent it.
    code: libc::c_int,
    /// Goes with a signal that was queued.
    value: usize,
}

impl Heard {
    /// Takes a signal that has come.
    fn next() -> Option<Heard> {
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a structure of numbers, for which zero is a value; all outlive the call. A signal that was not queued has
        // other numbers in the place of the value.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let signal = libc::sigtimedwait(&Signals::that_are_passed_on().set(), &mut info, &at_once);
            let value = info.si_value().sival_ptr as usize;
            (signal > 0).then_some(Heard { signal, code: info.si_code, value })
        }
    }

    fn send(self, to: Pid) {
        let (pid, value) = (to.as_raw_pid(), libc::sigval { sival_ptr: self.value as *mut libc::c_void });
        // It may have ended just now.
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

    /// Whether it ends what is under way; not if this process was started to ignore it (`nohup`).
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
    /// A process that comes before the program, and that signals end.
    Preparing(Pid),
    Program(Pid),
}

/// The process that is meant, and what was heard before the program was there.
#[derive(Clone, Default)]
pub struct Meant(Arc<Mutex<(Whom, Vec<Heard>)>>);

impl Meant {
    /// The program; it gets what came before, also what the terminal sent to the group just before it was in that.
    pub fn is(&self, pid: Pid) {
        let mut meant = self.lock();
        meant.1.extend(std::iter::from_fn(Heard::next));
        meant.0 = Whom::Program(pid);
        meant.1.drain(..).for_each(|signal| signal.send(pid));
    }

    /// A process that comes before the program, and that is ended by what ends the session.
    pub fn is_preparing(&self, pid: Pid) {
        let mut meant = self.lock();
        meant.0 = Whom::Preparing(pid);
        meant.1.iter().filter(|signal| signal.ends()).for_each(|signal| signal.send(pid));
    }

    /// Nobody: that process has ended.
    pub fn is_nobody(&self) {
        self.lock().0 = Whom::Nobody;
    }

    /// The signal that has ended all before the program was there.
    pub fn ended_by(&self) -> Option<libc::c_int> {
        let mut meant = self.lock();
        meant.1.extend(std::iter::from_fn(Heard::next));
        meant.1.iter().find(|signal| signal.ends()).map(|signal| signal.signal)
    }

    /// Takes all that have come.
    fn hear(&self) {
        let mut meant = self.lock();
        while let Some(signal) = Heard::next() {
            match meant.0 {
                // The terminal has sent it there, too.
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

    fn lock(&self) -> MutexGuard<'_, (Whom, Vec<Heard>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts a thread that passes them on.
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
            // Takes none: that comes with the lock, so that none is on its way when the program begins.
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
