//! What a daemon says to its supervisor, and the supervisor to it: messages of a letter, with bytes and a descriptor.

use crate::processes::passed_descriptors::{receive, send};
use anyhow::{Context, Result};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use untorn_terminal::tell;

/// To the supervisor: keep this under a letter, for the daemon after this one; without a descriptor, let it go.
pub const KEEP: u8 = b'k';
/// To the supervisor: the mount answers.
pub const READY: u8 = b'r';
/// To the supervisor: this daemon ends by itself, and is not to be replaced.
pub const ENDING: u8 = b'e';
/// To the daemon: something that was kept.
pub const KEPT: u8 = b'K';
/// To the daemon: that was all.
pub const BEGIN: u8 = b'B';
/// To the daemon: a signal came that ends the mount.
pub const END: u8 = b'E';

/// The most bytes of a message.
pub const MESSAGE_MAX: usize = 64;
/// Under which letters descriptors are kept besides the log's: `/dev/fuse`, with the number of the mount; the hidden
/// directory.
pub const DEVICE: u8 = b'D';
/// The hidden directory.
pub const HIDDEN_DIRECTORY: u8 = b'H';

/// The exit code of a daemon that was to end before it mounted anything: as shells have it of SIGTERM.
const ENDED: i32 = 128 + libc::SIGTERM;

/// The supervisor's process; 0 if there is none.
static SUPERVISOR: AtomicI32 = AtomicI32::new(0);

/// The process that ends last when a mount ends that this process serves.
pub fn last_to_end() -> u32 {
    let parent = rustix::process::getppid().map_or(0, |parent| parent.as_raw_pid());
    match SUPERVISOR.load(Ordering::Relaxed) {
        // If it has ended, the parent is another process.
        supervisor if supervisor != 0 && supervisor == parent => parent.cast_unsigned(),
        _ => std::process::id(),
    }
}

/// A daemon's connection to its supervisor.
pub struct Supervised {
    connection: OwnedFd,
    kept: Mutex<HashMap<u8, (Vec<u8>, OwnedFd)>>,
    /// Whether there is a mount, or will be one in a moment.
    mounts: Mutex<bool>,
}

/// The supervisor, and what is heard of the end of the mount.
pub type WithEnds<'a> = (&'a Arc<Supervised>, Receiver<()>);

impl Supervised {
    /// The connection is this process's standard input. Receives what the last daemon left.
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

    fn lock(&self) -> MutexGuard<'_, HashMap<u8, (Vec<u8>, OwnedFd)>> {
        held(&self.kept)
    }

    /// Something is mounted from now on.
    pub fn mounts(&self) {
        *held(&self.mounts) = true;
    }

    /// Begins to hear of the end: each of the signals that end the mount is a message to the receiver, and nothing comes any
    /// more when the supervisor has ended. If it comes before anything is mounted, this process ends at once: it may wait for
    /// the store.
    pub fn ends(self: &Arc<Supervised>) -> Result<Receiver<()>> {
        let (sender, receiver) = channel();
        let supervised = Arc::clone(self);
        let hear = move || {
            loop {
                let is_end = supervised.wait_for_end();
                let mounts = held(&supervised.mounts);
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

    /// What the last daemon left under a letter.
    pub fn kept(&self, letter: u8) -> Option<OwnedFd> {
        self.lock().remove(&letter).map(|(_, descriptor)| descriptor)
    }

    /// The bytes beside it.
    pub fn kept_bytes(&self, letter: u8) -> Option<Vec<u8>> {
        self.lock().get(&letter).map(|(bytes, _)| bytes.clone())
    }

    /// Has a descriptor kept under a letter, with some bytes.
    pub fn keep(&self, letter: u8, bytes: &[u8], descriptor: BorrowedFd<'_>) -> Result<()> {
        let message = [&[KEEP, letter], bytes].concat();
        send(&self.connection, &message, Some(descriptor)).context("the supervisor has ended")
    }

    /// Has a descriptor kept no longer. If the supervisor has ended, it does not.
    pub fn let_go(&self, letter: u8) {
        let _ = send(&self.connection, &[KEEP, letter], None);
    }

    /// The mount answers.
    pub fn ready(&self) {
        let _ = send(&self.connection, &[READY], None);
    }

    /// This daemon ends by itself.
    pub fn ending(&self) {
        let _ = send(&self.connection, &[ENDING], None);
    }

    /// Waits until the mount is to be ended; false if the supervisor has ended.
    fn wait_for_end(&self) -> bool {
        let mut message = [0; MESSAGE_MAX];
        matches!(receive(self.connection.as_fd(), &mut message), Ok((1, _)) if message[0] == END)
    }
}

fn held<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
