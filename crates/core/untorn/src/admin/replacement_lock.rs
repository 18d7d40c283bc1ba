//! Replacement locks: replacements of one file, or of files of one store, wait for each other.
//!
//! A replacement lock is an `flock`, which the kernel releases whenever its process ends. So an unlocked file is a
//! remnant of a killed replacement, and the next one removes it.

use rustix::fs::{self, AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use untorn_os::{above_standard, directory_above_standard};

/// More tries than other replacements of one file can require.
const TRIES_MAX: usize = 10_000;

fn lock(file: impl AsFd, how: FlockOperation) -> rustix::io::Result<()> {
    loop {
        match fs::flock(&file, how) {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

/// Whether a name in a directory leads to an open file.
fn leads_to(dir: &OwnedFd, name: &str, file: &OwnedFd) -> rustix::io::Result<bool> {
    let held = fs::fstat(file)?;
    match fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(named) => Ok((named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Creates a file of this name and locks it. Waits for a process that has such a file, and removes one that a killed
/// process left. `None`: another object has the name, or the file system does not support locks.
pub(crate) fn create_locked(
    dir: &OwnedFd,
    name: &str,
    mode: Mode,
    owners: &[u32],
) -> rustix::io::Result<Option<OwnedFd>> {
    let look = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let make = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for _ in 0..TRIES_MAX {
        match above_standard(|| fs::openat(dir, name, make, mode)) {
            Ok(file) => match lock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if leads_to(dir, name, &file)? => return Ok(Some(file)),
                // Another process took the file for a remnant before it was locked.
                Ok(()) | Err(Errno::WOULDBLOCK) => {}
                Err(_) => {
                    let _ = fs::unlinkat(dir, name, AtFlags::empty());
                    return Ok(None);
                }
            },
            Err(Errno::EXIST) => {
                let found = match above_standard(|| fs::openat(dir, name, look, Mode::empty())) {
                    Ok(found) => found,
                    Err(Errno::NOENT) => continue,
                    Err(_) => return Ok(None),
                };
                let stat = fs::fstat(&found)?;
                let file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
                // A name that another user planted must not make anybody wait.
                if !file || stat.st_nlink > 1 || !owners.contains(&stat.st_uid) {
                    return Ok(None);
                }
                if lock(&found, FlockOperation::LockExclusive).is_err() {
                    return Ok(None);
                }
                if leads_to(dir, name, &found)? && fs::unlinkat(dir, name, AtFlags::empty()).is_err() {
                    return Ok(None);
                }
            }
            Err(e) => return Err(e),
        }
    }
    Ok(None)
}

/// Releases the lock of a file that [`create_locked`] made.
pub(crate) fn unlock(file: &OwnedFd) {
    let _ = lock(file, FlockOperation::Unlock);
}

/// Takes the replacement lock of a store directory, and waits for it. `None`: there is no such directory, or this user
/// may not open it.
pub(crate) fn lock_directory(path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for _ in 0..TRIES_MAX {
        let dir = directory_above_standard(|| fs::open(path, flags, Mode::empty())).ok()?;
        lock(&dir, FlockOperation::LockExclusive).ok()?;
        let (held, named) = (fs::fstat(&dir).ok()?, fs::lstat(path).ok()?);
        if (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino) {
            return Some(dir);
        }
    }
    None
}
