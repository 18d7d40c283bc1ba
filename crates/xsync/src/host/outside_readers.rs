//! Holds outside readers of a session's directory until a commit, by permission events of fanotify, which root answers.
//!
//! The kernel asks whenever a process opens or reads a file or directory of the file system, on any mount but the
//! session's own. When the group is closed, for any reason, the kernel lets all waiting processes go on.

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const ASKED: u64 = libc::FAN_OPEN_PERM | libc::FAN_ACCESS_PERM | libc::FAN_ONDIR;
/// FAN_MARK_IGNORE of Linux 6.0, which also works for directories.
const MARK_IGNORE: libc::c_uint = 0x400;
/// FAN_DENY with an error of its own (Linux 6.13), in the upper eight bits.
const DENY_AS_FAILED: u32 = libc::FAN_DENY | (libc::EIO as u32) << 24;
const EVENTS_BYTES: usize = 256 * size_of::<libc::fanotify_event_metadata>();

/// The processes outside of one session that open or read files of a file system.
#[derive(Debug)]
pub struct OutsideReaders {
    group: OwnedFd,
}

impl OutsideReaders {
    /// Starts to hold outside readers until they are answered. `mount` is the session's own mount.
    pub fn hold(mount: BorrowedFd<'_>) -> Result<OutsideReaders> {
        let kind = libc::FAN_CLASS_CONTENT | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
        let flags = kind | libc::FAN_UNLIMITED_QUEUE | libc::FAN_UNLIMITED_MARKS;
        let event_flags = (libc::O_RDONLY | libc::O_LARGEFILE | libc::O_CLOEXEC) as libc::c_uint;
        // SAFETY: numbers only.
        let group = unsafe { libc::fanotify_init(flags, event_flags) };
        if group < 0 {
            return Err(io::Error::last_os_error()).context(
                "cannot hold outside readers (fanotify); it needs root and CONFIG_FANOTIFY_ACCESS_PERMISSIONS",
            );
        }
        // SAFETY: the call has just returned this descriptor, and nobody else has it.
        let readers = OutsideReaders { group: unsafe { OwnedFd::from_raw_fd(group) } };
        // The exception comes first, so that no process in the session is held.
        let ours = libc::FAN_MARK_ADD | libc::FAN_MARK_MOUNT | libc::FAN_MARK_IGNORED_SURV_MODIFY;
        readers
            .mark(ours | MARK_IGNORE, mount)
            .or_else(|_| readers.mark(ours | libc::FAN_MARK_IGNORED_MASK, mount))
            .context("cannot leave out the session's own accesses (fanotify)")?;
        readers
            .mark(libc::FAN_MARK_ADD | libc::FAN_MARK_FILESYSTEM, mount)
            .context("cannot hold outside readers of the file system (fanotify)")?;
        Ok(readers)
    }

    fn mark(&self, flags: libc::c_uint, mount: BorrowedFd<'_>) -> io::Result<()> {
        let (group, mount) = (self.group.as_raw_fd(), mount.as_raw_fd());
        // SAFETY: without a path the descriptor itself is meant.
        let done = unsafe { libc::fanotify_mark(group, flags, ASKED, mount, std::ptr::null()) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Answers all waiting readers after one commit, and returns their number. If the commit fails, they get an error.
    ///
    /// `commit` must not open or read anything of the file system, because nobody would answer.
    pub fn answer(&self, commit: impl FnOnce() -> Result<()>) -> Result<u64> {
        let mut events = vec![0_u8; EVENTS_BYTES];
        let bytes = match rustix::io::read(&self.group, &mut events) {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(0),
            read => read.context("events of outside readers (fanotify)")?,
        };
        let waiting: Vec<OwnedFd> = descriptors(&events[..bytes]);
        let durable = commit().is_ok();
        for file in &waiting {
            let answer = |response| {
                let response = libc::fanotify_response { fd: file.as_raw_fd(), response };
                // SAFETY: a structure of two numbers.
                let bytes = unsafe { std::slice::from_raw_parts((&raw const response).cast(), size_of_val(&response)) };
                rustix::io::write(&self.group, bytes)
            };
            if durable {
                // Fails if the reader has been killed meanwhile, which needs no answer.
                let _ = answer(libc::FAN_ALLOW);
            } else if answer(DENY_AS_FAILED) == Err(Errno::INVAL) {
                let _ = answer(libc::FAN_DENY);
            }
        }
        Ok(waiting.len() as u64)
    }

    /// Whether a reader waits.
    pub fn somebody_waits(&self) -> bool {
        let mut ready = [PollFd::new(&self.group, PollFlags::IN)];
        let at_once = rustix::event::Timespec::default();
        poll(&mut ready, Some(&at_once)).is_ok_and(|ready| ready > 0)
    }
}

impl AsFd for OutsideReaders {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.group.as_fd()
    }
}

/// The files that the waiting readers have open, or are about to open.
fn descriptors(mut events: &[u8]) -> Vec<OwnedFd> {
    let mut found = Vec::new();
    while events.len() >= size_of::<libc::fanotify_event_metadata>() {
        // SAFETY: the kernel wrote a whole structure here, of numbers only.
        let event = unsafe { events.as_ptr().cast::<libc::fanotify_event_metadata>().read_unaligned() };
        if event.fd >= 0 {
            // SAFETY: the kernel has made this descriptor for the process that reads the event.
            found.push(unsafe { OwnedFd::from_raw_fd(event.fd) });
        }
        events = events.get(event.event_len.max(1) as usize..).unwrap_or_default();
    }
    found
}
