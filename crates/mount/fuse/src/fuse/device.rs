//! The descriptor of `/dev/fuse`: requests come from it, answers and notifications go to it.

use crate::fuse::protocol::{Answer, notification};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno as SystemErrno;
use std::time::{Duration, Instant};
use untorn_tree::{Errno, Ino};

/// The reason why no more requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The file system is unmounted, and the kernel had sent all writes of programs before.
    Unmounted,
    /// The connection was cut (`umount -f`, an administrator): data that the kernel had not sent is lost.
    Aborted,
}

/// A thread that has answered polls for the next request for this long before it sleeps: waking a thread takes about as
/// long.
const LOOK: Duration = Duration::from_micros(30);
/// If a yield takes longer than this, other programs need the processor, and polling would take it from them.
const AWAY: Duration = Duration::from_micros(500);
/// After such a yield a thread does not poll for this long.
const REST: Duration = Duration::from_millis(100);

/// Decides whether a thread polls for the next request before it sleeps.
#[derive(Default)]
pub struct Look {
    /// The last request came so soon that polling is worth it.
    soon: bool,
    rest_until: Option<Instant>,
}

impl Look {
    fn found(&mut self, after: Duration) {
        // Waking the thread is a part of this time.
        self.soon = after < 3 * LOOK;
    }

    /// Whether to poll once more; `since` is the time of the first poll.
    fn again(&self, since: Instant) -> bool {
        let now = Instant::now();
        let rests = self.rest_until.is_some_and(|until| now < until);
        self.soon && !rests && now.saturating_duration_since(since) < LOOK
    }

    fn let_others_run(&mut self) {
        let start = Instant::now();
        std::thread::yield_now();
        let now = Instant::now();
        self.rest_until = (now - start >= AWAY).then(|| now + REST);
    }
}

/// One connection with the kernel, which any number of threads use at a time.
pub struct Device {
    descriptor: OwnedFd,
}

impl Device {
    /// Wraps the descriptor of a mount.
    pub fn new(descriptor: OwnedFd) -> Device {
        Device { descriptor }
    }

    /// Receives the next request into `buffer` and returns its length.
    ///
    /// Only a thread that receives alone may poll: the kernel wakes sleeping threads even if another thread polls.
    pub fn receive(&self, buffer: &mut [u8], mut look: Option<&mut Look>) -> Result<usize, End> {
        let start = Instant::now();
        if let Some(look) = &mut look {
            while look.again(start) && !self.is_asked() {
                // The program that sends the next request may have no other processor.
                look.let_others_run();
            }
        }
        loop {
            match rustix::io::read(&self.descriptor, &mut *buffer) {
                Ok(len) => {
                    if let Some(look) = look {
                        look.found(start.elapsed());
                    }
                    return Ok(len);
                }
                // ENOENT: the program was interrupted before the request was read.
                Err(SystemErrno::INTR | SystemErrno::AGAIN | SystemErrno::NOENT) => {}
                Err(SystemErrno::NODEV) => return Err(End::Unmounted),
                Err(_) => return Err(End::Aborted),
            }
        }
    }

    /// Whether a request waits to be received. Another thread may receive it first.
    fn is_asked(&self) -> bool {
        let now = Timespec::default();
        poll(&mut [PollFd::new(&self.descriptor, PollFlags::IN)], Some(&now)) != Ok(0)
    }

    /// Answers a request. An error is ignored: if the program or the mount is gone, nobody waits for the answer.
    pub fn answer(&self, unique: u64, answer: Result<Answer, Errno>) {
        let message = match answer {
            Ok(answer) => answer.message(unique, 0),
            Err(Errno(error)) => Answer::default().message(unique, -error),
        };
        let _ = rustix::io::write(&self.descriptor, &message);
    }

    fn notify(&self, code: i32, answer: Answer) -> Result<(), Errno> {
        match rustix::io::write(&self.descriptor, &answer.message(0, code)) {
            // NOENT: the kernel has no such inode in its cache.
            Ok(_) | Err(SystemErrno::NOENT) => Ok(()),
            Err(e) => Err(Errno(e.raw_os_error())),
        }
    }

    /// Makes the kernel send the dirty pages of a file, and drop its cached contents.
    pub fn drop_cache(&self, ino: Ino) -> Result<(), Errno> {
        self.notify(notification::INVAL_INODE, Answer::default().u64(ino).u64(0).u64(0))
    }

    /// Makes the kernel forget the attributes of a file, but keep its contents: the program whose request is being
    /// answered may have them locked.
    pub fn forget_attributes(&self, ino: Ino) -> Result<(), Errno> {
        self.notify(notification::INVAL_INODE, Answer::default().u64(ino).u64(u64::MAX).u64(0))
    }

    /// Makes the kernel repeat all requests that were not answered, because the process that received them has ended.
    pub fn ask_again(&self) -> Result<(), Errno> {
        self.notify(notification::RESEND, Answer::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_looked_for_as_long_as_requests_come_soon_and_nobody_else_needs_the_processor() {
        let mut look = Look::default();
        let later = Instant::now() + Duration::from_secs(60);
        assert!(!look.again(later), "nothing is known yet");
        look.found(Duration::ZERO);
        assert!(look.again(later));
        assert!(!look.again(Instant::now() - LOOK));
        look.rest_until = Some(later);
        assert!(!look.again(later), "it rests");
        look.rest_until = None;
        look.found(4 * LOOK);
        assert!(!look.again(later), "the last one came late");
    }
}
