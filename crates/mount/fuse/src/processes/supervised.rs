//! Messages between a daemon and its supervisor: a letter, with bytes and a descriptor.

use crate::processes::passed_descriptors::{receive, send};
use anyhow::{Context, Result};
use parking_lot::Mutex;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use untorn_terminal::tell;

/// To the supervisor: keep this descriptor under a letter for the next daemon; without a descriptor, close the kept
/// one.
pub const KEEP: u8 = b'k';
/// To the supervisor: the mount answers.
pub const READY: u8 = b'r';
/// To the supervisor: this daemon ends by itself, and must not be replaced.
pub const ENDING: u8 = b'e';
/// To the daemon: a descriptor that was kept.
pub const KEPT: u8 = b'K';
/// To the daemon: no more kept descriptors follow.
pub const BEGIN: u8 = b'B';
/// To the daemon: a signal that ends the mount has come.
pub const END: u8 = b'E';

/// The longest message, in bytes.
pub const MESSAGE_MAX: usize = 64;
/// Letter under which the supervisor keeps `/dev/fuse`, with the number of the mount. The log's files have letters of
/// their own.
pub const DEVICE: u8 = b'D';
/// Letter under which the supervisor keeps the hidden directory.
pub const HIDDEN_DIRECTORY: u8 = b'H';

/// Exit code of a daemon that was ended before it mounted anything: the one that shells use for SIGTERM.
const ENDED: i32 = 128 + libc::SIGTERM;

/// Process number of the supervisor, or 0 without a supervisor.
static SUPERVISOR: AtomicI32 = AtomicI32::new(0);

/// The process that ends last when the mount of this process ends.
pub fn last_to_end() -> u32 {
    let parent = rustix::process::getppid().map_or(0, |parent| parent.as_raw_pid());
    match SUPERVISOR.load(Ordering::Relaxed) {
        // If the supervisor has ended, the parent is another process.
        supervisor if supervisor != 0 && supervisor == parent => parent.cast_unsigned(),
        _ => std::process::id(),
    }
}

/// A daemon's connection to its supervisor.
pub struct Supervised {
    connection: OwnedFd,
    kept: Mutex<HashMap<u8, (Vec<u8>, OwnedFd)>>,
    /// Whether there is a mount, or there will be one soon.
    mounts: Mutex<bool>,
}

/// The supervisor's connection, and a receiver of the signals that end the mount.
pub type WithEnds<'a> = (&'a Arc<Supervised>, Receiver<()>);

impl Supervised {
    /// Takes the connection from standard input, and receives the descriptors that the last daemon left.
    pub fn begin() -> Result<Supervised> {
        let connection = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).context("the supervisor")?;
        let parent = rustix::process::getppid().map_or(0, |parent| parent.as_raw_pid());
        SUPERVISOR.store(parent, Ordering::Relaxed);
        let mut kept = HashMap::new();
        loop {
            let mut message = [0; MESSAGE_MAX];
            match receive(&connection, &mut message).context("the supervisor")? {
                (len, Some(descriptor)) if len >= 2 && message[0] == KEPT => {
                    kept.insert(message[1], (message[2..len].to_vec(), descriptor));
                }
                (1, None) if message[0] == BEGIN => break,
                _ => anyhow::bail!("the supervisor has ended"),
            }
        }
        let null = std::fs::File::open("/dev/null").context("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        let mounts = Mutex::new(kept.contains_key(&DEVICE));
        Ok(Supervised { connection, kept: Mutex::new(kept), mounts })
    }

    /// Notes that something is mounted from now on.
    pub fn mounts(&self) {
        *self.mounts.lock() = true;
    }

    /// Starts to receive the signals that end the mount, as messages to the receiver.
    ///
    /// When the supervisor has ended, no more messages come. If a signal comes before anything is mounted, this process
    /// ends at once: it might otherwise wait for the store.
    pub fn ends(self: &Arc<Supervised>) -> Result<Receiver<()>> {
        let (sender, receiver) = channel();
        let supervised = Arc::clone(self);
        let hear = move || {
            loop {
                let is_end = supervised.wait_for_end();
                let mounts = supervised.mounts.lock();
                if !*mounts {
                    tell!("untorn-mount: ended before anything was mounted");
                    supervised.ending();
                    std::process::exit(ENDED);
                }
                drop(mounts);
                if !is_end || sender.send(()).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().spawn(hear).context("cannot start a thread")?;
        Ok(receiver)
    }

    /// Takes the descriptor that the last daemon left under a letter.
    pub fn kept(&self, letter: u8) -> Option<OwnedFd> {
        self.kept.lock().remove(&letter).map(|(_, descriptor)| descriptor)
    }

    /// The bytes that the last daemon left under a letter.
    pub fn kept_bytes(&self, letter: u8) -> Option<Vec<u8>> {
        self.kept.lock().get(&letter).map(|(bytes, _)| bytes.clone())
    }

    /// Makes the supervisor keep a descriptor under a letter, with some bytes.
    pub fn keep(&self, letter: u8, bytes: &[u8], descriptor: BorrowedFd<'_>) -> Result<()> {
        let message = [&[KEEP, letter], bytes].concat();
        send(&self.connection, &message, Some(descriptor)).context("the supervisor has ended")
    }

    /// Makes the supervisor close a kept descriptor. An error is ignored: the supervisor has ended then.
    pub fn let_go(&self, letter: u8) {
        let _ = send(&self.connection, &[KEEP, letter], None);
    }

    /// Tells the supervisor that the mount answers.
    pub fn ready(&self) {
        let _ = send(&self.connection, &[READY], None);
    }

    /// Tells the supervisor that this daemon ends by itself.
    pub fn ending(&self) {
        let _ = send(&self.connection, &[ENDING], None);
    }

    /// Waits until the mount must end; false if the supervisor has ended.
    fn wait_for_end(&self) -> bool {
        let mut message = [0; MESSAGE_MAX];
        matches!(receive(self.connection.as_fd(), &mut message), Ok((1, _)) if message[0] == END)
    }
}
