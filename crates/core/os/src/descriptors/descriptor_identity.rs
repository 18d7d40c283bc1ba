//! Which file a descriptor is of: a program may close our descriptors, and have their numbers for files of its own.

use rustix::io::Errno;
use std::io;
use std::os::fd::RawFd;

/// What `statfs` calls overlay file systems.
pub(crate) const OVERLAYFS_MAGIC: u32 = 0x794c_7630;

/// Which file a descriptor is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl Identity {
    /// Async-signal-safe.
    pub(crate) fn of(fd: RawFd) -> io::Result<Identity> {
        // SAFETY: zeros are a valid `stat`, and the kernel fills it.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` is writable; a number that is no descriptor is an error.
        match unsafe { libc::fstat(fd, &raw mut stat) } {
            0 => Ok(Identity { device: stat.st_dev, inode: stat.st_ino }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whether a number is still of this file.
    pub(crate) fn is_of(self, fd: RawFd) -> bool {
        match Identity::of(fd) {
            Ok(now) if now == self => true,
            Ok(_) => is_read_on_overlay(fd),
            // Of a file whose file system does not answer, as a mount without its daemon, nothing else is known.
            Err(e) => Errno::from_io_error(&e) != Some(Errno::BADF),
        }
    }
}

/// A file on an overlay whose layers are of several file systems gets another identity when it is copied up. Nothing is written
/// through a descriptor for reading.
fn is_read_on_overlay(fd: RawFd) -> bool {
    // SAFETY: zeros are a valid `statfs`, and the kernel fills it.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is writable; a number that is no descriptor is an error.
    let is_overlay = unsafe { libc::fstatfs(fd, &raw mut stat) } == 0 && stat.f_type as u32 == OVERLAYFS_MAGIC;
    // SAFETY: asks only.
    is_overlay && unsafe { libc::fcntl(fd, libc::F_GETFL) } & libc::O_ACCMODE == libc::O_RDONLY
}
