//! Relays between the session and the outside: output waits for a commit, input does not.

use crate::report::session_report::Counters;
use crate::volumes::committer::Committer;
use anyhow::{Context, Result, anyhow};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionread, read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use untorn_terminal::standard_streams::{read_some, write_rest, write_whole};

/// The most bytes that a relay holds. Further bytes stay in the kernel, where they hold up the program.
pub const HELD_BYTES_MAX: usize = 256 << 10;
/// The time by which output to a pipe or file may be delayed, so that many small outputs share one commit.
const PATIENCE: Duration = Duration::from_millis(20);
/// The interval at which a relay that waits for more output checks whether there is enough.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The kind of reader of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A person at a terminal, or a program that answers: output is never delayed.
    Waiting,
    /// A pipe or a file: output may be delayed a little.
    Patient,
}

/// The target of an output.
#[derive(Debug)]
pub struct Outlet {
    /// The descriptor that is written to.
    pub to: OwnedFd,
    /// The name for messages.
    pub name: &'static str,
    /// The kind of its reader.
    pub reader: Reader,
    /// Whether the relay goes on, and drops output, when it cannot write. This holds for standard error, because
    /// programs ignore that their messages are lost. For standard output the relay ends, and the program gets SIGPIPE.
    pub goes_on: bool,
}

/// The end of a relay to the outside.
#[derive(Debug)]
pub enum End {
    /// The session closed its side, and everything has been written.
    Closed,
    /// The outside has closed the output.
    Unread,
    /// A commit failed, so the held output is dropped.
    Held,
    /// The session's output could not be read, or not all of it could be written to the outside.
    Failed(anyhow::Error),
}

/// Relays output of the session to the outside. Each piece waits for a commit that begins after the piece was read.
pub fn bring_out(from: &OwnedFd, outlet: &Outlet, committer: &Committer, counters: &Counters) -> End {
    let mut buffer = vec![0; HELD_BYTES_MAX];
    let (mut last, mut came_in, mut lost) = (None, 0, None::<Lost>);
    loop {
        if outlet.reader == Reader::Patient {
            wait_for_more(from, last, came_in, counters);
        }
        let bytes = match read(from, &mut buffer) {
            // A terminal returns EIO when no process in the session has it open any more.
            Ok(0) | Err(Errno::IO) => return lost.map_or(End::Closed, |lost| lost.end(outlet)),
            Ok(bytes) => bytes,
            Err(Errno::INTR) => continue,
            Err(e) => return End::Failed(anyhow::Error::new(e).context("cannot read the session's output")),
        };
        let _holding = counters.hold(bytes);
        if committer.commit().is_err() {
            counters.dropped.fetch_add(bytes as u64, SeqCst);
            return End::Held;
        }
        (last, came_in) = (Some(Instant::now()), counters.came_in.load(SeqCst));
        let mut rest = &buffer[..bytes];
        let written = write_rest(outlet.to.as_fd(), &mut rest);
        counters.went_out.fetch_add((bytes - rest.len()) as u64, SeqCst);
        match written {
            Ok(()) => {}
            Err(Errno::PIPE) => return End::Unread,
            Err(why) => {
                let so_far = lost.get_or_insert(Lost { bytes: 0, why });
                so_far.bytes += rest.len() as u64;
                if !outlet.goes_on {
                    // Output that the program has written already, and that stays unread.
                    so_far.bytes += ioctl_fionread(from).unwrap_or(0);
                    return lost.expect("just now").end(outlet);
                }
            }
        }
    }
}

/// The number of bytes that could not be written, and the error of the first failure.
#[derive(Clone, Copy, Debug)]
struct Lost {
    bytes: u64,
    why: Errno,
}

impl Lost {
    fn end(self, outlet: &Outlet) -> End {
        End::Failed(anyhow!("cannot write to {}: {}; {} bytes of it are lost", outlet.name, self.why, self.bytes))
    }
}

/// Waits until there is much output, or until the last output is a while ago.
///
/// If input came since the last output, the output may be an answer, and does not wait.
fn wait_for_more(from: &OwnedFd, last: Option<Instant>, came_in: u64, counters: &Counters) {
    let Some(last) = last else { return };
    // This wait for the first byte takes the place of the wait in `read`.
    let mut ready = [PollFd::new(from, PollFlags::IN)];
    let _ = poll(&mut ready, None);
    while last.elapsed() < PATIENCE && counters.came_in.load(SeqCst) == came_in {
        if ioctl_fionread(from).is_ok_and(|bytes| bytes as usize >= HELD_BYTES_MAX / 4) {
            return;
        }
        let mut closed = [PollFd::new(from, PollFlags::empty())];
        let wait = Timespec { tv_sec: 0, tv_nsec: LOOK_EVERY.as_nanos() as _ };
        if poll(&mut closed, Some(&wait)).is_ok_and(|ready| ready > 0) {
            return;
        }
    }
}

/// Relays input from outside into the session until its end, without commits.
pub fn bring_in(from: BorrowedFd<'_>, to: &OwnedFd, counters: &Counters) -> Result<()> {
    let mut buffer = vec![0; HELD_BYTES_MAX];
    loop {
        let bytes = read_some(from, &mut buffer).context("cannot read the standard input to its end")?;
        if bytes == 0 {
            return Ok(());
        }
        counters.came_in.fetch_add(bytes as u64, SeqCst);
        match write_whole(to.as_fd(), &buffer[..bytes]) {
            // The session does not read its input any more.
            Err(Errno::PIPE | Errno::IO) => return Ok(()),
            done => done.context("cannot write to the session")?,
        }
    }
}
