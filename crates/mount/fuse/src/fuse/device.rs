//! The descriptor of `/dev/fuse`: requests come from it, answers and notifications go to it.

use crate::fuse::protocol::{Answer, notification};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno as SystemErrno;
use std::time::{Duration, Instant};
use untorn_tree::{Errno, Ino};

/// Why no request comes any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The file system is unmounted, and all that programs wrote was sent before.
    Unmounted,
    /// The connection was cut (`umount -f`, an administrator): what the kernel had not sent is lost.
    Aborted,
}

/// A thread that has answered looks for the next request for so long before it sleeps: to be woken takes about as long.
const LOOK: Duration = Duration::from_micros(30);
/// A thread that lets others run, and is away for longer, takes a processor from programs that have something to do.
const AWAY: Duration = Duration::from_micros(500);
/// It does not look again for so long.
const REST: Duration = Duration::from_millis(100);

/// Whether a thread looks for the next request.
#[derive(Default)]
pub struct Look {
    /// The last one came so soon that looking is worth it.
    soon: bool,
    rest_until: Option<Instant>,
}

impl Look {
    fn found(&mut self, after: Duration) {
        // Of this a part is the time that waking took.
        self.soon = after < 3 * LOOK;
    }

    /// Whether to look once more; `since` is when it was first looked.
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

/// One connection with the kernel. Any number of threads use it at a time.
pub struct Device {
    descriptor: OwnedFd,
}

impl Device {
    /// The connection that a mounted descriptor is.
    pub fn new(descriptor: OwnedFd) -> Device {
        Device { descriptor }
    }

    /// The next request, in `buffer`: its length. A thread that looks is the only one that receives: the kernel wakes those
    /// that sleep, whoever looks.
    pub fn receive(&self, buffer: &mut [u8], mut look: Option<&mut Look>) -> Result<usize, End> {
        let start = Instant::now();
        if let Some(look) = &mut look {
            while look.again(start) && !self.is_asked() {
                // The program that is to ask may have no other processor.
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

    /// Whether there is a request. Another thread may receive it.
    fn is_asked(&self) -> bool {
        let now = Timespec::default();
        poll(&mut [PollFd::new(&self.descriptor, PollFlags::IN)], Some(&now)) != Ok(0)
    }

    /// Answers a request. If the program or the mount is gone, nobody waits for it.
    pub fn answer(&self, unique: u64, answer: Result<Answer, Errno>) {
        let message = match answer {
            Ok(answer) => answer.message(unique, 0),
            Err(Errno(error)) => Answer::default().message(unique, -error),
        };
        let _ = rustix::io::write(&self.descriptor, &message);
    }

    fn notify(&self, code: i32, answer: Answer) -> Result<(), Errno> {
        match rustix::io::write(&self.descriptor, &answer.message(0, code)) {
            // The kernel does not have it in its cache.
            Ok(_) | Err(SystemErrno::NOENT) => Ok(()),
            Err(e) => Err(Errno(e.raw_os_error())),
        }
    }

    /// Makes the kernel send what is dirty of a file, and drop what it has of the contents.
    pub fn drop_cache(&self, ino: Ino) -> Result<(), Errno> {
        self.notify(notification::INVAL_INODE, Answer::default().u64(ino).u64(0).u64(0))
    }

    /// Makes the kernel forget the attributes of a file, and keep its contents, which the program may have locked that asks.
    pub fn forget_attributes(&self, ino: Ino) -> Result<(), Errno> {
        self.notify(notification::INVAL_INODE, Answer::default().u64(ino).u64(u64::MAX).u64(0))
    }

    /// Makes the kernel ask once more what it asked and was not answered, as the process that was asked has ended.
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
