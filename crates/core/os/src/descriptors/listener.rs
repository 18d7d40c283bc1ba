//! Waiting until a file is written to.

use crate::descriptors::descriptor::Fd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Waits for writes to a file.
pub trait Listener: Send + Sync {
    /// Waits for at most this long until the file is written to, or returns at once if it was since the last wait. May
    /// return early.
    fn wait(&self, at_most: Duration);
}

/// A listener without events: each wait takes a few milliseconds.
pub struct Pauses;

impl Listener for Pauses {
    fn wait(&self, at_most: Duration) {
        std::thread::sleep(at_most.min(Duration::from_millis(5)));
    }
}

/// Waits for writes by any process of this machine.
pub(crate) struct Inotify(Fd);

impl Inotify {
    /// Watches a file. Needs read permission, and nothing else.
    pub(crate) fn of(file: BorrowedFd<'_>) -> io::Result<Inotify> {
        let fd = Fd::open(|| init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK))?;
        add_watch(fd.get()?, format!("/proc/self/fd/{}", file.as_raw_fd()), WatchFlags::MODIFY)?;
        Ok(Inotify(fd))
    }

    fn try_wait(&self, at_most: Duration) -> io::Result<()> {
        let fd = self.0.own()?;
        let timeout = Timespec::try_from(at_most).ok();
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], timeout.as_ref())?;
        // Consume the events, as many as fit.
        let mut events = [0; 4096];
        match rustix::io::read(fd, &mut events) {
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

impl Listener for Inotify {
    fn wait(&self, at_most: Duration) {
        // Interrupted by a signal, or the descriptor was closed by a fork.
        if self.try_wait(at_most).is_err() {
            Pauses.wait(at_most);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Linux, Open, Storage, write_all_at};
    use std::path::Path;
    use std::time::{Duration, Instant};

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn a_write_ends_a_wait_also_one_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Linux::open(dir.path()).unwrap();
        let writer = storage.open(Path::new("f"), Open::create(0o600)).unwrap();
        let listener = storage.open(Path::new("f"), Open::READ).unwrap().listen().unwrap();
        listener.wait(Duration::from_millis(20));
        write_all_at(&*writer, b"1", 0).unwrap();
        let start = Instant::now();
        listener.wait(LIMIT);
        let writing = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            write_all_at(&*writer, b"2", 0).unwrap();
        });
        listener.wait(LIMIT);
        assert!(start.elapsed() < LIMIT, "a write was not heard");
        writing.join().unwrap();
    }
}
