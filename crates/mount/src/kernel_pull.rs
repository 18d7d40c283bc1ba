//! Brings what the kernel has in its cache of a file to the tree: by descriptors of the server's own.
//!
//! The server opens files of its own mount through the *hidden directory*: its name is a random number, is looked up
//! once, and is not there after that. In it, the name of an inode is the number of the inode. No path of the mount is
//! followed, so no lock is waited for that a handler's program holds. A descriptor is kept as long as a program has the
//! file open for writing: only then can there be something to send.
//!
//! A process that may be killed opens no hidden directory: see `daemon`. Pulls then drop what is cached.

use crate::fuse_device::Device;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::mount::OpenTreeFlags;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use untorn_tree::{Errno, Ino, Pull, Result};

/// Number of the hidden directory.
pub const HIDDEN: Ino = u64::MAX - 1;

/// How long descriptors may take to be closed.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks.
const MOMENT: Duration = Duration::from_millis(1);

/// A file that programs have open for writing.
#[derive(Default)]
struct Written {
    writers: u64,
    own: Option<Arc<OwnedFd>>,
}

/// The hidden directory.
#[derive(Default)]
struct Hidden {
    /// What is answered to a lookup in the root, while the directory is opened.
    name: Option<OsString>,
    directory: Option<Arc<OwnedFd>>,
}

/// Pulls by `sync_file_range`.
pub struct KernelPull {
    device: Arc<Device>,
    hidden: Mutex<Hidden>,
    written: Mutex<HashMap<Ino, Written>>,
    /// How often the kernel was given an inode by the hidden directory, of which the tree knows nothing.
    given: Mutex<HashMap<Ino, u64>>,
    /// Closing waits for locks of the file: a thread of its own does it.
    to_close: Sender<Arc<OwnedFd>>,
    ended: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KernelPull {
    /// Without hidden directory at first. Descriptors that are not needed any more go to `to_close`.
    pub fn new(device: Arc<Device>, to_close: Sender<Arc<OwnedFd>>) -> KernelPull {
        let (hidden, written, given) = Default::default();
        KernelPull { device, hidden, written, given, to_close, ended: AtomicBool::new(false) }
    }

    /// Opens the hidden directory beneath a mount point that answers.
    pub fn open_hidden(&self, mount_point: &Path) -> io::Result<()> {
        if locked(&self.hidden).directory.is_some() {
            return Ok(());
        }
        let name = OsString::from(format!(".{:032x}", rand_u128()));
        locked(&self.hidden).name = Some(name.clone());
        let opened = open_unseen(&mount_point.join(&name));
        let mut hidden = locked(&self.hidden);
        hidden.name = None;
        hidden.directory = Some(Arc::new(opened?));
        Ok(())
    }

    /// The mount is gone, and the kernel has sent everything: nothing is pulled any more. Returns each file that was open
    /// for writing, and how often; the kernel need not have told that those openings ended.
    pub fn end(&self) -> Vec<(Ino, u64)> {
        self.ended.store(true, Ordering::Release);
        locked(&self.written).drain().map(|(ino, file)| (ino, file.writers)).collect()
    }

    /// Closes all descriptors on the mount, so that it can be unmounted. Pulls go on, and drop what is cached.
    pub fn close_all(&self) {
        let hidden = locked(&self.hidden).directory.take();
        let own: Vec<_> = locked(&self.written).values_mut().filter_map(|file| file.own.take()).collect();
        let closing = own.into_iter().chain(hidden).map(|own| {
            let closing = Arc::downgrade(&own);
            let _ = self.to_close.send(own);
            closing
        });
        let closing: Vec<_> = closing.collect();
        let patience = Instant::now() + PATIENCE;
        while closing.iter().any(|own| own.strong_count() > 0) && Instant::now() < patience {
            std::thread::sleep(MOMENT);
        }
    }

    /// Whether the hidden directory is looked up by this name in the root.
    pub fn is_hidden(&self, name: &OsStr) -> bool {
        locked(&self.hidden).name.as_deref() == Some(name)
    }

    /// The hidden directory has given the kernel an inode.
    pub fn gave(&self, ino: Ino) {
        *locked(&self.given).entry(ino).or_default() += 1;
    }

    /// How many of `count` times that the kernel forgets were given by the tree.
    pub fn forgotten(&self, ino: Ino, count: u64) -> u64 {
        let mut given = locked(&self.given);
        let Some(own) = given.get_mut(&ino) else { return count };
        let taken = count.min(*own);
        *own -= taken;
        if *own == 0 {
            given.remove(&ino);
        }
        count - taken
    }

    /// A program has opened a file for writing.
    pub fn opened(&self, ino: Ino) {
        locked(&self.written).entry(ino).or_default().writers += 1;
    }

    /// That opening has ended.
    pub fn released(&self, ino: Ino) {
        let mut written = locked(&self.written);
        let Some(file) = written.get_mut(&ino) else { return };
        file.writers -= 1;
        if file.writers == 0
            && let Some(own) = written.remove(&ino).and_then(|file| file.own)
        {
            // If the thread is gone, so is the mount.
            let _ = self.to_close.send(own);
        }
    }

    /// A descriptor of the file; none if that cannot be had.
    fn descriptor(&self, ino: Ino) -> Option<Arc<OwnedFd>> {
        if let Some(own) = locked(&self.written).get(&ino)?.own.clone() {
            return Some(own);
        }
        let hidden = locked(&self.hidden).directory.clone()?;
        let name = OsString::from(ino.to_string());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let opened = rustix::fs::openat(&*hidden, &name, flags, Mode::empty());
        // Else the name would keep the inode when all its other names and openings are gone.
        let _ = self.device.drop_name(HIDDEN, &name);
        let own = Arc::new(opened.ok()?);
        let mut written = locked(&self.written);
        match written.get_mut(&ino) {
            Some(Written { own: Some(first), .. }) => {
                let _ = self.to_close.send(own);
                Some(Arc::clone(first))
            }
            Some(file) => Some(Arc::clone(file.own.insert(own))),
            // The last writer has gone meanwhile, and closing has sent everything.
            None => {
                let _ = self.to_close.send(Arc::clone(&own));
                Some(own)
            }
        }
    }
}

impl Pull for KernelPull {
    fn pull(&self, ino: Ino) -> Result<()> {
        if self.ended.load(Ordering::Acquire) || !locked(&self.written).contains_key(&ino) {
            return Ok(());
        }
        let Some(own) = self.descriptor(ino) else { return self.device.drop_cache(ino) };
        let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        // SAFETY: a system call on a descriptor that is open as long as `own` is there; it takes no memory.
        let result = unsafe { libc::sync_file_range(own.as_raw_fd(), 0, 0, all) };
        match result {
            0 => Ok(()),
            _ => Err(Errno(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))),
        }
    }
}

/// Closes descriptors on the mount, until there is no [`KernelPull`] any more.
///
/// Closing waits for the file's lock, which the program of a handler may hold: a thread must do it that serves nothing,
/// and no handler may have the last reference.
pub fn close_descriptors(to_close: &Receiver<Arc<OwnedFd>>) {
    for own in to_close {
        while Arc::strong_count(&own) > 1 {
            std::thread::sleep(MOMENT);
        }
    }
}

/// For root, in a mount of its own that no namespace has: it does not keep the mount point busy.
fn open_unseen(path: &Path) -> io::Result<OwnedFd> {
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if let Ok(tree) = rustix::mount::open_tree(rustix::fs::CWD, path, clone) {
        return Ok(tree);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// A number that nobody can guess.
fn rand_u128() -> u128 {
    let mut bytes = [0; 16];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    assert_eq!(got, Ok(bytes.len()), "the system has random numbers");
    u128::from_ne_bytes(bytes)
}
