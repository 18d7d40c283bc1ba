//! Sends [marks](crate::fuse::arrivals) behind the kernel's writes.

use crate::fuse::arrivals::mark_len;
use crate::fuse::random::rand_u128;
use parking_lot::Mutex;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Advice, Mode, OFlags};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Name of the file in the hidden directory.
pub const NAME: &str = "marks";
/// Size of the file.
pub const SIZE: u64 = 1 << 62;
/// After so many marks their pages are dropped from the kernel's cache.
const CACHED_MOST: u64 = 64;
/// How often a mark is tried for which the kernel has no memory.
const TRIES: usize = 1000;

pub struct Marks {
    file: Mutex<Option<Arc<OwnedFd>>>,
    /// Number of the next mark. A mark is a part of the file that nobody has read, so that the kernel must ask for it.
    next: AtomicU64,
}

impl Marks {
    pub fn new() -> Marks {
        let places = SIZE / mark_len() as u64 / 2;
        Marks { file: Mutex::default(), next: AtomicU64::new(rand_u128() as u64 % places) }
    }

    fn file(&self, hidden: &OwnedFd) -> rustix::io::Result<Arc<OwnedFd>> {
        let mut file = self.file.lock();
        if let Some(file) = &*file {
            return Ok(Arc::clone(file));
        }
        let opened = rustix::fs::openat(hidden, NAME, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        // The kernel asks for just the bytes that are read.
        rustix::fs::fadvise(&opened, 0, None, Advice::Random)?;
        Ok(Arc::clone(file.insert(Arc::new(opened))))
    }

    /// Sends a mark, and waits until the daemon has answered all writes before it.
    pub fn send(&self, hidden: &OwnedFd) -> rustix::io::Result<()> {
        let (file, len) = (self.file(hidden)?, mark_len());
        let mut bytes = vec![0; len];
        for _ in 0..TRIES {
            let number = self.next.fetch_add(1, Relaxed);
            let read = rustix::io::pread(&file, &mut bytes, number * len as u64);
            if number.is_multiple_of(CACHED_MOST) {
                let _ = rustix::fs::fadvise(file.as_fd(), 0, None, Advice::DontNeed);
            }
            if read == Ok(len) {
                return Ok(());
            }
            std::thread::yield_now();
        }
        Err(Errno::IO)
    }
}
