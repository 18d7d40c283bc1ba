//! Locks on the directories that sessions work over.
//!
//! No other session may be over the same directory, one above or one below, whichever user began it and wherever it
//! keeps its changes.
//!
//! The locks are record locks, which the kernel drops when the session ends. They are read locks, which every user may
//! take who may read the directory. No process takes a write lock: a session only asks which lock would conflict with
//! one.

use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// The bytes of a directory that sessions lock. A lock on the first means that a session is over this directory, a lock
/// on the second that a session is over a directory in it.
const IS_HERE: i64 = 0;
const IS_BELOW: i64 = 1;

/// The locks of a session, held until this value is dropped.
#[derive(Debug)]
pub struct HeldDirectories {
    _files: Vec<File>,
}

/// Locks the directories. Fails if another session has locked one of them, or one above or below.
pub fn hold(dirs: &[PathBuf]) -> Result<HeldDirectories> {
    let mut files = Vec::new();
    for dir in dirs {
        let own = File::open(dir).with_context(|| format!("cannot open {}", dir.display()))?;
        let failed = || format!("cannot lock {}", dir.display());
        let above = dir.ancestors().skip(1).filter_map(|above| open_above(above).transpose());
        let above = above.collect::<io::Result<Vec<_>>>().with_context(failed)?;
        // Locks first, and checks then. Two sessions that begin at the same time in overlapping directories may both be
        // refused, but they never both work.
        let found = (|| {
            lock(&own, IS_HERE)?;
            above.iter().try_for_each(|file| lock(file, IS_BELOW))?;
            Ok::<_, io::Error>(match () {
                () if is_locked(&own, IS_HERE)? => Some(""),
                () if is_locked(&own, IS_BELOW)? => Some("below"),
                () if any_locked(&above, IS_HERE)? => Some("above"),
                () => None,
            })
        })();
        let found = found.with_context(failed)?;
        match found {
            None => {}
            Some("") => bail!("another session works on {}; wait for its end", dir.display()),
            Some(place) => bail!("another session works on a directory {place} {}; wait for its end", dir.display()),
        }
        files.push(own);
        files.extend(above);
    }
    Ok(HeldDirectories { _files: files })
}

/// Opens a directory above. None if this user may not read it.
fn open_above(dir: &Path) -> io::Result<Option<File>> {
    match File::open(dir) {
        Err(e) if e.kind() == ErrorKind::PermissionDenied => Ok(None),
        opened => opened.map(Some),
    }
}

fn lock(file: &File, byte: i64) -> io::Result<()> {
    ask(file, libc::F_OFD_SETLK, libc::F_RDLCK, byte).map(drop)
}

/// Whether another session has locked this byte.
fn is_locked(file: &File, byte: i64) -> io::Result<bool> {
    ask(file, libc::F_OFD_GETLK, libc::F_WRLCK, byte).map(|found| found != libc::F_UNLCK)
}

fn any_locked(files: &[File], byte: i64) -> io::Result<bool> {
    files.iter().try_fold(false, |any, file| Ok(any || is_locked(file, byte)?))
}

fn ask(file: &File, command: i32, kind: i32, byte: i64) -> io::Result<i32> {
    // SAFETY: zeros are a valid `flock`.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence) = (kind as _, libc::SEEK_SET as _);
    (lock.l_start, lock.l_len) = (byte, 1);
    // SAFETY: the call reads and fills the structure, which outlives it.
    if unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(lock.l_type.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_above_and_below_are_held_too() {
        let place = tempfile::tempdir().unwrap();
        let [a, b, c, beside] = ["a", "a/b", "a/b/c", "a/beside"].map(|name| place.path().join(name));
        std::fs::create_dir_all(&c).unwrap();
        std::fs::create_dir(&beside).unwrap();
        let held = hold(std::slice::from_ref(&b)).unwrap();
        for (dir, says) in [(&a, "below"), (&b, "works on"), (&c, "above")] {
            let e = hold(std::slice::from_ref(dir)).unwrap_err().to_string();
            assert!(e.contains(says) && e.contains("another session works on"), "{e}");
        }
        hold(&[beside]).unwrap();
        drop(held);
        // A session that was refused holds no locks.
        [a, b, c].into_iter().for_each(|dir| drop(hold(&[dir]).unwrap()));
    }
}
