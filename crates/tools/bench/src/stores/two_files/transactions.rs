//! Transactions over two random files, by one thread or several.

use super::protocol::{Change, Protocol, Shape};
use crate::measuring::harness::timed;
use anyhow::Result;
use fastrand::Rng;
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// The transactions: two random files, a random place in each, and so many random bytes.
pub struct Transactions {
    shape: Shape,
    /// The size of each change. None for a random one.
    change_bytes: Option<usize>,
    bytes: Vec<u8>,
    /// Taken by a transaction for its files, in their order: isolation is the program's.
    locks: Vec<Mutex<()>>,
}

impl Transactions {
    pub fn new(shape: Shape, change_bytes: Option<usize>) -> Transactions {
        let mut bytes = vec![0; 2 * shape.change_bytes_max];
        fastrand::fill(&mut bytes);
        Transactions { shape, change_bytes, bytes, locks: (0..shape.files).map(|_| Mutex::new(())).collect() }
    }

    /// Chooses the changes of the next transaction.
    fn draw(&self, random: &mut Rng) -> [Change<'_>; 2] {
        let Shape { files, file_bytes, change_bytes_max } = self.shape;
        let first = random.usize(..files);
        let mut chosen = [first, (first + random.usize(1..files)) % files];
        chosen.sort_unstable();
        chosen.map(|file| {
            let len = self.change_bytes.unwrap_or_else(|| random.usize(..=change_bytes_max));
            let from = random.usize(..=self.bytes.len() - len);
            Change { file, at: random.u64(..=file_bytes - len as u64), bytes: &self.bytes[from..from + len] }
        })
    }

    /// Makes a transaction, and returns its time.
    fn one(&self, protocol: &dyn Protocol, random: &mut Rng) -> Result<Duration> {
        let changes = self.draw(random);
        let _locked = changes.map(|change| self.locks[change.file].lock());
        timed(|| protocol.transact(&changes))
    }

    /// Makes so many transactions, and returns the mean time of one. After each, the thread is idle for a part of the
    /// time, from 0 to below 1.
    pub fn many(&self, protocol: &dyn Protocol, count: usize, idle: f64, random: &mut Rng) -> Result<Duration> {
        let mut sum = Duration::ZERO;
        for _ in 0..count {
            let time = self.one(protocol, random)?;
            sum += time;
            if idle > 0.0 {
                std::thread::sleep(time.mul_f64(idle / (1.0 - idle)));
            }
        }
        Ok(sum / count.max(1) as u32)
    }

    /// Makes so many transactions by each of some threads, and returns how many there were in a second.
    pub fn rate(&self, protocol: &dyn Protocol, threads: usize, count: usize, seed: u64) -> Result<f64> {
        let work = |n: usize| {
            let mut random = Rng::with_seed(seed * 64 + n as u64);
            self.many(protocol, count, 0.0, &mut random).map(|_| ())
        };
        let start = Instant::now();
        std::thread::scope(|scope| {
            let work = &work;
            let running: Vec<_> = (0..threads).map(|n| scope.spawn(move || work(n))).collect();
            running.into_iter().try_for_each(|one| one.join().expect("no panic"))
        })?;
        Ok((threads * count) as f64 / start.elapsed().as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::two_files::roster::{Entrant, FINE_LOG, OURS, SHADOW, names, open};

    const SMALL: Shape = Shape { files: 3, file_bytes: 100_000, change_bytes_max: 10_000 };

    #[test]
    fn every_protocol_changes_only_what_belongs_to_its_transactions() {
        let dir = tempfile::tempdir().unwrap();
        let (entrants, missing) = open(dir.path(), SMALL, &names()).unwrap();
        assert_eq!(entrants.len() + missing.len(), names().len(), "{missing:?}");
        let transactions = Transactions::new(SMALL, None);
        for Entrant { name, protocol, .. } in entrants {
            let mut expected: Vec<Vec<u8>> = (0..SMALL.files).map(|file| protocol.read(file).unwrap()).collect();
            let mut random = Rng::with_seed(7);
            for n in 0..60 {
                let changes = transactions.draw(&mut random);
                protocol.transact(&changes).unwrap();
                for Change { file, at, bytes } in changes {
                    expected[file][at as usize..][..bytes.len()].copy_from_slice(bytes);
                }
                if n % 20 == 19 {
                    protocol.settle().unwrap();
                }
            }
            for (file, expected) in expected.iter().enumerate() {
                assert_eq!(expected.len(), SMALL.file_bytes as usize);
                assert!(protocol.read(file).unwrap() == *expected, "{name}, file {file}");
            }
        }
    }

    #[test]
    fn threads_make_all_their_transactions() {
        let dir = tempfile::tempdir().unwrap();
        let (entrants, _) = open(dir.path(), SMALL, &[OURS, FINE_LOG, SHADOW]).unwrap();
        let transactions = Transactions::new(SMALL, Some(100));
        for Entrant { name, protocol, .. } in entrants {
            assert!(transactions.rate(&*protocol, 3, 20, 1).unwrap() > 0.0, "{name}");
        }
    }

    #[test]
    fn sizes_and_places_are_as_asked_for() {
        let transactions = Transactions::new(SMALL, Some(64));
        let mut random = Rng::with_seed(1);
        for _ in 0..100 {
            let [a, b] = transactions.draw(&mut random);
            assert!(a.file < b.file && a.bytes.len() == 64 && b.at + 64 <= SMALL.file_bytes);
        }
    }
}
