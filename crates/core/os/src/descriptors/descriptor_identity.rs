//! The identity of a descriptor's file: a program may close our descriptors and reuse their numbers for its own files.

use rustix::io::Errno;
use std::io;
use std::os::fd::RawFd;

/// The type number of overlay file systems in `statfs`.
pub(crate) const OVERLAYFS_MAGIC: u32 = 0x794c_7630;

/// Device and inode of a descriptor's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl Identity {
    /// The identity of a descriptor's file. Async-signal-safe.
    pub(crate) fn of(fd: RawFd) -> io::Result<Identity> {
        // SAFETY: zeros are a valid `stat`, and the kernel fills it.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` is writable; a number that is no descriptor is an error.
        match unsafe { libc::fstat(fd, &raw mut stat) } {
            0 => Ok(Identity { device: stat.st_dev, inode: stat.st_ino }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whether this descriptor still belongs to this file.
    pub(crate) fn is_of(self, fd: RawFd) -> bool {
        match Identity::of(fd) {
            Ok(now) if now == self => true,
            Ok(_) => is_read_on_overlay(fd),
            // If the file system does not answer, as on a mount without its daemon, assume that the file is the same.
            Err(e) => Errno::from_io_error(&e) != Some(Errno::BADF),
        }
    }
}

/// Whether this is a read-only descriptor on an overlay. A file on an overlay over several file systems changes its
/// identity when it is copied up. A read-only descriptor can do no harm, because nothing is written through it.
fn is_read_on_overlay(fd: RawFd) -> bool {
    // SAFETY: zeros are a valid `statfs`, and the kernel fills it.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is writable; a number that is no descriptor is an error.
    let is_overlay = unsafe { libc::fstatfs(fd, &raw mut stat) } == 0 && stat.f_type as u32 == OVERLAYFS_MAGIC;
    // SAFETY: asks only.
    is_overlay && unsafe { libc::fcntl(fd, libc::F_GETFL) } & libc::O_ACCMODE == libc::O_RDONLY
}
