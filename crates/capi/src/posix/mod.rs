//! Calls in the shape of POSIX, on ordinary descriptors: what `include/untorn_posix.h` puts in the place
//! of `open`, `mmap`, `msync` and their kin in one source file.
//!
//! A file is **managed** from the first shared, writable map of it (or from its opening, if it has a store
//! beside it already) until the last of its descriptors and maps is gone. A call on any descriptor of a
//! managed file is a call on the file as Untorn shows it; everything else goes to the C library as it
//! came. Which file a descriptor is of is asked of the kernel each time, and so are its offset and its
//! flags: so `dup`, descriptors of other origin and numbers that are used again need no care here.

mod data;
mod map;
mod open;
mod table;

use crate::error::{Failure, Result};
use std::ffi::c_int;
use std::io;

/// The kernel's identity of a file.
type Key = (libc::dev_t, libc::ino_t);

/// An errno with a message.
fn failure(errno: c_int, message: impl Into<String>) -> Failure {
    Failure { errno, ..Failure::invalid(message) }
}

/// The failure of a system call that was made on the caller's behalf.
fn system(what: &str) -> Failure {
    let e = io::Error::last_os_error();
    let errno = e.raw_os_error().unwrap_or(libc::EIO);
    Failure { kind: crate::error::untorn_error::UNTORN_E_IO, errno, message: format!("cannot {what}: {e}") }
}

/// What the kernel knows of a descriptor's file.
fn stat(fd: c_int) -> Option<libc::stat> {
    // SAFETY: zeros are a valid `stat`, and the kernel fills it.
    let mut stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is writable; a descriptor that is none is answered by an error.
    (unsafe { libc::fstat(fd, &raw mut stat) } == 0).then_some(stat)
}

fn is_regular(stat: &libc::stat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFREG
}

/// A descriptor's flags, `O_ACCMODE` and `O_APPEND` among them.
fn flags(fd: c_int) -> Result<c_int> {
    // SAFETY: asks only.
    match unsafe { libc::fcntl(fd, libc::F_GETFL) } {
        -1 => Err(system("ask for the descriptor's flags")),
        flags => Ok(flags),
    }
}

/// The descriptor was opened for writing.
fn check_writable(fd: c_int) -> Result<c_int> {
    match flags(fd)? {
        flags if flags & libc::O_ACCMODE == libc::O_RDONLY => {
            Err(failure(libc::EBADF, "the descriptor is for reading only"))
        }
        flags => Ok(flags),
    }
}

/// The descriptor was opened for reading.
fn check_readable(fd: c_int) -> Result<()> {
    match flags(fd)? & libc::O_ACCMODE {
        libc::O_WRONLY => Err(failure(libc::EBADF, "the descriptor is for writing only")),
        _ => Ok(()),
    }
}
