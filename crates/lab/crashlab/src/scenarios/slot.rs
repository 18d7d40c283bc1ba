//! Log that a slot needs: after any crash, a follower finds every commit behind the slot, with the bytes that it wrote.
//!
//! Owners open the store one after the other, commit, make checkpoints and close, and crash at any call. The slot is
//! acknowledged now and then, without a flush; the consumer itself remembers which commit it has.

use super::opening::failed;
use crate::programs::runner::KillOnDrop;
use crate::simulation::{Model, Options, PROFILES, SimDisk, Snapshot};
use fastrand::Rng;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use untorn::__private::{OpenStoreOn, StoreSteps, open_reader_on, open_slot_on};
use untorn::reader::{Acknowledged, ChangeKind, Commit, Followed};
use untorn::{Point, Reader, Slot, Store, StoreOptions};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_os::Storage;

/// The lives of a store.
const LIVES: usize = 5;
/// Crashes of each life that are looked at.
const CRASHES: usize = 6;
/// More than any test needs.
const CAP: u64 = 1 << 30;

/// A consumer, and the commits that it must find.
#[derive(Clone)]
struct Shipping {
    rng: Rng,
    options: StoreOptions,
    /// The bytes of each commit since the slot was made. The disk's mark has the numbers of those that may be the last.
    made: Vec<Vec<u8>>,
    /// The last commit that the consumer has, and how many it has.
    has: (Point, usize),
    /// The call before which the consumer got it.
    has_since: u64,
}

/// A machine after a crash, before the next opening.
struct Crashed {
    disk: SimDisk,
    /// The number of commits that readers see.
    shown: usize,
    /// The commits that the next opening finds.
    made: Vec<Vec<u8>>,
}

/// Log that slots need survives crashes at every call.
pub(crate) fn log_that_slots_need_survives() -> Result<(), String> {
    (1..120).try_for_each(ship_and_crash)
}

/// Crashes of one store with a slot, drawn from a seed.
pub fn ship_and_crash(seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let disk = SimDisk::new(Options {
        profile: PROFILES[rng.usize(..PROFILES.len())],
        model: if rng.bool() { Model::SectorAtomic } else { Model::PageGarbage },
        direct: rng.bool(),
        seed,
        ..Options::default()
    });
    let full_page = disk.options().model == Model::PageGarbage;
    let options = StoreOptions::new().create(true).background(false).full_page(full_page);
    let options = options.sizes(32 << 10, 8 << 10, 2 << 10).page(true);
    let mut run = Shipping { rng, options, made: Vec::new(), has: (Point::default(), 0), has_since: 0 };
    run.ship(disk).map_err(|what| format!("seed {seed}: {what}"))
}

fn pack(first: usize, last: usize) -> u64 {
    (first as u64) << 32 | last as u64
}

pub(super) fn slot(storage: &Arc<dyn Storage>) -> Result<Slot, String> {
    open_slot_on(storage.clone(), StoreDir::of_directory(), PathBuf::new(), "backup", Some(CAP)).map_err(failed)
}

pub(super) fn written(commit: &Commit) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    for change in &commit.changes {
        if let ChangeKind::Written(range) = &change.kind {
            let mut part = vec![0; (range.end - range.start) as usize];
            change.read_at(&mut part, range.start).map_err(failed)?;
            bytes.extend(part);
        }
    }
    Ok(bytes)
}

impl Shipping {
    fn open(&self, disk: &SimDisk) -> Result<(Store, KillOnDrop), String> {
        let life = KillOnDrop(disk.spawn());
        let store = self.options.open_on(life.0.clone(), StoreDir::of_directory(), PathBuf::new());
        Ok((store.map_err(|e| format!("the store cannot be opened: {e}"))?, life))
    }

    fn ship(&mut self, mut disk: SimDisk) -> Result<(), String> {
        let (store, life) = self.open(&disk)?;
        self.commit(&disk, &store)?;
        // Sometimes the slot is made beside an owner, which finds it at its next checkpoint.
        let is_beside = self.rng.bool();
        if !is_beside {
            store.close().map_err(failed)?;
        }
        let consumer: Arc<dyn Storage> = disk.spawn();
        let made = slot(&consumer)?;
        self.has = (made.acknowledged().map_err(failed)?.ok_or("a new slot has nothing")?.point, 0);
        self.made.clear();
        disk.set_mark(pack(0, 0));
        drop(life);
        for life in 0..LIVES {
            disk = self.live(disk, life == 0 && is_beside).map_err(|what| format!("life {life}: {what}"))?;
        }
        Ok(())
    }

    fn commit(&mut self, disk: &SimDisk, store: &Store) -> Result<(), String> {
        let n = self.made.len();
        let len = [40, 700, 1500, 5000, 9000][self.rng.usize(..5)];
        let bytes = vec![self.rng.u8(1..); len];
        self.made.push(bytes.clone());
        disk.set_mark(pack(n, n + 1));
        let file = store.open_or_create_file("a").map_err(failed)?;
        file.write_all_at(&bytes, 0).map_err(failed)?;
        file.commit().map_err(failed)?;
        disk.set_mark(pack(n + 1, n + 1));
        Ok(())
    }

    /// One owner, and a crash of it. Returns the machine after the crash.
    fn live(&mut self, disk: SimDisk, early_slot: bool) -> Result<SimDisk, String> {
        self.has_since = 0;
        disk.record();
        let (store, life) = self.open(&disk)?;
        disk.set_mark(pack(self.made.len(), self.made.len()));
        let consumer: Arc<dyn Storage> = disk.spawn();
        for _ in 0..self.rng.usize(if early_slot { 3..9 } else { 0..12 }) {
            match self.rng.u8(..10) {
                0 | 1 => store.checkpoint().map_err(failed)?,
                2 => drop(store.write_durable_mark().map_err(failed)?),
                3 if self.rng.bool() => {
                    let point = Reader::last_commit(&reader(&consumer)?).map_err(failed)?;
                    slot(&consumer)?.acknowledge(&Acknowledged { point, ..Acknowledged::default() }).map_err(failed)?;
                    (self.has, self.has_since) = ((point, self.made.len()), disk.calls());
                }
                4 if self.rng.bool() => drop(self.check(&consumer, None)?),
                _ => self.commit(&disk, &store)?,
            }
        }
        if self.rng.bool() {
            store.close().map_err(failed)?;
            self.check(&consumer, None)?;
        }
        let snapshots = disk.recorded();
        drop(life);
        let mut after = None;
        for _ in 0..CRASHES {
            let snapshot = &snapshots[self.rng.usize(..snapshots.len())];
            after = self.crash(snapshot)?.or(after);
        }
        // Only a crash behind the last acknowledgement, so that the commit which the consumer has is there.
        let (next, shown, made) = match after {
            Some(Crashed { disk, shown, made }) if made.len() >= self.has.1 => (disk, shown, made),
            _ => (snapshots.last().expect("a snapshot of the end").killed(), self.made.len(), self.made.clone()),
        };
        self.made = made;
        // Readers see commits that nobody was told of when the next opening has found them.
        next.set_mark(pack(shown, self.made.len()));
        Ok(next)
    }

    /// Crashes here, and looks at the commits: before the next opening, beside its owner, and after a checkpoint and a
    /// close.
    fn crash(&mut self, snapshot: &Snapshot) -> Result<Option<Crashed>, String> {
        let mark = snapshot.mark();
        let (first, last) = ((mark >> 32) as usize, (mark & 0xffff_ffff) as usize);
        if last < self.has.1 || snapshot.call() < self.has_since {
            // The consumer came later.
            return Ok(None);
        }
        let cuts = snapshot.cuts(64, self.rng.u64(..));
        let cut = cuts[self.rng.usize(..cuts.len())];
        let (disk, how) = match self.rng.u8(..3) {
            0 => (snapshot.killed(), "killed".to_owned()),
            _ => (snapshot.power_cut(cut).disk, cut.to_string()),
        };
        let said = |what: String| format!("crashed before call {}, {how}: {what}", snapshot.call());
        let next = disk.fork();
        let consumer: Arc<dyn Storage> = disk.spawn();
        let shown = self.check(&consumer, Some(first..=last)).map_err(said)?;
        let mut run = Shipping { made: self.made[..last].to_vec(), ..self.clone() };
        let left = run.go_on(&disk, &consumer, shown..=last).map_err(said)?;
        Ok(Some(Crashed { disk: next, shown, made: run.made[..left].to_vec() }))
    }

    /// The next owner, which may find commits that a killed one had not published. Returns how many it finds.
    fn go_on(
        &mut self,
        disk: &SimDisk,
        consumer: &Arc<dyn Storage>,
        allowed: std::ops::RangeInclusive<usize>,
    ) -> Result<usize, String> {
        let (store, _life) = self.open(disk)?;
        let left = self.check(consumer, Some(allowed)).map_err(|what| format!("beside the next owner: {what}"))?;
        self.made.truncate(left);
        for _ in 0..3 {
            self.commit(disk, &store)?;
        }
        store.checkpoint().map_err(failed)?;
        self.check(consumer, None).map_err(|what| format!("after a checkpoint: {what}"))?;
        for _ in 0..12 {
            self.commit(disk, &store)?;
        }
        store.close().map_err(failed)?;
        self.check(consumer, None).map_err(|what| format!("after a close: {what}"))?;
        Ok(left)
    }

    /// Reads all commits behind the slot, as the consumer does. Returns how many were made altogether, which must be one
    /// of these numbers; `None`: all.
    fn check(
        &self,
        consumer: &Arc<dyn Storage>,
        allowed: Option<std::ops::RangeInclusive<usize>>,
    ) -> Result<usize, String> {
        let (from, has) = self.has;
        let reader = reader(consumer)?;
        let last = reader.last_commit().map_err(failed)?.lsn;
        let mut follow = reader.follow_from_point(from).map_err(failed)?;
        let mut n = has;
        while follow.lsn() < last {
            match follow.next_within(Duration::ZERO).map_err(failed)? {
                Some(Followed::Commit(commit)) => {
                    let bytes = written(&commit)?;
                    match self.made.get(n) {
                        // Option `full_page` logs whole pages.
                        Some(made) if bytes.starts_with(made) => n += 1,
                        _ if bytes.is_empty() => {}
                        _ => return Err(format!("commit {} is not number {n} that was made", commit.point())),
                    }
                }
                Some(missed) => return Err(format!("behind {n} of {}: {missed:?}", self.made.len())),
                None => {}
            }
        }
        let allowed = allowed.unwrap_or(self.made.len()..=self.made.len());
        match allowed.contains(&n) {
            true => Ok(n),
            false => Err(format!("{n} commits, and {allowed:?} were made")),
        }
    }
}

pub(super) fn reader(consumer: &Arc<dyn Storage>) -> Result<Reader, String> {
    open_reader_on(consumer.clone(), StoreDir::of_directory(), PathBuf::new()).map_err(failed)
}
