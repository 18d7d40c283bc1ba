//! Commits that an opening left unapplied are applied in portions: crashes between any two calls, up to three in a row.
//!
//! An owner was killed with commits in all segments of its journal. The next owner applies them in portions, with
//! commits in between, and crashes; so do the two owners after it, each with one more epoch.

use super::opening::failed;
use crate::programs::differences::{mixture, shown_files};
use crate::programs::fixture::plain_files;
use crate::programs::reference_model::{Files, Model as Reference, Node};
use crate::programs::runner::KillOnDrop;
use crate::simulation::{Options, PROFILES, Profile, SimDisk, Snapshot};
use fastrand::Rng;
use std::path::{Path, PathBuf};
use untorn::__private::{OpenStoreOn, StoreSteps};
use untorn::{Error, Store, StoreOptions};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_journal::format::ListedEpoch;
use untorn_journal::scanning::scan::read_header;

const MODE: u32 = 0o600;
/// The number of owners that crash one after the other.
const CRASHES: usize = 3;
/// The power cuts at each moment of the first of them.
const CUTS: usize = 3;
/// The crashes of each later one.
const LATER: usize = 1;

/// The statistics of these crashes.
#[derive(Clone, Copy, Debug, Default)]
pub struct PortionTotals {
    /// The number of openings.
    pub openings: u64,
    /// The number of portions that were applied.
    pub portions: u64,
    /// Openings after a header whose checkpoint LSN is in the middle of a listed epoch.
    pub within_listed: u64,
}

/// A store that is crashed, with its allowed states.
#[derive(Clone)]
struct Portions {
    rng: Rng,
    /// Recovery uses the indexes of the log.
    indexed: bool,
    /// The state after each commit. The disk's mark has the numbers of the first and the last that may be the newest.
    states: Vec<Files>,
}

fn pack(first: usize, last: usize) -> u64 {
    (first as u64) << 32 | last as u64
}

fn open(disk: &SimDisk, indexed: bool) -> Result<(Store, KillOnDrop), String> {
    let life = KillOnDrop(disk.spawn());
    // Segments of 2, 4, 4 and 4 blocks; a commit takes one block, or its bytes go to a spill file.
    let options = StoreOptions::new().create(true).background(false).sizes(64 << 10, 8 << 10, 4 << 10);
    let options = options.index_bytes_least(if indexed { 0 } else { u64::MAX });
    let store = options.open_on(life.0.clone(), StoreDir::of_directory(), PathBuf::new());
    Ok((store.map_err(|e| format!("the store cannot be opened: {e}"))?, life))
}

/// Portions survive every crash between them.
pub(crate) fn portions_survive_every_crash() -> Result<(), String> {
    let mut totals = PortionTotals::default();
    PROFILES.into_iter().try_for_each(|profile| crash_in_portions(profile, 1, false, &mut totals))
}

/// So they do where recovery uses the indexes of the log.
pub(crate) fn portions_of_an_indexed_log_survive_every_crash() -> Result<(), String> {
    let mut totals = PortionTotals::default();
    PROFILES.into_iter().try_for_each(|profile| crash_in_portions(profile, 1, true, &mut totals))
}

/// Crashes of a store on a disk of this kind, drawn from a seed.
pub fn crash_in_portions(profile: Profile, seed: u64, indexed: bool, totals: &mut PortionTotals) -> Result<(), String> {
    let disk = SimDisk::new(Options { profile, seed, direct: seed.is_multiple_of(2), ..Options::default() });
    let mut run = Portions { rng: Rng::with_seed(seed), indexed, states: Vec::new() };
    let said = |what: String| format!("profile {profile:?}, seed {seed}, indexed: {indexed}: {what}");
    run.fill_journal(&disk).map_err(said)?;
    run.live(&disk, 0, totals).map_err(said)
}

impl Portions {
    /// Makes commits to six files that fill all four segments, and kills the owner.
    fn fill_journal(&mut self, disk: &SimDisk) -> Result<(), String> {
        for (name, len) in [("a", 4000), ("b", 3000), ("c", 500), ("f", 200)] {
            disk.put(name, &vec![1; len]).map_err(|e| e.to_string())?;
        }
        disk.settle();
        self.states.push(plain_files(disk));
        let (store, _life) = open(disk, self.indexed)?;
        self.write(disk, &store, "a", 0, 1500)?;
        self.write(disk, &store, "b", 100, 1500)?;
        // Behind the end, with a gap.
        self.write(disk, &store, "a", 6000, 1500)?;
        self.rename(disk, &store, "c", "d")?;
        self.cut(disk, &store, "b", 500)?;
        self.create(disk, &store, "e", 700)?;
        // No byte of the first commit to `a` is left.
        self.write(disk, &store, "a", 0, 1600)?;
        self.write(disk, &store, "b", 700, 300)?;
        // Goes to a spill file.
        self.write(disk, &store, "d", 100, 6000)?;
        self.unlink(disk, &store, "f")?;
        self.write(disk, &store, "a", 1000, 200)?;
        self.write(disk, &store, "e", 600, 900)
    }

    fn commit(
        &mut self,
        disk: &SimDisk,
        change: impl FnOnce(&mut Files),
        act: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), String> {
        let n = self.states.len();
        let mut next = self.states[n - 1].clone();
        change(&mut next);
        self.states.push(next);
        disk.set_mark(pack(n - 1, n));
        act().map_err(failed)?;
        disk.set_mark(pack(n, n));
        Ok(())
    }

    fn write(&mut self, disk: &SimDisk, store: &Store, name: &str, at: usize, len: usize) -> Result<(), String> {
        let bytes = vec![self.rng.u8(2..); len];
        let change = |files: &mut Files| {
            let Some(Node::File(contents, _)) = files.get_mut(Path::new(name)) else { panic!("no file {name}") };
            contents.resize(contents.len().max(at + len), 0);
            contents[at..at + len].copy_from_slice(&bytes);
        };
        self.commit(disk, change, || {
            let file = store.open_file(name)?;
            file.write_all_at(&bytes, at as u64)?;
            file.commit()
        })
    }

    fn cut(&mut self, disk: &SimDisk, store: &Store, name: &str, len: usize) -> Result<(), String> {
        let change = |files: &mut Files| {
            let Some(Node::File(contents, _)) = files.get_mut(Path::new(name)) else { panic!("no file {name}") };
            contents.resize(len, 0);
        };
        self.commit(disk, change, || {
            let file = store.open_file(name)?;
            file.set_len(len as u64)?;
            file.commit()
        })
    }

    fn rename(&mut self, disk: &SimDisk, store: &Store, from: &str, to: &str) -> Result<(), String> {
        let change = |files: &mut Files| {
            let node = files.remove(Path::new(from)).expect("it is there");
            files.insert(to.into(), node);
        };
        self.commit(disk, change, || store.rename(from, to))
    }

    fn unlink(&mut self, disk: &SimDisk, store: &Store, name: &str) -> Result<(), String> {
        let change = |files: &mut Files| drop(files.remove(Path::new(name)));
        self.commit(disk, change, || {
            let mut txn = store.begin();
            txn.unlink(name)?;
            txn.commit()
        })
    }

    fn create(&mut self, disk: &SimDisk, store: &Store, name: &str, len: usize) -> Result<(), String> {
        let bytes = vec![self.rng.u8(2..); len];
        let change = |files: &mut Files| drop(files.insert(name.into(), Node::File(bytes.clone(), MODE)));
        self.commit(disk, change, || {
            let mut txn = store.begin();
            let file = txn.create(name, MODE)?;
            file.write_all_at(&bytes, 0)?;
            drop(file);
            txn.commit()
        })
    }

    /// The store must show the state after one of the commits that may be the newest.
    fn find(&mut self, disk: &SimDisk, store: &Store) -> Result<(), String> {
        if !store.status().quarantined.is_empty() {
            return Err(format!("files are quarantined: {:?}", store.status().quarantined));
        }
        let shown = shown_files(store, disk)?;
        let mark = disk.snapshot().mark();
        let (first, last) = ((mark >> 32) as usize, (mark & 0xffff_ffff) as usize);
        let Some(n) = (first..=last).rev().find(|n| self.states[*n] == shown) else {
            let expected = Reference::new(self.states[last].clone());
            return Err(format!("of commits {first} to {last}: {}", mixture(&expected, 1, &shown)));
        };
        // A crash of this opening may still leave another one of them, so they stay allowed.
        self.states.push(self.states[n].clone());
        let last = self.states.len() - 1;
        disk.set_mark(pack(last, last));
        Ok(())
    }

    /// One owner: opens the store, applies portions with commits in between, and crashes at some call.
    fn live(&mut self, disk: &SimDisk, crashes: usize, totals: &mut PortionTotals) -> Result<(), String> {
        disk.kill();
        disk.record();
        let (store, life) = open(disk, self.indexed)?;
        totals.openings += 1;
        let header = read_header(&*life.0, Path::new(".untorn/journal")).map_err(failed)?;
        let within = |listed: &ListedEpoch| (listed.first_lsn..listed.last_lsn).contains(&header.checkpoint_lsn);
        totals.within_listed += u64::from(header.listed.iter().any(within));
        self.find(disk, &store)?;
        let mut may_commit = 3;
        loop {
            if may_commit > 0 && self.rng.bool() {
                may_commit -= 1;
                self.change(disk, &store)?;
            }
            let Some(begun) = store.begin_checkpoint().map_err(failed)? else { break };
            let applied = begun.apply().map_err(failed)?;
            if may_commit > 0 && self.rng.u8(..4) == 0 {
                may_commit -= 1;
                self.change(disk, &store)?;
            }
            applied.truncate_log().map_err(failed)?;
            totals.portions += 1;
            self.find(disk, &store)?;
        }
        let snapshots = disk.recorded();
        drop(life);
        drop(store);
        if crashes == CRASHES {
            return self.end(disk);
        }
        match crashes {
            0 => snapshots.iter().try_for_each(|snapshot| self.crash(snapshot, CUTS, crashes, totals)),
            _ => (0..LATER).try_for_each(|_| {
                let snapshot = &snapshots[self.rng.usize(..snapshots.len())];
                self.crash(snapshot, 0, crashes, totals)
            }),
        }
    }

    /// Kills the owner at some moment, and cuts the power in `cuts` ways; if `cuts` is 0, does one of the two.
    fn crash(
        &mut self,
        snapshot: &Snapshot,
        cuts: usize,
        crashes: usize,
        totals: &mut PortionTotals,
    ) -> Result<(), String> {
        let mut said = snapshot.cuts(cuts.max(1), self.rng.u64(..));
        let kill = cuts > 0 || self.rng.bool();
        if cuts == 0 && kill {
            said.clear();
        }
        let told =
            |how: &str, what: String| format!("crash {} before call {}, {how}: {what}", crashes + 1, snapshot.call());
        if kill {
            self.clone().live(&snapshot.killed(), crashes + 1, totals).map_err(|what| told("killed", what))?;
        }
        said.into_iter().try_for_each(|cut| {
            let next = self.clone().live(&snapshot.power_cut(cut).disk, crashes + 1, totals);
            next.map_err(|what| told(&cut.to_string(), what))
        })?;
        // The next crash must draw other numbers.
        self.rng = self.rng.fork();
        Ok(())
    }

    /// One commit of an owner.
    fn change(&mut self, disk: &SimDisk, store: &Store) -> Result<(), String> {
        let there = |name: &str| self.states.last().expect("a state").contains_key(Path::new(name));
        match self.rng.u8(..8) {
            0 if there("d") => self.rename(disk, store, "d", "g"),
            1 if there("e") => self.rename(disk, store, "e", "b"),
            2 if there("e") => self.unlink(disk, store, "e"),
            3 if !there("f") => self.create(disk, store, "f", 900),
            4 => {
                let len = self.rng.usize(..3000);
                match there("e") {
                    true => self.cut(disk, store, "b", len.min(400)),
                    false => self.write(disk, store, "b", len, 700),
                }
            }
            _ => {
                let at = self.rng.usize(..7000);
                self.write(disk, store, "a", at, 500)
            }
        }
    }

    /// The last owner closes the store: the files must be plain and complete.
    fn end(&mut self, disk: &SimDisk) -> Result<(), String> {
        let (store, _life) = open(disk, self.indexed)?;
        self.find(disk, &store)?;
        store.close().map_err(failed)?;
        let found = plain_files(disk);
        let expected = self.states.last().expect("a state").clone();
        match found == expected {
            true => Ok(()),
            false => Err(format!("closed: {}", mixture(&Reference::new(expected), 1, &found))),
        }
    }
}
