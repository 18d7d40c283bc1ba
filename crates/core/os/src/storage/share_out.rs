//! Pieces of work that the threads of a storage share out among themselves.

use crate::storage::Storage;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Threads that share out work: the caller's, and others of a storage.
#[derive(Clone, Copy)]
pub struct Threads<'a> {
    others: Option<(&'a dyn Storage, usize)>,
}

impl<'a> Threads<'a> {
    /// Up to `most` threads, the caller's included, as the storage allows.
    pub fn of(storage: &'a dyn Storage, most: usize) -> Threads<'a> {
        Threads { others: (most > 1).then_some((storage, most)) }
    }

    /// Calls the function for each number below `count`, side by side, and returns the results in order. One thread
    /// alone takes the numbers in order.
    pub fn each<R: Send>(&self, count: usize, one: impl Fn(usize) -> R + Sync) -> Vec<R> {
        let Some((storage, most)) = self.others.filter(|_| count > 1) else { return (0..count).map(one).collect() };
        let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(count)));
        let work = || {
            loop {
                let number = next.fetch_add(1, Relaxed);
                if number >= count {
                    return;
                }
                let result = one(number);
                done.lock().push((number, result));
            }
        };
        storage.in_threads(most.min(count), &work);
        let mut done = done.into_inner();
        done.sort_unstable_by_key(|(number, _)| *number);
        debug_assert_eq!(done.len(), count, "work was left");
        done.into_iter().map(|(_, result)| result).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::linux::Linux;
    use std::sync::Barrier;

    #[test]
    fn every_piece_is_done_once_and_two_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Linux::open(dir.path()).unwrap();
        let (meeting, calls) = (Barrier::new(2), AtomicUsize::new(0));
        let squares = Threads::of(&*storage, 2).each(100, |number| {
            calls.fetch_add(1, Relaxed);
            meeting.wait();
            number * number
        });
        assert_eq!(squares, (0..100).map(|number| number * number).collect::<Vec<_>>());
        assert_eq!(calls.into_inner(), 100);
    }

    #[test]
    fn one_thread_takes_the_pieces_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Linux::open(dir.path()).unwrap();
        let (order, this) = (Mutex::new(Vec::new()), std::thread::current().id());
        Threads::of(&*storage, 1).each(10, |number| {
            assert_eq!(std::thread::current().id(), this);
            order.lock().push(number);
        });
        assert_eq!(order.into_inner(), (0..10).collect::<Vec<_>>());
    }
}
