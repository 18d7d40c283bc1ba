//! Locks on bytes of a file, of an open file description. They conflict with those of other descriptions, and with the
//! POSIX locks of every process.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::Errno;

/// Another lock on some of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteLock {
    /// The process that has it; `None` for a lock of an open file description, which processes may share.
    pub pid: Option<u32>,
    /// Whether it lets others read.
    pub is_shared: bool,
}

/// Locks bytes of a file that is open for writing, until it is closed. Returns false if another lock conflicts; with
/// `wait`, waits for its end.
pub fn lock_bytes(file: &File, range: Range<u64>, wait: bool) -> io::Result<bool> {
    let command = if wait { libc::F_OFD_SETLKW } else { libc::F_OFD_SETLK };
    loop {
        match ask_lock(file.as_fd(), libc::F_WRLCK, command, range.clone()) {
            Ok(_) => return Ok(true),
            Err(e) => match Errno::from_io_error(&e) {
                Some(Errno::INTR) => {}
                Some(Errno::AGAIN | Errno::ACCESS) => return Ok(false),
                _ => return Err(e),
            },
        }
    }
}

/// A lock of others on some of the bytes, if there is one.
pub fn lock_of_others(file: &File, range: Range<u64>) -> io::Result<Option<ByteLock>> {
    let found = ask_lock(file.as_fd(), libc::F_WRLCK, libc::F_OFD_GETLK, range)?;
    let kind = libc::c_int::from(found.l_type);
    Ok((kind != libc::F_UNLCK).then(|| ByteLock {
        pid: u32::try_from(found.l_pid).ok().filter(|pid| *pid != 0),
        is_shared: kind == libc::F_RDLCK,
    }))
}

/// Takes, gives back or asks for a lock; `0..0` is the whole file.
pub(super) fn ask_lock(
    fd: BorrowedFd<'_>,
    kind: libc::c_int,
    command: libc::c_int,
    range: Range<u64>,
) -> io::Result<libc::flock> {
    let number = |n: u64| libc::off_t::try_from(n).map_err(|_| io::Error::from(Errno::OVERFLOW));
    // SAFETY: all-zero is a valid `flock`: the whole file, from its start.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = number(range.start)?;
    lock.l_len = number(range.end - range.start)?;
    // SAFETY: a live descriptor and a valid `flock`, which the kernel may fill.
    if unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw mut lock) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(lock)
}
