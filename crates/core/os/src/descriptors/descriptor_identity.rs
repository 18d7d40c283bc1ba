//! The identity of a descriptor's file: a program may close our descriptors and reuse their numbers for its own files.

use rustix::fs::{self, AtFlags, StatxFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};

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
    ///
    /// Does not ask for times: after a query of those, Linux 6.13 and newer give the next write a finer time, and the
    /// file system logs that, which takes longer than the write.
    pub(crate) fn of(fd: RawFd) -> io::Result<Identity> {
        // `borrow_raw` does not take this number.
        if fd < 0 {
            return Err(Errno::BADF.into());
        }
        // SAFETY: used for this call only; a number that is no descriptor is an error.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let as_known = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        match fs::statx(fd, c"", as_known, StatxFlags::INO) {
            Ok(found) => {
                let device = fs::makedev(found.stx_dev_major, found.stx_dev_minor);
                Ok(Identity { device, inode: found.stx_ino })
            }
            // Linux before 4.11; filters of containers that do not know the call.
            Err(Errno::NOSYS | Errno::PERM) => {
                let found = fs::fstat(fd)?;
                Ok(Identity { device: found.st_dev, inode: found.st_ino })
            }
            Err(e) => Err(e.into()),
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

/// Device and inode of a descriptor's file, as `fstat` has them. `None`: not an open descriptor. Async-signal-safe.
pub fn file_identity(fd: RawFd) -> Option<(u64, u64)> {
    Identity::of(fd).ok().map(|found| (found.device, found.inode))
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, metadata};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_identity_is_that_of_fstat() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("f")).unwrap();
        for (file, path) in [(&file, dir.path().join("f")), (&File::open(dir.path()).unwrap(), dir.path().to_owned())] {
            let meta = metadata(path).unwrap();
            assert_eq!(file_identity(file.as_raw_fd()), Some((meta.dev(), meta.ino())));
        }
        // A device has another device number than its file system.
        let null = File::open("/dev/null").unwrap();
        let meta = null.metadata().unwrap();
        assert_eq!(file_identity(null.as_raw_fd()), Some((meta.dev(), meta.ino())));
        assert_eq!(file_identity(-1), None);
        assert_eq!(file_identity(1 << 20), None);
    }
}
