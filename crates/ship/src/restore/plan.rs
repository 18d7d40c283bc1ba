//! The plan of a restore: a snapshot, and the objects behind it.

use crate::chain::objects::Objects;
use crate::chain::walk::{Visitor, walk};
use crate::error::{Error, Result};
use crate::interface::{Commit, EpochStart, Point};
use crate::object::log::{Body, LogObject};
use crate::object::manifest::{Manifest, Position};
use std::collections::BTreeMap;

/// The point to restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The newest.
    Newest,
    /// A commit of the newest history.
    Lsn(u64),
    /// A commit of this generation, perhaps of an abandoned history.
    In(u64, u64),
    /// The last commit at this time, in nanoseconds since 1970.
    Time(u64),
}

/// The contents that a restore begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// An empty store.
    Root,
    /// The registered snapshot of this number.
    Snapshot(u64),
    /// The snapshot of an end, with which a history begins.
    OfEnd(u64),
}

/// A step of the chain.
#[derive(Clone, Debug)]
pub struct Node {
    /// The place before the object.
    pub before: Position,
    /// The place behind it.
    pub after: Position,
    /// The number of the snapshot, if it is an end with one.
    pub snapshot: Option<u64>,
    /// The epochs in its header.
    pub epochs: Vec<EpochStart>,
    /// The last commit until the wanted time.
    until: Option<u64>,
    /// Whether it is an end.
    pub is_end: bool,
}

/// The plan of a restore.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The contents to begin with.
    pub base: Base,
    /// Their place.
    pub start: Position,
    /// The objects, by generation and first LSN.
    pub objects: Vec<(u64, u64)>,
    /// The last commit to apply.
    pub last: u64,
    /// The place behind the last object.
    pub end: Position,
    /// Whether it is a single point that is kept below the floor.
    pub is_below_the_floor: bool,
}

/// All steps from the floor on.
pub struct Chain {
    /// The steps, in order.
    pub nodes: Vec<Node>,
    /// The place of the floor.
    pub start: Position,
    /// The newest manifest, read after the objects.
    pub manifest: Manifest,
    /// The epochs of the newest history.
    pub epochs: Vec<EpochStart>,
    /// The newest objects, so that a restore need not read them again.
    pub kept: Kept,
    time: Option<u64>,
}

/// Objects in memory, by generation and first LSN.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    objects: BTreeMap<(u64, u64), LogObject>,
    bytes: usize,
}

/// Most bytes of commits in memory.
const KEPT_BYTES_MAX: usize = 64 << 20;

fn bytes_of(object: &LogObject) -> usize {
    match &object.body {
        Body::Commits(commits) => commits.iter().map(|commit| commit.body.len() + size_of::<Commit>()).sum(),
        Body::End(_) => 0,
    }
}

impl Kept {
    fn keep(&mut self, object: &LogObject) {
        self.bytes += bytes_of(object);
        self.objects.insert((object.generation, object.first_lsn), object.clone());
        while self.bytes > KEPT_BYTES_MAX
            && let Some((_, oldest)) = self.objects.pop_first()
        {
            self.bytes -= bytes_of(&oldest);
        }
    }

    /// Whether an object is there.
    pub fn has(&self, place: (u64, u64)) -> bool {
        self.objects.contains_key(&place)
    }

    /// Takes an object out, if it is there.
    pub fn take(&mut self, place: (u64, u64)) -> Option<LogObject> {
        let object = self.objects.remove(&place)?;
        self.bytes -= bytes_of(&object);
        Some(object)
    }
}

impl Visitor for Chain {
    fn restart(&mut self, start: &Position) {
        self.nodes.clear();
        self.kept = Kept::default();
        self.start = start.clone();
    }

    fn visit(&mut self, before: &Position, object: &LogObject, after: &Position) {
        let (snapshot, is_end) = match &object.body {
            Body::End(end) => (Some(end.snapshot).filter(|number| *number != 0), true),
            Body::Commits(_) => (None, false),
        };
        let until = match (&object.body, self.time) {
            (Body::Commits(commits), Some(time)) => {
                commits.iter().filter(|commit| commit.time <= time).map(|commit| commit.lsn).max()
            }
            (Body::End(end), Some(time)) if snapshot.is_some() && object.time <= time => Some(end.base.lsn),
            _ => None,
        };
        self.kept.keep(object);
        let (before, after, epochs) = (before.clone(), after.clone(), object.epochs.clone());
        self.nodes.push(Node { before, after, snapshot, epochs, until, is_end });
    }
}

/// Reads the chain from the floor on.
///
/// # Errors
/// The bucket does not answer, or the chain is damaged.
pub fn read(objects: &Objects<'_>, wanted: Wanted) -> Result<Chain> {
    let manifest = Manifest::first(&objects.store);
    let time = if let Wanted::Time(time) = wanted { Some(time) } else { None };
    let (start, kept) = (manifest.floor.clone(), Kept::default());
    let mut chain = Chain { nodes: Vec::new(), start, manifest, epochs: Vec::new(), kept, time };
    let walked = walk(objects, None, &mut chain)?;
    (chain.manifest, chain.epochs) = (walked.manifest, walked.epochs);
    Ok(chain)
}

impl Chain {
    /// The place behind the newest object.
    pub fn tip(&self) -> &Position {
        self.nodes.last().map_or(&self.start, |node| &node.after)
    }

    /// The places, in order: place 0 is the floor, place n lies behind object n - 1.
    pub fn place(&self, n: usize) -> &Position {
        if n == 0 { &self.start } else { &self.nodes[n - 1].after }
    }

    /// The snapshot at a place, if there is one that the chain confirms.
    pub fn snapshot_at(&self, n: usize) -> Option<Base> {
        let at = self.place(n);
        let is_here = |known: &Position| known.place() == at.place() && known.hash == at.hash;
        let registered = self.manifest.registered.iter().find(|known| is_here(&known.position));
        let of_end = n.checked_sub(1).and_then(|node| self.nodes[node].snapshot);
        let root = (at.place() == (0, 0)).then_some(Base::Root);
        registered.map(|known| Base::Snapshot(known.number)).or(of_end.map(Base::OfEnd)).or(root)
    }

    /// The plan for a point.
    ///
    /// # Errors
    /// The point is not in the bucket (any more).
    pub fn plan(&self, wanted: Wanted) -> Result<Plan> {
        let found = match wanted {
            Wanted::Newest => Some((self.nodes.len(), self.tip().point.lsn)),
            Wanted::Lsn(lsn) => self.newest_with(lsn)?,
            Wanted::In(generation, lsn) => self.in_generation(generation, lsn),
            Wanted::Time(time) => self.at_time(time),
        };
        match found {
            Some((n, last)) => self.plan_to(n, last),
            None => self.kept_point(wanted),
        }
    }

    fn plan_to(&self, n: usize, last: u64) -> Result<Plan> {
        let Some((from, base)) = (0..=n).rev().find_map(|at| {
            // Behind the wanted commit, if the object has more of them.
            let is_behind = at == n && self.place(n).point.lsn != last;
            self.snapshot_at(at).filter(|_| !is_behind).map(|base| (at, base))
        }) else {
            return Err(Error::NotThere("the snapshot at the floor is not registered: the bucket is damaged".into()));
        };
        let objects = self.nodes[from..n].iter().map(|node| (node.before.generation, node.before.point.lsn + 1));
        let (start, end) = (self.place(from).clone(), self.place(n).clone());
        Ok(Plan { base, start, objects: objects.collect(), last, end, is_below_the_floor: false })
    }

    /// The last place whose history, the newest one, has the commit.
    fn newest_with(&self, lsn: u64) -> Result<Option<(usize, u64)>> {
        if lsn > self.tip().point.lsn {
            let newest = self.tip().point.lsn;
            return Err(Error::NotThere(format!("#{lsn} is not in the bucket, whose newest commit is #{newest}")));
        }
        let epoch = self.epoch_in_newest(lsn);
        let is_same = |known: Option<u64>| epoch.is_none() || known == epoch;
        for (n, node) in self.nodes.iter().enumerate().rev() {
            let (before, after) = (node.before.point, node.after.point);
            let has = match node.snapshot {
                Some(_) => after.lsn == lsn && is_same(Some(after.epoch)),
                None => before.lsn < lsn && lsn <= after.lsn && is_same(epoch_of(&node.epochs, lsn)),
            };
            if has {
                return Ok(Some((n + 1, lsn)));
            }
        }
        let start = self.start.point;
        if start.lsn == lsn && (lsn == 0 || is_same(Some(start.epoch))) {
            return Ok(Some((0, lsn)));
        }
        let is_across = |node: &&Node| node.before.point.lsn < lsn && lsn < node.after.point.lsn;
        let gap = self.nodes.iter().filter(|node| node.snapshot.is_some()).find(is_across);
        match gap.or(self.newest_base()) {
            Some(node) if lsn >= start.lsn => Err(never_shipped(lsn, node)),
            _ => Ok(None),
        }
    }

    /// The end with whose snapshot the newest history begins.
    fn newest_base(&self) -> Option<&Node> {
        self.nodes.iter().rev().find(|node| node.snapshot.is_some())
    }

    /// The epoch of a commit of the newest history, if that history begins with a snapshot of it or of a later one. 0 if
    /// the snapshot's list does not reach so far: no commit of another history is given for it.
    fn epoch_in_newest(&self, lsn: u64) -> Option<u64> {
        let base = self.newest_base().filter(|node| lsn <= node.after.point.lsn)?;
        Some(epoch_of(&base.epochs, lsn).unwrap_or(0))
    }

    fn in_generation(&self, generation: u64, lsn: u64) -> Option<(usize, u64)> {
        let at = (0..=self.nodes.len()).find(|n| self.place(*n).place() == (generation, lsn));
        let inside = || {
            let has = |node: &Node| {
                !node.is_end
                    && node.before.generation == generation
                    && (node.before.point.lsn < lsn && lsn <= node.after.point.lsn)
            };
            self.nodes.iter().position(has).map(|n| n + 1)
        };
        at.or_else(inside).map(|n| (n, lsn))
    }

    fn at_time(&self, time: u64) -> Option<(usize, u64)> {
        let found = self.nodes.iter().enumerate().rev().find_map(|(n, node)| Some((n + 1, node.until?)));
        found.or_else(|| (self.start.time <= time).then_some((0, self.start.point.lsn)))
    }

    /// A single point below the floor.
    fn kept_point(&self, wanted: Wanted) -> Result<Plan> {
        let below = self.manifest.registered.iter().filter(|known| self.manifest.is_beyond(known.position.place()));
        let fits = |known: &Position| match wanted {
            Wanted::Newest => false,
            Wanted::Lsn(lsn) => {
                let epoch = self.epoch_in_newest(lsn);
                known.point.lsn == lsn && epoch.is_none_or(|epoch| epoch == known.point.epoch)
            }
            Wanted::In(generation, lsn) => known.place() == (generation, lsn),
            Wanted::Time(time) => known.time <= time,
        };
        if let Some(kept) = below.filter(|known| fits(&known.position)).max_by_key(|known| known.position.place()) {
            let (start, base) = (kept.position.clone(), Base::Snapshot(kept.number));
            let (last, end) = (start.point.lsn, start.clone());
            return Ok(Plan { base, start, objects: Vec::new(), last, end, is_below_the_floor: true });
        }
        let oldest = self.start.point.lsn;
        match wanted {
            Wanted::Lsn(lsn) => Err(Error::Pruned { lsn, oldest }),
            Wanted::In(generation, lsn) if (generation, lsn) < self.start.place() => Err(Error::Pruned { lsn, oldest }),
            Wanted::In(generation, lsn) => {
                Err(Error::NotThere(format!("generation {generation} has no commit #{lsn} in the bucket")))
            }
            _ => Err(Error::NotThere(format!("nothing in the bucket is that old: the oldest point is #{oldest}"))),
        }
    }
}

/// The error for a commit between two histories, of which the second begins with a snapshot.
fn never_shipped(lsn: u64, node: &Node) -> Error {
    let (below, above) = (node.before.point.lsn, node.after.point.lsn);
    Error::NotThere(if below < lsn {
        format!("#{lsn} was never shipped: the bucket has #{below} and then #{above}")
    } else {
        format!("#{lsn} of the newest history was never shipped: the bucket has that history from #{above} on")
    })
}

/// The epoch of a commit by a list.
fn epoch_of(epochs: &[EpochStart], lsn: u64) -> Option<u64> {
    epochs.iter().rev().find(|start| start.first_lsn <= lsn).map(|start| start.epoch)
}

/// Adds the epochs of commits up to `last`.
pub fn extend(epochs: &mut Vec<EpochStart>, of: &[EpochStart], last: Point) {
    for start in of.iter().filter(|start| start.first_lsn <= last.lsn) {
        if epochs.last().is_none_or(|known| known.epoch != start.epoch) {
            epochs.push(*start);
        }
    }
}
