//! Supervises the daemon of a mount: outlives it, and starts another one when it is killed.
//!
//! The supervisor keeps `/dev/fuse` and the log of changes that no commit has; the next daemon continues with both. It
//! does nothing else: it holds no lock, opens no file of the mount, and answers no request.

use crate::processes::passed_descriptors::{connection, receive, send};
use crate::processes::supervised::{BEGIN, END, ENDING, KEEP, KEPT, MESSAGE_MAX, READY};
use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, FromRawFd, OwnedFd};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Signals that end the mount.
const ENDS: [libc::c_int; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];
/// A daemon that is killed sooner than this after it was ready counts as short-lived.
const SHORT: Duration = Duration::from_secs(1);
/// After this many short-lived daemons in a row no other one is started: the cause is then probably in the requests.
const SHORT_MOST: usize = 8;

/// A descriptor that receives the signals that end the mount.
struct Signals(OwnedFd);

impl Signals {
    /// Directs these signals to the descriptor from now on, instead of to this process and the processes that it
    /// starts.
    fn new() -> Result<Signals> {
        // SAFETY: a set of signals is numbers, `sigemptyset` makes it a valid one, and it outlives the calls.
        let descriptor = unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in ENDS {
                libc::sigaddset(&mut set, signal);
            }
            libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if descriptor < 0 {
            return Err(io::Error::last_os_error()).context("cannot receive signals");
        }
        // SAFETY: the call has just made it, and nobody else has it.
        Ok(Signals(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }

    fn take(&self) -> bool {
        rustix::io::read(&self.0, &mut [0_u8; 128]).is_ok()
    }
}

/// A running daemon.
struct Daemon {
    process: Child,
    connection: OwnedFd,
    started: Instant,
    ready: Option<Instant>,
    /// The daemon has said that it ends by itself.
    ending: bool,
}

/// Descriptors and bytes that are kept for the next daemon, by letter.
type HandedOver = BTreeMap<u8, (Vec<u8>, OwnedFd)>;

fn start(arguments: &[std::ffi::OsString], kept: &HandedOver) -> Result<Daemon> {
    let (ours, theirs) = connection().context("a connection")?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("untorn-mount").args(arguments).stdin(Stdio::from(theirs)).stdout(Stdio::null());
    let process = command.spawn().context("cannot start the daemon")?;
    for (letter, (bytes, descriptor)) in kept {
        // A failed send means that the daemon has ended; the next `hear` notices that.
        let _ = send(&ours, &[&[KEPT, *letter], &bytes[..]].concat(), Some(descriptor.as_fd()));
    }
    let _ = send(&ours, &[BEGIN], None);
    Ok(Daemon { process, connection: ours, started: Instant::now(), ready: None, ending: false })
}

impl Daemon {
    /// Takes a message from the daemon; false at the daemon's end.
    fn hear(&mut self, kept: &mut HandedOver) -> bool {
        let mut message = [0; MESSAGE_MAX];
        match receive(&self.connection, &mut message) {
            Ok((len, Some(descriptor))) if len >= 2 && message[0] == KEEP => {
                kept.insert(message[1], (message[2..len].to_vec(), descriptor));
            }
            // Dropped in a thread of its own: closing the last descriptor on a mount may wait for the daemon, and a new
            // daemon can only be started by this thread.
            Ok((2, None)) if message[0] == KEEP => {
                let let_go = kept.remove(&message[1]);
                let _ = thread::Builder::new().spawn(move || drop(let_go));
            }
            Ok((1, None)) if message[0] == READY => self.ready = Some(Instant::now()),
            Ok((1, None)) if message[0] == ENDING => self.ending = true,
            Ok((0, _)) | Err(_) => return false,
            Ok(_) => {}
        }
        true
    }
}

/// Runs a daemon with these arguments, and starts another one each time it is killed, until one ends by itself.
///
/// Returns the exit code of that last one. `ready` is called when the first daemon is ready.
pub fn supervise(arguments: &[std::ffi::OsString], ready: impl FnOnce() -> Result<()>) -> Result<u8> {
    let signals = Signals::new()?;
    let (mut kept, mut ready, mut dead) = (HandedOver::new(), Some(ready), Vec::<Child>::new());
    let (mut ends, mut short) = (0, 0);
    loop {
        let mut daemon = start(arguments, &kept)?;
        for _ in 0..ends {
            let _ = send(&daemon.connection, &[END], None);
        }
        loop {
            let mut wait = [PollFd::new(&daemon.connection, PollFlags::IN), PollFd::new(&signals.0, PollFlags::IN)];
            let _ = poll(&mut wait, None);
            let [heard, signalled] = wait.map(|of| !of.revents().is_empty());
            if signalled && signals.take() {
                ends += 1;
                let _ = send(&daemon.connection, &[END], None);
            }
            if heard && !daemon.hear(&mut kept) {
                break;
            }
            if daemon.ready.is_some()
                && let Some(ready) = ready.take()
            {
                ready()?;
            }
        }
        // The connection closes when the last thread of the daemon that has it ends: nothing of that process changes
        // anything any more. A thread of the daemon may still be in the kernel, waiting for the next daemon.
        if daemon.ending {
            return Ok(code(daemon.process.wait().context("cannot wait for the daemon")?));
        }
        if ready.is_some() {
            let status = daemon.process.wait().context("cannot wait for the daemon")?;
            bail!("the daemon ended before the mount answered ({status})");
        }
        dead.push(daemon.process);
        dead.retain_mut(|process| matches!(process.try_wait(), Ok(None)));
        let lived = daemon.ready.unwrap_or(daemon.started).elapsed();
        short = if daemon.ready.is_none() || lived < SHORT { short + 1 } else { 0 };
        if short >= SHORT_MOST {
            bail!(
                "the daemon was killed {SHORT_MOST} times, each time as soon as it served: it is not started again, \
                 and programs get errors. The store has the last commits; if nobody killed the daemon, please report \
                 this"
            );
        }
        tracing::warn!(id = "untorn.mount.daemon_replaced", "the daemon was killed: another one continues the mount");
    }
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
