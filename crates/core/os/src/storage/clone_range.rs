//! Sharing of blocks between files (reflinks).

use rustix::fs;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Lets a range of one file share blocks with a range of another. Limited to file systems on which crash tests with a
/// recorded disk have shown that `fdatasync` makes the sharing durable, because others have lost bytes in the past.
pub fn clone_range(
    to: BorrowedFd<'_>,
    offset: u64,
    from: BorrowedFd<'_>,
    from_offset: u64,
    len: u64,
) -> io::Result<()> {
    if len == 0 {
        // For the kernel, length 0 means everything up to the end.
        return Ok(());
    }
    #[allow(clippy::unnecessary_cast, reason = "it has 32 bits on other architectures")]
    let kind = fs::fstatfs(to)?.f_type as i64;
    if !matches!(kind, libc::XFS_SUPER_MAGIC | libc::BTRFS_SUPER_MAGIC) {
        return Err(Errno::OPNOTSUPP.into());
    }
    let range = libc::file_clone_range {
        src_fd: from.as_raw_fd().into(),
        src_offset: from_offset,
        src_length: len,
        dest_offset: offset,
    };
    // SAFETY: the kernel reads the structure that this request takes, and writes to no memory.
    if unsafe { libc::ioctl(to.as_raw_fd(), libc::FICLONERANGE, &raw const range) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        // File systems without this request return one or the other.
        e if matches!(Errno::from_io_error(&e), Some(Errno::NOTTY | Errno::NOSYS)) => Err(Errno::OPNOTSUPP.into()),
        e => Err(e),
    }
}
