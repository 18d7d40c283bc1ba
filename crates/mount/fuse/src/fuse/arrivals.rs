//! Tells when the daemon has got the writes that the kernel had queued, for kernels before Linux 6.16.
//!
//! Since Linux 6.16 the kernel's writeback ends when the daemon has answered. Before, the kernel copies the pages and
//! ends their writeback when the copies are queued; and a page that was queued before, and is dirty again, is queued
//! when the daemon answers the first write. `fsync` waits for all of that, but needs the inode's lock, which the kernel
//! holds in many requests. So the helper sends a *mark* behind the writes: it reads a file of the mount, whose requests
//! go through the same queue. The daemon answers a mark when it has answered all writes that it received before. After
//! a second mark, the pages that were dirty again have come, too. Writes overtake no mark, unless the kernel holds them
//! back, which it does only while somebody else has the inode's lock.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeSet;

/// Length of a mark. The kernel reads several pages at once through the queue of the writes. A single page it may also
/// read past that queue, so a shorter request is no mark.
pub fn mark_len() -> usize {
    2 * rustix::param::page_size()
}

#[derive(Default)]
struct Writes {
    received: u64,
    unanswered: BTreeSet<u64>,
}

/// The writes from the kernel's cache that were received and are not answered. (A program waits for the others.)
#[derive(Default)]
pub struct Arrivals {
    turn: Mutex<()>,
    writes: Mutex<Writes>,
    answered: Condvar,
}

/// A write that was received; dropped when it is answered.
pub struct Write<'a> {
    arrivals: &'a Arrivals,
    number: u64,
}

impl Arrivals {
    /// Lets one thread receive at a time: between the receipt of a write and [`write`](Arrivals::write), no other
    /// thread may receive a mark.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// Notes that a write was received.
    pub fn write(&self) -> Write<'_> {
        let mut writes = self.writes.lock();
        let number = writes.received;
        writes.received += 1;
        writes.unanswered.insert(number);
        Write { arrivals: self, number }
    }

    /// Waits until all writes that were received so far are answered.
    pub fn wait(&self) {
        let mut writes = self.writes.lock();
        let end = writes.received;
        while writes.unanswered.first().is_some_and(|first| *first < end) {
            self.answered.wait(&mut writes);
        }
    }
}

impl Drop for Write<'_> {
    fn drop(&mut self) {
        self.arrivals.writes.lock().unanswered.remove(&self.number);
        self.arrivals.answered.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_mark_waits_for_the_writes_before_it() {
        let arrivals = Arrivals::default();
        for _ in 0..200 {
            let (first, begun, done) = (arrivals.write(), Barrier::new(2), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let mark = scope.spawn(|| {
                    begun.wait();
                    arrivals.wait();
                    assert!(done.load(Ordering::SeqCst), "the write is not answered");
                });
                begun.wait();
                std::thread::yield_now();
                done.store(true, Ordering::SeqCst);
                drop(first);
                mark.join().unwrap();
            });
            arrivals.wait();
        }
    }
}
