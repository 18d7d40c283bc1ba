//! A machine with a store, as its shipper sees it.

use super::STORE;
use super::contents::{Contents, History, InMemory, commit, time_of};
use untorn_ship::error::Result;
use untorn_ship::interface::{EpochStart, Hash, Held, Next, Owner, OwnerId, Point, Random, Source, StoreId};

/// A store.
#[derive(Clone, Debug)]
pub struct Store {
    /// The machine's number.
    pub machine: usize,
    pub history: History,
    /// The number of durable commits.
    pub durable: usize,
    /// Commits up to this one are no longer in the log.
    pub truncated: usize,
    pub epochs: Vec<EpochStart>,
    pub acknowledged: Option<Point>,
    pub owner: Option<OwnerId>,
    /// Whether it was put back.
    pub is_put_back: bool,
}

/// The place of a machine's slot.
pub fn place(machine: usize) -> Random {
    [machine as u8 + 1; 16]
}

/// The name of a machine.
pub fn name(machine: usize) -> String {
    format!("machine {machine}")
}

/// The machine of a name.
pub fn number(name: &str) -> Option<usize> {
    name.strip_prefix("machine ")?.parse().ok()
}

impl Store {
    /// A store that was opened for the first time.
    pub fn new(machine: usize, epoch: u64) -> Store {
        let epochs = vec![EpochStart { epoch, first_lsn: 1 }];
        let (history, acknowledged, owner) = (History::new(), None, None);
        Store { machine, history, durable: 0, truncated: 0, epochs, acknowledged, owner, is_put_back: false }
    }

    /// Opens it with so many commits.
    pub fn open(&mut self, kept: usize, epoch: u64) {
        self.history.truncate(kept);
        self.durable = kept;
        let first_lsn = kept as u64 + 1;
        self.epochs.retain(|start| start.first_lsn < first_lsn);
        self.epochs.push(EpochStart { epoch, first_lsn });
    }

    pub fn commit(&mut self) {
        self.history.push(self.epochs.last().expect("open").epoch);
    }

    fn epoch_of(&self, lsn: u64) -> u64 {
        self.epochs.iter().rev().find(|start| start.first_lsn <= lsn).map_or(0, |start| start.epoch)
    }

    pub fn has(&self, point: Point) -> bool {
        point.lsn == 0 || (point.lsn <= self.durable as u64 && self.epoch_of(point.lsn) == point.epoch)
    }

    pub fn last(&self) -> Point {
        let lsn = self.durable as u64;
        Point { epoch: if lsn == 0 { 0 } else { self.epoch_of(lsn) }, lsn }
    }

    /// Commits that the gate lets through.
    pub fn released(&self) -> &[u64] {
        match self.acknowledged {
            Some(point) if self.has(point) => &self.history[..point.lsn as usize],
            _ => &[],
        }
    }
}

impl Owner for Store {
    fn owner(&mut self) -> Result<Option<OwnerId>> {
        Ok(self.owner)
    }

    fn set_owner(&mut self, owner: OwnerId) -> Result<()> {
        self.owner = Some(owner);
        Ok(())
    }

    fn place(&mut self) -> Result<Random> {
        Ok(place(self.machine))
    }

    fn who(&self) -> String {
        name(self.machine)
    }
}

impl Source for Store {
    fn store_id(&self) -> StoreId {
        STORE
    }

    fn durable(&mut self) -> Result<Point> {
        Ok(self.last())
    }

    fn contains(&mut self, point: Point) -> Result<bool> {
        Ok(self.has(point))
    }

    fn epochs(&mut self, from_lsn: u64) -> Result<Vec<EpochStart>> {
        let first = self.epochs.iter().rposition(|start| start.first_lsn <= from_lsn).unwrap_or(0);
        Ok(self.epochs[first..].to_vec())
    }

    fn commits(&mut self, behind: u64, bytes_max: u64) -> Result<Next> {
        // A checkpoint may truncate durable commits only; an opening may take the rest.
        if behind < self.truncated.min(self.history.len()) as u64 {
            return Ok(Next::Gap);
        }
        let from = (behind as usize).min(self.history.len());
        let all = self.history[from..].iter().zip(behind + 1..).map(|(epoch, lsn)| commit(*epoch, lsn));
        let mut bytes = 0;
        let fits = |commit: &untorn_ship::interface::Commit| {
            bytes += commit.body.len() as u64;
            bytes == commit.body.len() as u64 || bytes <= bytes_max
        };
        Ok(Next::Commits(all.take_while(fits).collect()))
    }

    fn snapshot(&mut self) -> Result<Held> {
        let contents = Contents(self.history[..self.durable].to_vec());
        let pieces = Box::new(InMemory(contents.pieces().into_iter()));
        Ok(Held { point: self.last(), time: time_of(self.durable as u64), pieces })
    }

    fn acknowledge(&mut self, point: Point, _: Hash) -> Result<()> {
        self.acknowledged = Some(point);
        Ok(())
    }
}
