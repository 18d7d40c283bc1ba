//! Relays between the session and the outside: what goes out waits for a commit, what comes in does not.

use crate::report::session_report::Counters;
use crate::volumes::committer::Committer;
use anyhow::{Context, Result, anyhow};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionread, read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use untorn_terminal::standard_streams::{read_some, write_rest, write_whole};

/// What a relay holds at most; all else stays in the kernel, where it holds up the program.
pub const HELD_BYTES_MAX: usize = 256 << 10;
/// Readers of pipes and files do not mind so short a wait, and many small outputs then share one commit.
const PATIENCE: Duration = Duration::from_millis(20);
/// How often a patient relay looks whether enough has come.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Who reads what goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// Somebody who looks at a terminal, or who answers: never waits for more.
    Waiting,
    /// A pipe or a file: may wait a moment.
    Patient,
}

/// Where output goes.
#[derive(Debug)]
pub struct Outlet {
    /// What is written to.
    pub to: OwnedFd,
    /// For people.
    pub name: &'static str,
    /// Who reads it.
    pub reader: Reader,
    /// Programs go on when their messages cannot be written: so does the relay, without those. Of all else the program
    /// hears, by the end of the pipe.
    pub goes_on: bool,
}

/// How a relay to the outside ended.
#[derive(Debug)]
pub enum End {
    /// The session's side was closed, and everything has left.
    Closed,
    /// Nobody outside reads any more.
    Unread,
    /// What was held has not left, and never will: a commit failed.
    Held,
    /// The session could not be read, or not everything could be written to the outside.
    Failed(anyhow::Error),
}

/// Brings outputs of the session to the outside, each after a commit that began when the output was there.
pub fn bring_out(from: &OwnedFd, outlet: &Outlet, committer: &Committer, counters: &Counters) -> End {
    let mut buffer = vec![0; HELD_BYTES_MAX];
    let (mut last, mut came_in, mut lost) = (None, 0, None::<Lost>);
    loop {
        if outlet.reader == Reader::Patient {
            wait_for_more(from, last, came_in, counters);
        }
        let bytes = match read(from, &mut buffer) {
            // A terminal says EIO when nobody in the session has it open any more.
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
                    // What the program has written already, and nobody will read.
                    so_far.bytes += ioctl_fionread(from).unwrap_or(0);
                    return lost.expect("just now").end(outlet);
                }
            }
        }
    }
}

/// Output that could not be written, and why the first of it could not.
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

/// Waits until much has come, or until the last output was a while ago. Whoever answers gets an answer at once: if
/// something came in since the last output, there is no wait.
fn wait_for_more(from: &OwnedFd, last: Option<Instant>, came_in: u64, counters: &Counters) {
    let Some(last) = last else { return };
    // Nothing is there yet: the wait for the first byte is the read itself.
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

/// Brings what comes from outside into the session, until its end; it waits for no commit.
pub fn bring_in(from: BorrowedFd<'_>, to: &OwnedFd, counters: &Counters) -> Result<()> {
    let mut buffer = vec![0; HELD_BYTES_MAX];
    loop {
        let bytes = read_some(from, &mut buffer).context("cannot read the standard input to its end")?;
        if bytes == 0 {
            return Ok(());
        }
        counters.came_in.fetch_add(bytes as u64, SeqCst);
        match write_whole(to.as_fd(), &buffer[..bytes]) {
            // The session does not read any more.
            Err(Errno::PIPE | Errno::IO) => return Ok(()),
            done => done.context("cannot write to the session")?,
        }
    }
}
