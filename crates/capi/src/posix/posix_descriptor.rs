//! What the kernel knows of a descriptor: its file and its flags.

use std::ffi::c_int;
use std::io;

use crate::error::untorn_error::UNTORN_E_IO;
use crate::error::{Failure, Result};

/// The kernel's identity of a file: device and inode.
pub(super) type Key = (libc::dev_t, libc::ino_t);

/// A failure with an errno and a message.
pub(super) fn failure(errno: c_int, message: impl Into<String>) -> Failure {
    Failure { errno, ..Failure::invalid(message) }
}

/// The failure of a system call that was made on the caller's behalf.
pub(super) fn system(what: &str) -> Failure {
    let e = io::Error::last_os_error();
    let errno = e.raw_os_error().unwrap_or(libc::EIO);
    Failure { kind: UNTORN_E_IO, errno, message: format!("cannot {what}: {e}") }
}

/// The `fstat` of a descriptor. None: not an open descriptor.
pub(super) fn stat(fd: c_int) -> Option<libc::stat> {
    // SAFETY: zeros are a valid `stat`, and the kernel fills it.
    let mut stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is writable; a number that is no descriptor is an error.
    (unsafe { libc::fstat(fd, &raw mut stat) } == 0).then_some(stat)
}

pub(super) fn is_regular(stat: &libc::stat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFREG
}

/// A descriptor's flags, `O_ACCMODE` and `O_APPEND` among them.
pub(super) fn flags(fd: c_int) -> Result<c_int> {
    // SAFETY: asks only.
    match unsafe { libc::fcntl(fd, libc::F_GETFL) } {
        -1 => Err(system("ask for the descriptor's flags")),
        flags => Ok(flags),
    }
}

/// Fails unless the descriptor was opened for writing. Returns its flags.
pub(super) fn check_writable(fd: c_int) -> Result<c_int> {
    match flags(fd)? {
        flags if flags & libc::O_ACCMODE == libc::O_RDONLY => {
            Err(failure(libc::EBADF, "the descriptor is for reading only"))
        }
        flags => Ok(flags),
    }
}

/// Fails unless the descriptor was opened for reading.
pub(super) fn check_readable(fd: c_int) -> Result<()> {
    match flags(fd)? & libc::O_ACCMODE {
        libc::O_WRONLY => Err(failure(libc::EBADF, "the descriptor is for writing only")),
        _ => Ok(()),
    }
}
