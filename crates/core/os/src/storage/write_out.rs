//! Writing the contents of a file to the device without a flush.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Starts to write a range of a file to the device.
pub(crate) fn begin(fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
    sync_file_range(fd, offset, len, libc::SYNC_FILE_RANGE_WRITE)
}

/// Writes a whole file to the device, and waits for that. Reports earlier failures, too.
pub(crate) fn whole(fd: BorrowedFd<'_>) -> io::Result<()> {
    let wait = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    sync_file_range(fd, 0, 0, wait | libc::SYNC_FILE_RANGE_WRITE)
}

fn sync_file_range(fd: BorrowedFd<'_>, offset: u64, len: u64, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: the call takes a descriptor, which lives, and numbers.
    match unsafe { libc::sync_file_range(fd.as_raw_fd(), offset as i64, len as i64, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
