//! Clients that wait until the bucket has their commits.

use super::slow_place::SlowPlace;
use anyhow::{Context, Result};
use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};
use untorn::{FailureClass, File, Remote, Store, StoreOptions, Ticket};

const SLOT: &str = "bench";

/// A store that is shipped, and its clients.
pub struct Clients {
    store: Store,
    file: File,
    _shipping: super::slow_place::Shipping,
    waiting: VecDeque<(Ticket, Instant)>,
    number: u64,
    /// The time of each answer.
    pub latencies: Vec<Duration>,
}

impl Clients {
    /// Makes a store below a directory, and ships it to a place whose objects take `put`.
    pub fn new(dir: &Path, clients: usize, put: Duration) -> Result<Clients> {
        std::fs::create_dir_all(dir)?;
        let path = dir.join("store");
        Store::open_or_create(&path)?.close()?;
        let place = SlowPlace::new(dir, put)?;
        let shipping = place.ship(&path, SLOT, "1ms")?;
        let remote = Remote { timeout: Duration::from_secs(60), ..Remote::default() };
        let store = StoreOptions::new().remote(SLOT, remote).open(&path)?;
        let file = store.open_or_create_file("answers")?;
        let (waiting, latencies) = (VecDeque::new(), Vec::new());
        let mut all = Clients { store, file, _shipping: shipping, waiting, number: 0, latencies };
        for _ in 0..clients {
            all.ask()?;
        }
        Ok(all)
    }

    /// A client asks, and its answer waits for the bucket.
    fn ask(&mut self) -> Result<()> {
        self.number += 1;
        self.file.write_at(&self.number.to_le_bytes(), self.number % 4096 * 8)?;
        self.waiting.push_back((self.file.commit_async()?, Instant::now()));
        Ok(())
    }

    /// Waits for so many answers; each client asks again as soon as it has its answer.
    pub fn answers(&mut self, count: usize) -> Result<Duration> {
        let start = Instant::now();
        for _ in 0..count {
            // Answers come in the order of the commits.
            let (ticket, since) = self.waiting.pop_front().context("a client")?;
            ticket.wait_for(FailureClass::Remote)?;
            self.latencies.push(since.elapsed());
            self.ask()?;
        }
        Ok(start.elapsed())
    }

    /// Ends.
    pub fn close(self) -> Result<()> {
        for (ticket, _) in &self.waiting {
            ticket.wait_for(FailureClass::Remote)?;
        }
        drop(self.file);
        Ok(self.store.close()?)
    }
}
