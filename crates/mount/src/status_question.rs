//! The question how a mount is, with a time limit.

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};
use untorn_os::mount_calls::{self, STATUS_BYTES};

/// How long an answer may take. A daemon that works answers at once, but for a lock that is held while a commit is asked for.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Bytes before the text: an error number and a device.
const ANSWER_HEAD: usize = 12;

/// What a daemon has answered, and the device of its mount.
pub type Answer = rustix::io::Result<(Vec<u8>, u64)>;

/// Asks the daemon of a mount, in a process of its own: a call that a daemon has taken and does not answer cannot be ended,
/// and holds whoever made it. None: no answer in time.
pub fn ask(path: &Path) -> Result<Option<Answer>> {
    let path = CString::new(path.as_os_str().as_bytes()).context("a path has no zero in it")?;
    let (answer, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).context("a pipe")?;
    // SAFETY: the child makes system calls alone, on what is there, and ends.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(std::io::Error::last_os_error()).context("cannot start a process"),
        0 => {
            answer_in_child(&path, &theirs);
            // SAFETY: ends this process, and nothing of its parent's is run.
            unsafe { libc::_exit(0) }
        }
        child => child,
    };
    drop(theirs);
    let end = Instant::now() + ANSWER_MAX;
    let mut bytes = vec![0; ANSWER_HEAD + STATUS_BYTES];
    let mut len = 0;
    let mut ended = false;
    while !ended {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&answer, PollFlags::IN)], Some(&left)) {
            Ok(0) => break,
            Err(Errno::INTR) => continue,
            done => drop(done.context("the answer")?),
        }
        let read = rustix::io::read(&answer, &mut bytes[len..]).context("the answer")?;
        len += read;
        ended = read == 0;
    }
    // SAFETY: the child of this process, which nobody else waits for; it may not end.
    unsafe {
        if !ended {
            libc::kill(child, libc::SIGKILL);
        }
        libc::waitpid(child, std::ptr::null_mut(), if ended { 0 } else { libc::WNOHANG });
    }
    if !ended {
        return Ok(None);
    }
    bytes.truncate(len);
    let (head, text) = bytes.split_first_chunk::<ANSWER_HEAD>().context("the process that asks was killed")?;
    let error = i32::from_ne_bytes([head[0], head[1], head[2], head[3]]);
    let device = u64::from_ne_bytes(head[4..].try_into().expect("8 bytes"));
    Ok(Some(if error == 0 { Ok((text.to_vec(), device)) } else { Err(Errno::from_raw_os_error(error)) }))
}

/// In a process that has been forked off.
fn answer_in_child(path: &CStr, to: &OwnedFd) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut said = [0; STATUS_BYTES];
    let asked = rustix::fs::open(path, flags, Mode::empty()).and_then(|directory| {
        let len = mount_calls::status_into(&directory, &mut said)?;
        Ok((len, rustix::fs::fstat(&directory)?.st_dev))
    });
    let (error, len, device) = match asked {
        Ok((len, device)) => (0, len, device),
        Err(e) => (e.raw_os_error(), 0, 0),
    };
    for part in [&error.to_ne_bytes()[..], &device.to_ne_bytes(), &said[..len]] {
        // All of it has room in a pipe.
        let _ = rustix::io::write(to, part);
    }
}
