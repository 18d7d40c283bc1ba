//! Recovery by the indexes of the log: crashes between any two calls of owners that use all segments again and again,
//! and damage to indexes and segments.

use super::opening::failed;
use crate::programs::runner::KillOnDrop;
use crate::simulation::{Cut, Fault, On, Options, PROFILES, Profile, SimDisk, Snapshot, What};
use fastrand::Rng;
use std::path::{Path, PathBuf};
use untorn::__private::{OpenStoreOn, StoreSteps, sync_point};
use untorn::{Error, Store, StoreOptions};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_os::SyncPoint;

const NAMES: [&str; 3] = ["a", "b", "c"];
const FILE_BYTES: usize = 12_000;
/// The number of owners that crash one after the other.
const CRASHES: usize = 3;
const COMMITS: usize = 10;

/// The contents of the files, and how many commits made them.
#[derive(Clone, PartialEq, Eq)]
struct State(Vec<Vec<u8>>);

/// A store that is crashed, with the states that it may show.
#[derive(Clone)]
struct Run {
    rng: Rng,
    /// The state after each commit.
    states: Vec<State>,
}

/// Segments of 4, 8, 8 and 8 blocks, of which the index tells from the first block on.
fn options() -> StoreOptions {
    let options = StoreOptions::new().create(true).background(false).sizes(128 << 10, 16 << 10, 8 << 10);
    options.index_bytes_least(0)
}

fn open(disk: &SimDisk) -> Result<(Store, KillOnDrop), Error> {
    let life = KillOnDrop(disk.spawn());
    let store = options().open_on(life.0.clone(), StoreDir::of_directory(), PathBuf::new())?;
    Ok((store, life))
}

fn new_disk(profile: Profile, seed: u64) -> SimDisk {
    let disk = SimDisk::new(Options { profile, seed, direct: seed.is_multiple_of(2), ..Options::default() });
    for name in NAMES {
        disk.put(name, &[1; FILE_BYTES]).expect("a file of a new disk");
    }
    disk.settle();
    disk
}

fn shown(store: &Store) -> Result<State, Error> {
    let contents = |name: &&str| {
        let file = store.open_file(name)?;
        let mut bytes = vec![0; file.len()? as usize];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    };
    Ok(State(NAMES.iter().map(contents).collect::<Result<_, Error>>()?))
}

/// Owners crash at every call, three in a row.
pub(crate) fn an_indexed_log_survives_every_crash() -> Result<(), String> {
    PROFILES.into_iter().try_for_each(|profile| {
        begin_in_a_bounded_segment(profile, None)?;
        crash_indexed(profile, 1, None)
    })
}

/// Crashes owners at every call, on a disk of this kind, with this flush left out. The seed draws their commits.
pub fn crash_indexed(profile: Profile, seed: u64, skipped: Option<SyncPoint>) -> Result<(), String> {
    let disk = new_disk(profile, seed);
    skipped.into_iter().for_each(|point| disk.skip(point));
    Run::new(seed).live(&disk, 0).map_err(|what| format!("profile {profile:?}, seed {seed}: {what}"))
}

/// A store begins in a segment of which an earlier use left a bound, and the owner is killed at some call of its first
/// commit; so the head that takes the bound back may be in the page cache only. The next owner commits, and the power
/// fails, without this flush.
pub fn begin_in_a_bounded_segment(profile: Profile, skipped: Option<SyncPoint>) -> Result<(), String> {
    let disk = new_disk(profile, 1);
    skipped.into_iter().for_each(|point| disk.skip(point));
    let mut run = Run::new(1);
    let (store, life) = open(&disk).map_err(failed)?;
    for _ in 0..20 {
        run.commit(&disk, &store).map_err(failed)?;
    }
    store.close().map_err(failed)?;
    drop(life);
    disk.record();
    let (store, life) = open(&disk).map_err(failed)?;
    run.commit_bytes(&disk, &store, 100).map_err(failed)?;
    let snapshots = disk.recorded();
    drop((store, life));
    for snapshot in snapshots {
        let (disk, mut run) = (snapshot.killed(), run.clone());
        let (store, _life) = open(&disk).map_err(failed)?;
        run.states = vec![shown(&store).map_err(failed)?];
        run.commit_bytes(&disk, &store, 100).map_err(failed)?;
        let cut = disk.power_cut(Cut::Nothing).disk;
        let (store, _life) = open(&cut).map_err(failed)?;
        if shown(&store).map_err(failed)? != run.states[1] {
            return Err(format!("killed before call {}: an earlier commit is shown", snapshot.call()));
        }
    }
    Ok(())
}

impl Run {
    fn new(seed: u64) -> Run {
        Run { rng: Rng::with_seed(seed), states: vec![State(vec![vec![1; FILE_BYTES]; NAMES.len()])] }
    }

    /// Commits a change of one file, of less than a block to more than two. The mark of the disk is the number of commits
    /// that were told.
    fn commit(&mut self, disk: &SimDisk, store: &Store) -> Result<(), Error> {
        let len = if self.rng.u8(..4) == 0 { self.rng.usize(..9000) } else { self.rng.usize(..2000) } + 1;
        self.commit_bytes(disk, store, len)
    }

    fn commit_bytes(&mut self, disk: &SimDisk, store: &Store, len: usize) -> Result<(), Error> {
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
    fn live(mut self, disk: &SimDisk, crashes: usize) -> Result<(), String> {
        disk.kill();
        disk.record();
        let told = disk.snapshot().mark() as usize;
        let (store, life) = open(disk).map_err(failed)?;
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

/// The store of a killed owner, with its states.
fn killed(seed: u64) -> Result<(SimDisk, Run), String> {
    let disk = new_disk(Profile::Ext4, seed);
    let mut run = Run::new(seed);
    let (store, _life) = open(&disk).map_err(failed)?;
    for n in 0..12 {
        if n == 4 {
            store.checkpoint().map_err(failed)?;
        }
        run.commit(&disk, &store).map_err(failed)?;
    }
    store.write_durable_mark().map_err(failed)?;
    disk.kill();
    Ok((disk, run))
}

fn logs(disk: &SimDisk, beginning: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let is_one = |path: &Path| path.to_string_lossy().starts_with(&format!(".untorn/journal/{beginning}."));
    disk.tree().into_iter().filter(|(path, _)| is_one(path)).map(|(path, entry)| (path, entry.contents)).collect()
}

/// Damages every fourth byte that is not zero in the indexes, and many in the segments: an opening shows the last commit,
/// or says that something is damaged, and shows no other one.
pub(crate) fn an_index_hides_no_damage() -> Result<(), String> {
    let (disk, run) = killed(5)?;
    let last = run.states.last().expect("a state");
    let mut found = 0;
    for (kind, step) in [("index", 4), ("segment", 59)] {
        for (path, bytes) in logs(&disk, kind) {
            for at in (0..bytes.len()).step_by(step).filter(|at| bytes[*at] != 0) {
                let damaged = disk.fork();
                damaged.overwrite(&path, at as u64, &[!bytes[at]]).map_err(|e| e.to_string())?;
                damaged.settle();
                match open(&damaged).and_then(|(store, _life)| shown(&store)) {
                    Ok(state) if state == *last => {}
                    Err(Error::Corrupt { .. }) if kind == "segment" => found += 1,
                    Ok(_) => return Err(format!("byte {at} of {}: another commit is shown", path.display())),
                    Err(e) => return Err(format!("byte {at} of {}: {e}", path.display())),
                }
            }
        }
    }
    if found == 0 { Err("no damage was found".into()) } else { Ok(()) }
}

/// The indexes of an earlier time are put in the place of the newest ones, as by an incomplete backup.
pub(crate) fn an_index_of_another_time_is_not_believed() -> Result<(), String> {
    let disk = new_disk(Profile::Ext4, 3);
    let mut run = Run::new(3);
    let (store, _life) = open(&disk).map_err(failed)?;
    let mut earlier = Vec::new();
    for _ in 0..12 {
        run.commit(&disk, &store).map_err(failed)?;
        earlier.push(logs(&disk, "index"));
    }
    disk.kill();
    for indexes in earlier {
        let mixed = disk.fork();
        for (n, (path, _)) in logs(&disk, "index").into_iter().enumerate() {
            // Not removed, so that no copy gets the inode number.
            mixed.rename(&path, format!("newest-{n}")).map_err(|e| e.to_string())?;
        }
        for (path, bytes) in indexes {
            mixed.put(&path, &bytes).map_err(|e| e.to_string())?;
        }
        let (store, _life) = open(&mixed).map_err(failed)?;
        if shown(&store).map_err(failed)? != run.states[run.states.len() - 1] {
            return Err("an earlier commit is shown".into());
        }
    }
    Ok(())
}
