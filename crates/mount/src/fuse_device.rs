//! The descriptor of `/dev/fuse`: requests come from it, answers and notifications go to it.

use crate::fuse_protocol::{Answer, notification};
use rustix::fd::OwnedFd;
use rustix::io::Errno as SystemErrno;
use untorn_tree::{Errno, Ino};

/// Why no request comes any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The file system is unmounted, and all that programs wrote was sent before.
    Unmounted,
    /// The connection was cut (`umount -f`, an administrator): what the kernel had not sent is lost.
    Aborted,
}

/// One connection with the kernel. Any number of threads use it at a time.
pub struct Device {
    descriptor: OwnedFd,
}

impl Device {
    /// The connection that a mounted descriptor is.
    pub fn new(descriptor: OwnedFd) -> Device {
        Device { descriptor }
    }

    /// The next request, in `buffer`: its length.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<usize, End> {
        loop {
            match rustix::io::read(&self.descriptor, &mut *buffer) {
                Ok(len) => return Ok(len),
                // ENOENT: the program was interrupted before the request was read.
                Err(SystemErrno::INTR | SystemErrno::AGAIN | SystemErrno::NOENT) => {}
                Err(SystemErrno::NODEV) => return Err(End::Unmounted),
                Err(_) => return Err(End::Aborted),
            }
        }
    }

    /// Answers a request. If the program or the mount is gone, nobody waits for it.
    pub fn answer(&self, unique: u64, answer: Result<Answer, Errno>) {
        let message = match answer {
            Ok(answer) => answer.message(unique, 0),
            Err(Errno(error)) => Answer::default().message(unique, -error),
        };
        let _ = rustix::io::write(&self.descriptor, &message);
    }

    fn notify(&self, code: i32, answer: Answer) -> Result<(), Errno> {
        match rustix::io::write(&self.descriptor, &answer.message(0, code)) {
            // The kernel does not have it in its cache.
            Ok(_) | Err(SystemErrno::NOENT) => Ok(()),
            Err(e) => Err(Errno(e.raw_os_error())),
        }
    }

    /// Makes the kernel send what is dirty of a file, and drop what it has of the contents.
    pub fn drop_cache(&self, ino: Ino) -> Result<(), Errno> {
        self.notify(notification::INVAL_INODE, Answer::default().u64(ino).u64(0).u64(0))
    }

    /// Makes the kernel ask once more what it asked and was not answered, as the process that was asked has ended.
    pub fn ask_again(&self) -> Result<(), Errno> {
        self.notify(notification::RESEND, Answer::default())
    }
}
