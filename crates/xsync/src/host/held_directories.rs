//! Directories that a session is over: no other session is over them, one above or one below, whoever began it and
//! wherever it keeps its changes.
//!
//! The kernel has the locks, and takes them away with the session: record locks for reading, which every user may have
//! who may read the directory. Nobody has one for writing; to ask who is in the way of one is allowed.

use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// What the bytes of a directory say, as far as somebody has locked them: a session is over it, or over one in it.
const IS_HERE: i64 = 0;
const IS_BELOW: i64 = 1;

/// Locks, as long as it lives.
#[derive(Debug)]
pub struct HeldDirectories {
    _files: Vec<File>,
}

/// Takes the directories, unless another session has one of them, or one above or below.
pub fn hold(dirs: &[PathBuf]) -> Result<HeldDirectories> {
    let mut files = Vec::new();
    for dir in dirs {
        let own = File::open(dir).with_context(|| format!("cannot open {}", dir.display()))?;
        let failed = || format!("cannot lock {}", dir.display());
        let above = dir.ancestors().skip(1).filter_map(|above| open_above(above).transpose());
        let above = above.collect::<io::Result<Vec<_>>>().with_context(failed)?;
        // First locked, then looked at: two sessions that begin at one moment in different places may both be refused, and
        // never both work.
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

/// None: this user may not read it.
fn open_above(dir: &Path) -> io::Result<Option<File>> {
    match File::open(dir) {
        Err(e) if e.kind() == ErrorKind::PermissionDenied => Ok(None),
        opened => opened.map(Some),
    }
}

fn lock(file: &File, byte: i64) -> io::Result<()> {
    ask(file, libc::F_OFD_SETLK, libc::F_RDLCK, byte).map(drop)
}

/// By somebody else.
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
        // A session that is refused holds nothing.
        [a, b, c].into_iter().for_each(|dir| drop(hold(&[dir]).unwrap()));
    }
}
