//! The program's record locks (`fcntl`, `lockf`) on a managed file. The kernel drops all of them whenever the process
//! closes any descriptor of the file, Untorn's own included. So they are recorded, and taken again.

use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

use super::posix_descriptor::system;
use crate::boundary::error::Result;

/// A lock, with offsets from the beginning of the file. `end` is exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lock {
    kind: c_int,
    start: i64,
    end: i64,
}

/// The locks of a file, which do not overlap.
#[derive(Default)]
pub(crate) struct RecordLocks {
    locks: Mutex<Vec<Lock>>,
}

/// Adds a lock over others, as the kernel does.
fn lay(locks: &mut Vec<Lock>, new: Lock) {
    let mut kept = Vec::new();
    for old in locks.drain(..) {
        for (start, end) in [(old.start, old.end.min(new.start)), (old.start.max(new.end), old.end)] {
            if start < end {
                kept.push(Lock { start, end, ..old });
            }
        }
    }
    if new.kind != libc::F_UNLCK as c_int {
        kept.push(new);
    }
    *locks = kept;
}

impl RecordLocks {
    /// Records the effect of a call that was just made. `base` is the offset to which the call's `l_whence` refers.
    pub fn note(&self, done: &libc::flock, base: i64) {
        let at = base.saturating_add(done.l_start);
        let (start, end) = match done.l_len {
            0 => (at, i64::MAX),
            len if len < 0 => (at.saturating_add(len), at),
            len => (at, at.saturating_add(len)),
        };
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        lay(&mut locks, Lock { kind: done.l_type.into(), start, end });
    }

    pub fn is_empty(&self) -> bool {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Takes all locks again.
    pub fn retake(&self, fd: c_int) -> Result<()> {
        for lock in self.locks.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            // SAFETY: zeros are a valid `flock`.
            let mut again: libc::flock = unsafe { std::mem::zeroed() };
            again.l_type = lock.kind as _;
            again.l_whence = libc::SEEK_SET as _;
            again.l_start = lock.start;
            again.l_len = if lock.end == i64::MAX { 0 } else { lock.end - lock.start };
            // SAFETY: `again` is valid during the call.
            if unsafe { libc::fcntl(fd, libc::F_SETLK, &raw const again) } != 0 {
                return Err(system("take the program's record locks again, which closing a descriptor dropped"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_laid_over_others() {
        let lock = |kind: c_int, start, end| Lock { kind, start, end };
        let (read, write, none) = (libc::F_RDLCK as c_int, libc::F_WRLCK as c_int, libc::F_UNLCK as c_int);
        let mut locks = vec![];
        lay(&mut locks, lock(write, 0, 10));
        lay(&mut locks, lock(read, 5, 20));
        assert_eq!(locks, [lock(write, 0, 5), lock(read, 5, 20)]);
        lay(&mut locks, lock(none, 7, 8));
        assert_eq!(locks, [lock(write, 0, 5), lock(read, 5, 7), lock(read, 8, 20)]);
        lay(&mut locks, lock(none, 0, i64::MAX));
        assert!(locks.is_empty());
    }
}
