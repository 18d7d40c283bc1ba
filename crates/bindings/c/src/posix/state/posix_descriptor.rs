//! Queries of the kernel about a descriptor, its file and its flags; and about a path.

use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::boundary::error::untorn_error::{UNTORN_E_IO, UNTORN_E_UNSUPPORTED};
use crate::boundary::error::{Failure, Result};

/// The kernel's identity of a file: device and inode.
pub(crate) type Key = (libc::dev_t, libc::ino_t);

/// A failure with an errno and a message.
pub(crate) fn failure(errno: c_int, message: impl Into<String>) -> Failure {
    Failure { errno, ..Failure::invalid(message) }
}

/// The refusal of a call that would be wrong for a managed file.
pub(crate) fn refusal(errno: c_int, message: impl Into<String>) -> Failure {
    Failure { kind: UNTORN_E_UNSUPPORTED, ..failure(errno, message) }
}

/// The failure of a system call that was made on the caller's behalf.
pub(crate) fn system(what: &str) -> Failure {
    let e = io::Error::last_os_error();
    let errno = e.raw_os_error().unwrap_or(libc::EIO);
    Failure { kind: UNTORN_E_IO, errno, message: format!("cannot {what}: {e}") }
}

/// The `fstat` of a descriptor. None: not an open descriptor.
pub(crate) fn stat(fd: c_int) -> Option<libc::stat> {
    // SAFETY: zeros are a valid `stat`, and the kernel fills it.
    let mut stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is writable; a number that is no descriptor is an error.
    (unsafe { libc::fstat(fd, &raw mut stat) } == 0).then_some(stat)
}

/// The identity of a descriptor's file. None: not an open descriptor.
pub(crate) fn identity(fd: c_int) -> Option<Key> {
    untorn_os::file_identity(fd)
}

/// The `lstat` of a path. None: no such file.
pub(crate) fn lstat(path: &Path) -> Option<libc::stat> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: zeros are a valid `stat`, and the kernel fills it.
    let mut stat = unsafe { std::mem::zeroed() };
    // SAFETY: `path` ends in NUL, and `stat` is writable.
    (unsafe { libc::lstat(path.as_ptr(), &raw mut stat) } == 0).then_some(stat)
}

/// The identity in a `stat`.
pub(crate) fn key_of(stat: &libc::stat) -> Key {
    (stat.st_dev, stat.st_ino)
}

/// The open descriptors of a file, except some. They are examined by path, because other threads open and close
/// descriptors in the meantime.
pub(crate) fn open_descriptors(key: Key, except: &dyn Fn(c_int) -> bool) -> Vec<c_int> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let is_of = |path: &Path| std::fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == key);
    let found = entries.flatten().filter(|entry| is_of(&entry.path()));
    let numbers = found.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|fd| !except(*fd)).collect()
}

/// Opens the file of a descriptor once more.
pub(crate) fn reopen(fd: c_int, flags: c_int) -> Result<OwnedFd> {
    let path = CString::new(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    // SAFETY: `path` ends in NUL.
    match unsafe { libc::open(path.as_ptr(), flags) } {
        -1 => Err(system("open the file once more")),
        // SAFETY: opened here, and known to no other code.
        own => Ok(unsafe { OwnedFd::from_raw_fd(own) }),
    }
}

/// The path of a descriptor's file.
pub(crate) fn path_of(fd: c_int) -> Result<PathBuf> {
    let gone = || failure(libc::ENOENT, "the descriptor's file has no name any more");
    let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).map_err(|_| gone())?;
    let named = std::fs::symlink_metadata(&path).map_err(|_| gone())?;
    match stat(fd) {
        Some(stat) if (stat.st_dev, stat.st_ino) == (named.dev(), named.ino()) => Ok(path),
        _ => Err(gone()),
    }
}

pub(crate) fn is_regular(stat: &libc::stat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFREG
}

/// A descriptor's flags, `O_ACCMODE` and `O_APPEND` among them.
pub(crate) fn flags(fd: c_int) -> Result<c_int> {
    // SAFETY: asks only.
    match unsafe { libc::fcntl(fd, libc::F_GETFL) } {
        -1 => Err(system("ask for the descriptor's flags")),
        flags => Ok(flags),
    }
}

/// Fails unless the descriptor was opened for writing. Returns its flags.
pub(crate) fn check_writable(fd: c_int) -> Result<c_int> {
    match flags(fd)? {
        flags if flags & libc::O_ACCMODE == libc::O_RDONLY => {
            Err(failure(libc::EBADF, "the descriptor is for reading only"))
        }
        flags => Ok(flags),
    }
}

/// Fails unless the descriptor was opened for reading.
pub(crate) fn check_readable(fd: c_int) -> Result<()> {
    match flags(fd)? & libc::O_ACCMODE {
        libc::O_WRONLY => Err(failure(libc::EBADF, "the descriptor is for writing only")),
        _ => Ok(()),
    }
}

/// Moves a descriptor's own offset.
pub(crate) fn seek(fd: c_int, offset: libc::off_t, whence: c_int) -> Result<libc::off_t> {
    // SAFETY: takes numbers.
    match unsafe { libc::lseek(fd, offset, whence) } {
        -1 => Err(system("seek")),
        at => Ok(at),
    }
}

/// A path relative to the directory of a descriptor, in a form that every call takes.
///
/// # Safety
/// `path` is NULL or ends in NUL.
pub(crate) unsafe fn path_at(dir: c_int, path: *const c_char) -> Option<PathBuf> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
    match dir {
        libc::AT_FDCWD => Some(path.to_owned()),
        _ if path.is_absolute() => Some(path.to_owned()),
        dir => Some(Path::new("/proc/self/fd").join(dir.to_string()).join(path)),
    }
}
