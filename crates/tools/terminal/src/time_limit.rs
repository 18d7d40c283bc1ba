//! Calls to a file system with a time limit.
//!
//! The daemon or server behind the file system may be stopped, or wait for something itself.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The time limit for an answer. A working file system answers at once, unless a lock is held meanwhile.
pub const ANSWER_MAX: Duration = Duration::from_secs(5);
/// The largest size of an answer, which fits into a pipe.
const ROOM: usize = 64 << 10;

/// Runs a question in a process of its own. Returns its answer, or none if there is none in time.
///
/// A call that the other side has accepted and does not answer cannot be ended, and holds the process that made it. The
/// answer is the bytes that the question writes to the descriptor, at most 64 KiB.
///
/// The question may only make system calls, because other threads may hold any lock.
///
/// # Errors
/// The process cannot be started.
pub fn ask(question: impl FnOnce(BorrowedFd<'_>)) -> io::Result<Option<Vec<u8>>> {
    let (answer, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    // SAFETY: the child only makes system calls, on existing data, and ends.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        0 => {
            question(theirs.as_fd());
            // SAFETY: ends this process; no code of its parent runs.
            unsafe { libc::_exit(0) }
        }
        child => child,
    };
    drop(theirs);
    let end = Instant::now() + ANSWER_MAX;
    let mut bytes = vec![0; ROOM];
    let mut len = 0;
    let ended = loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&answer, PollFlags::IN)], Some(&left)) {
            Ok(0) => break false,
            Err(Errno::INTR) => continue,
            done => drop(done?),
        }
        match rustix::io::read(&answer, &mut bytes[len..])? {
            0 => break true,
            more => len += more,
        }
    };
    // SAFETY: a child of this process, for which nothing else waits; it may be unable to end.
    unsafe {
        if !ended {
            libc::kill(child, libc::SIGKILL);
        }
        libc::waitpid(child, std::ptr::null_mut(), if ended { 0 } else { libc::WNOHANG });
    }
    bytes.truncate(len);
    Ok(ended.then_some(bytes))
}

/// Asks the file system of a path for its state (`statfs`). None if it does not answer in time.
///
/// # Errors
/// The question cannot be asked.
pub fn file_system(path: &Path) -> io::Result<Option<rustix::io::Result<()>>> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let answer = ask(|to| {
        let error = rustix::fs::statfs(&path).map_or_else(Errno::raw_os_error, |_| 0);
        let _ = rustix::io::write(to, &error.to_ne_bytes());
    })?;
    let Some(bytes) = answer else { return Ok(None) };
    let error =
        bytes.try_into().map(i32::from_ne_bytes).map_err(|_| io::Error::other("the process that asks was killed"))?;
    Ok(Some(if error == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(error)) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_comes_whole_and_none_is_not_waited_for() {
        let said =
            ask(|to| [&b"so"[..], b" it is"].iter().for_each(|part| assert!(rustix::io::write(to, part).is_ok())))
                .unwrap();
        assert_eq!(said.as_deref(), Some(&b"so it is"[..]));
        let never = ask(|_| {
            loop {
                // SAFETY: only waits.
                unsafe { libc::pause() };
            }
        });
        assert_eq!(never.unwrap(), None);
        assert_eq!(file_system(Path::new("/")).unwrap(), Some(Ok(())));
        assert_eq!(file_system(Path::new("/none")).unwrap(), Some(Err(Errno::NOENT)));
    }
}
