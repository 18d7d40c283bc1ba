//! Owners of a store that crash at any call, one after the other: each finds the last commit, or one that was on its way.

use super::opening::failed;
use crate::programs::runner::KillOnDrop;
use crate::simulation::{Fault, On, Options, Profile, SimDisk, Snapshot, What};
use fastrand::Rng;
use std::path::PathBuf;
use untorn::__private::{OpenStoreOn, sync_point};
use untorn::{Error, Store, StoreOptions};
use untorn_journal::directories::store_dir::StoreDir;

/// The files.
pub(super) const NAMES: [&str; 3] = ["a", "b", "c"];
/// Bytes of each.
pub(super) const FILE_BYTES: usize = 12_000;
/// The number of owners that crash one after the other.
const CRASHES: usize = 3;
const COMMITS: usize = 10;

/// The contents of the files, and how many commits made them.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct State(Vec<Vec<u8>>);

/// A store that is crashed, with the states that it may show.
#[derive(Clone)]
pub(super) struct Run {
    rng: Rng,
    /// The options of the store.
    options: StoreOptions,
    /// The state after each commit.
    pub(super) states: Vec<State>,
}

/// Opens the store with a process that lives as long as the second value.
pub(super) fn open(options: &StoreOptions, disk: &SimDisk) -> Result<(Store, KillOnDrop), Error> {
    let life = KillOnDrop(disk.spawn());
    let store = options.open_on(life.0.clone(), StoreDir::of_directory(), PathBuf::new())?;
    Ok((store, life))
}

/// A disk with the files.
pub(super) fn new_disk(profile: Profile, seed: u64) -> SimDisk {
    let disk = SimDisk::new(Options { profile, seed, direct: seed.is_multiple_of(2), ..Options::default() });
    for name in NAMES {
        disk.put(name, &[1; FILE_BYTES]).expect("a file of a new disk");
    }
    disk.settle();
    disk
}

/// The contents of the files.
pub(super) fn shown(store: &Store) -> Result<State, Error> {
    let contents = |name: &&str| {
        let file = store.open_file(name)?;
        let mut bytes = vec![0; file.len()? as usize];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    };
    Ok(State(NAMES.iter().map(contents).collect::<Result<_, Error>>()?))
}

impl Run {
    pub(super) fn new(seed: u64, options: StoreOptions) -> Run {
        Run { rng: Rng::with_seed(seed), options, states: vec![State(vec![vec![1; FILE_BYTES]; NAMES.len()])] }
    }

    /// Commits a change of one file, of less than a block to more than two. The mark of the disk is the number of commits
    /// that were told.
    pub(super) fn commit(&mut self, disk: &SimDisk, store: &Store) -> Result<(), Error> {
        let len = if self.rng.u8(..4) == 0 { self.rng.usize(..9000) } else { self.rng.usize(..2000) } + 1;
        self.commit_bytes(disk, store, len)
    }

    pub(super) fn commit_bytes(&mut self, disk: &SimDisk, store: &Store, len: usize) -> Result<(), Error> {
        let which = self.rng.usize(..NAMES.len());
        let (at, byte) = (self.rng.usize(..FILE_BYTES - len), self.rng.u8(2..));
        let mut next = self.states[self.states.len() - 1].clone();
        next.0[which][at..at + len].fill(byte);
        self.states.push(next);
        let file = store.open_file(NAMES[which])?;
        file.write_all_at(&vec![byte; len], at as u64)?;
        file.commit()?;
        disk.set_mark(self.states.len() as u64 - 1);
        Ok(())
    }

    /// An owner finds the last commit, or one that was on its way, makes commits with checkpoints in between, and crashes
    /// at some call.
    pub(super) fn live(mut self, disk: &SimDisk, crashes: usize) -> Result<(), String> {
        disk.kill();
        disk.record();
        let told = disk.snapshot().mark() as usize;
        let (store, life) = open(&self.options, disk).map_err(failed)?;
        let found = shown(&store).map_err(failed)?;
        let Some(n) = (told..self.states.len()).rev().find(|n| self.states[*n] == found) else {
            return Err(format!("none of the commits {told} to {} is shown", self.states.len() - 1));
        };
        self.states.truncate(n + 1);
        disk.set_mark(n as u64);
        if crashes == CRASHES {
            return store.close().map_err(failed);
        }
        for _ in 0..COMMITS {
            if self.rng.u8(..16) == 0 {
                let on = On::SyncPoint(sync_point::INDEX_BOUND);
                disk.fail(Fault { on, after: 0, times: 1, what: What::Errno(libc::EIO) });
            }
            self.commit(disk, &store).map_err(failed)?;
            if self.rng.u8(..5) == 0 {
                store.checkpoint().map_err(failed)?;
            }
        }
        let snapshots = disk.recorded();
        drop(life);
        drop(store);
        match crashes {
            0 => snapshots.iter().try_for_each(|snapshot| self.crash(snapshot, crashes)),
            _ => {
                let chosen = &snapshots[self.rng.usize(..snapshots.len())];
                self.crash(chosen, crashes)
            }
        }
    }

    /// Kills the owner at some moment, or cuts the power.
    fn crash(&mut self, snapshot: &Snapshot, crashes: usize) -> Result<(), String> {
        self.rng = self.rng.fork();
        let cuts = snapshot.cuts(3, self.rng.u64(..));
        let number = crashes + 1;
        let said = |how: &str, what: String| format!("crash {number} before call {}, {how}: {what}", snapshot.call());
        let next = |disk: &SimDisk| self.clone().live(disk, number);
        next(&snapshot.killed()).map_err(|what| said("killed", what))?;
        cuts.into_iter()
            .try_for_each(|cut| next(&snapshot.power_cut(cut).disk).map_err(|what| said(&cut.to_string(), what)))
    }
}
