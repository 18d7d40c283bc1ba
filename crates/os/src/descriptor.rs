//! File descriptors that end at `fork`.

use crate::fork::{process_generation, register};
use rustix::io::Errno;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

/// A descriptor that is close-on-exec and closed in forked children.
#[derive(Debug)]
pub struct Fd {
    fd: ManuallyDrop<OwnedFd>,
    slot: &'static AtomicI32,
    generation: u64,
}

impl Fd {
    /// Takes a descriptor, which the program never opened.
    pub fn new(fd: OwnedFd) -> Fd {
        let slot = register(fd.as_raw_fd());
        Fd { fd: ManuallyDrop::new(fd), slot, generation: process_generation() }
    }

    /// The descriptor; in a forked child, where it is closed, `EBADF`.
    pub fn get(&self) -> io::Result<BorrowedFd<'_>> {
        if self.generation == process_generation() { Ok(self.fd.as_fd()) } else { Err(Errno::BADF.into()) }
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        if self.generation == process_generation() {
            self.slot.store(-1, SeqCst);
            // SAFETY: dropped once, here; in a forked child it was closed already and its number reused.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}
