//! Stores that crash again and again, with several epochs that are not applied unless they must be.
//!
//! In each life, a process opens the store, changes files and names in it, perhaps makes checkpoints, and ends at any
//! call since the opening began, by a kill or a power cut. The next life must show the state of the last acknowledged
//! commit, or of one that was pending. A state that a life has shown stays.

use crate::programs::differences::{mixture, shown_files};
use crate::programs::fixture::{ELSEWHERE, plain_files};
use crate::programs::reference_model::{Files, Model as Reference, Node};
use crate::programs::runner::KillOnDrop;
use crate::simulation::{Model, Options, PROFILES, SimDisk, Snapshot};
use fastrand::Rng;
use std::path::{Path, PathBuf};
use untorn::__private::{OpenStoreOn, StoreSteps};
use untorn::{Error, FailureClass, Store, StoreOptions};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_journal::format::EPOCHS_MAX;
use untorn_journal::scanning::scan::read_header;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const MODE: u32 = 0o600;

/// The statistics of crash loops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoopTotals {
    /// The number of openings.
    pub openings: u64,
    /// Openings that left commits to be applied later.
    pub unapplied: u64,
    /// The largest number of epochs in a header.
    pub listed_max: usize,
    /// The number of crashes during an opening.
    pub in_openings: u64,
    /// The number of stores with a quarantined journal.
    pub quarantined: u64,
}

struct CrashLoop {
    rng: Rng,
    options: StoreOptions,
    disk: SimDisk,
    /// The state after each commit. The disk's mark has the first and the last of those that may be the last.
    states: Vec<Files>,
    /// There may be commits of class `process` that were not flushed.
    exposed: bool,
    /// A commit has changed names: after a crash, a name may belong to another file.
    renamed: bool,
    /// No checkpoints, and class `power` alone, so that the header's list of epochs becomes full.
    lazy: bool,
    totals: LoopTotals,
}

fn text(what: &str) -> impl Fn(Error) -> String + '_ {
    move |e| format!("{what}: {e}")
}

fn pack(first: usize, last: usize) -> u64 {
    (first as u64) << 32 | last as u64
}

/// Runs one store and its crashes, drawn from a seed. The sync points in `skipped` do nothing.
pub fn crash_loop(seed: u64, skipped: u64, tell: &dyn Fn(String)) -> Result<LoopTotals, String> {
    let mut rng = Rng::with_seed(seed);
    let disk = SimDisk::new(Options {
        profile: PROFILES[rng.usize(..PROFILES.len())],
        model: if rng.bool() { Model::SectorAtomic } else { Model::PageGarbage },
        direct: rng.bool(),
        lines: seed.is_multiple_of(4),
        seed,
        skipped,
        ..Options::default()
    });
    for name in ["a", "b"] {
        disk.put(name, &vec![1; rng.usize(..9000)]).map_err(|e| e.to_string())?;
    }
    disk.settle();
    // Sizes of the journal; the last one is for stores that apply nothing as long as they can avoid it.
    const SIZES: [(u64, u64, u64); 3] =
        [(16 << 10, 4 << 10, 2 << 10), (64 << 10, 8 << 10, 4 << 10), (1 << 20, 16 << 10, 4 << 10)];
    let size = rng.usize(..SIZES.len());
    let (journal, first, inline) = SIZES[size];
    let full_page = disk.options().model == Model::PageGarbage;
    let options = StoreOptions::new().create(true).background(false).sizes(journal, first, inline).full_page(full_page);
    let states = vec![plain_files(&disk)];
    let mut run = CrashLoop {
        rng,
        options,
        disk,
        states,
        exposed: false,
        renamed: false,
        lazy: size == 2,
        totals: LoopTotals::default(),
    };
    run.disk.set_mark(pack(0, 0));
    let lives = if run.lazy { 3 * EPOCHS_MAX } else { run.rng.usize(2..EPOCHS_MAX) };
    for life in 0..lives {
        run.live(tell).map_err(|what| format!("seed {seed}, life {life} of {lives}: {what}"))?;
    }
    run.end().map_err(|what| format!("seed {seed}, after {lives} lives: {what}"))?;
    Ok(run.totals)
}

impl CrashLoop {
    fn open(&mut self, class: FailureClass) -> Result<(Store, KillOnDrop), String> {
        let life = KillOnDrop(self.disk.spawn());
        let options = self.options.clone().class(class);
        let store = options
            .open_on(life.0.clone(), StoreDir::of_directory(), PathBuf::new())
            .map_err(text("the store cannot be opened"))?;
        self.totals.openings += 1;
        if store.status().journal_bytes_pending > 0 {
            self.totals.unapplied += 1;
        }
        if let Ok(header) = read_header(&*life.0, Path::new(".untorn/journal")) {
            self.totals.listed_max = self.totals.listed_max.max(header.listed.len());
        }
        Ok((store, life))
    }

    /// Finds the commit that the store shows, among those that may be the last.
    fn find(&mut self, store: &Store, without: Option<&str>) -> Result<(), String> {
        let shown = shown_files(store, &self.disk)?;
        let mark = self.disk.snapshot().mark();
        let (first, last) = ((mark >> 32) as usize, (mark & 0xffff_ffff) as usize);
        let seen = |state: &Files| {
            let mut state = state.clone();
            without.map(|name| state.remove(Path::new(name)));
            state
        };
        match (first..=last).rev().find(|n| seen(&self.states[*n]) == shown) {
            Some(n) => {
                // A crash of this opening may still leave another one of them, so they stay allowed.
                self.states.push(self.states[n].clone());
                self.disk.set_mark(pack(self.states.len() - 1, self.states.len() - 1));
                Ok(())
            }
            None => {
                let expected = Reference::new(seen(&self.states[last]));
                Err(format!("of commits {first} to {last}: {}", mixture(&expected, 1, &shown)))
            }
        }
    }

    fn last(&self) -> Files {
        self.states.last().expect("the first state").clone()
    }

    fn live(&mut self, tell: &dyn Fn(String)) -> Result<(), String> {
        // Another program has moved `a` away for this life, often with commits of earlier lives that are not applied.
        let mark = self.disk.snapshot().mark();
        let is_certain = mark >> 32 == mark & 0xffff_ffff;
        let away = is_certain
            && !self.renamed
            && !self.lazy
            && self.totals.openings > 0
            && self.rng.bool()
            && self.disk.rename("a", ELSEWHERE).is_ok();
        if away {
            self.disk.settle();
        }
        let class = if self.rng.u8(..16) == 0 && !self.lazy { FailureClass::Process } else { FailureClass::Power };
        self.disk.trace();
        self.disk.record();
        let begun = self.disk.calls();
        let (store, life) = self.open(class)?;
        let opened = self.disk.calls();
        if !away && !store.status().quarantined.is_empty() {
            return Err(format!("files are quarantined: {:?}", store.status().quarantined));
        }
        self.totals.quarantined += u64::from(!store.status().quarantined.is_empty());
        self.find(&store, away.then_some("a"))?;
        let was_exposed = self.exposed;
        self.exposed = class == FailureClass::Process;
        for _ in 0..self.rng.usize(if self.lazy { 1..4 } else { 0..4 }) {
            self.step(&store, away)?;
        }
        let snapshots = self.disk.recorded();
        drop(life);
        // Crashes during the opening are as likely as all others, except in stores whose lists are to become full.
        let early = self.rng.u8(..if self.lazy { 10 } else { 2 }) == 0;
        let chosen: Vec<&Snapshot> =
            snapshots.iter().filter(|s| (s.call() <= opened) == early && s.call() >= begun).collect();
        let snapshot = match chosen.len() {
            0 => snapshots.last().expect("the opening made calls"),
            // A late call, after some commit.
            n if self.lazy => chosen[n - 1 - self.rng.usize(..n.div_ceil(8))],
            n => chosen[self.rng.usize(..n)],
        };
        tell(format!("a life in class {class:?}, `a` away: {away}, crashed before call {}:", snapshot.call()));
        self.disk.traced().into_iter().for_each(&tell);
        self.totals.in_openings += u64::from(snapshot.call() <= opened);
        let exposed = if snapshot.call() <= opened { was_exposed || self.exposed } else { self.exposed };
        self.exposed = exposed;
        let cuts = snapshot.cuts(64, self.rng.u64(..));
        let cut = cuts[self.rng.usize(..cuts.len())];
        tell(format!("killed: {exposed}, or {cut}"));
        self.disk = match exposed || self.rng.u8(..3) == 0 {
            true => snapshot.killed(),
            false => snapshot.power_cut(cut).disk,
        };
        if away {
            let _ = self.disk.rename(ELSEWHERE, "a");
            self.disk.settle();
        }
        Ok(())
    }

    /// One step of a program. Files that another program has moved away are not changed.
    fn step(&mut self, store: &Store, away: bool) -> Result<(), String> {
        let names: Vec<&str> = NAMES.into_iter().filter(|name| !(away && *name == "a")).collect();
        let mut next = self.last();
        let (from, to) = (names[self.rng.usize(..names.len())], names[self.rng.usize(..names.len())]);
        let there = |files: &Files, name: &str| files.contains_key(Path::new(name));
        match self.rng.u8(if self.lazy { 2..16 } else { 0..16 }) {
            0 if self.rng.bool() => {
                store.checkpoint().or_else(|e| if away { Ok(()) } else { Err(text("checkpoint")(e)) })
            }
            1 => {
                let begun = store.begin_checkpoint().map_err(text("begin a checkpoint"))?;
                let applied = begun.map(|checkpoint| checkpoint.apply()).transpose();
                match applied {
                    Err(e) if !away => Err(text("apply a checkpoint")(e)),
                    _ => Ok(()),
                }
            }
            2 => store.write_durable_mark().map(drop).map_err(text("write a mark")),
            3 | 4 if there(&next, from) && from != to => {
                let node = next.remove(Path::new(from)).expect("there");
                next.insert(to.into(), node);
                self.commit(
                    next,
                    away,
                    |store| {
                        let mut txn = store.begin();
                        txn.rename(from, to)?;
                        txn.commit()
                    },
                    store,
                )
            }
            5 if there(&next, from) => {
                next.remove(Path::new(from));
                self.commit(
                    next,
                    away,
                    |store| {
                        let mut txn = store.begin();
                        txn.unlink(from)?;
                        txn.commit()
                    },
                    store,
                )
            }
            6 | 7 if !there(&next, from) => {
                let bytes = vec![self.rng.u8(1..); self.rng.usize(..6000)];
                next.insert(from.into(), Node::File(bytes.clone(), MODE));
                self.commit(
                    next,
                    away,
                    |store| {
                        let mut txn = store.begin();
                        let file = txn.create(from, MODE)?;
                        file.write_all_at(&bytes, 0)?;
                        drop(file);
                        txn.commit()
                    },
                    store,
                )
            }
            _ => {
                // Bytes of one or two files.
                let mut changes = Vec::new();
                for name in if self.rng.bool() { vec![from] } else { vec![from, to] } {
                    let Some(Node::File(contents, _)) = next.get_mut(Path::new(name)) else { continue };
                    let at = self.rng.usize(..=contents.len());
                    let most = if self.rng.u8(..6) == 0 { 12_000 } else { 1500 };
                    let bytes = vec![self.rng.u8(1..); self.rng.usize(1..most)];
                    let cut = (self.rng.u8(..5) == 0).then(|| self.rng.usize(..=contents.len()));
                    contents.resize(contents.len().max(at + bytes.len()), 0);
                    contents[at..at + bytes.len()].copy_from_slice(&bytes);
                    if let Some(cut) = cut {
                        contents.truncate(cut);
                    }
                    changes.push((name, at, bytes, cut));
                }
                self.commit(
                    next,
                    away,
                    |store| {
                        let mut files = Vec::new();
                        for (name, at, bytes, cut) in &changes {
                            let file = store.open_file(name)?;
                            file.write_all_at(bytes, *at as u64)?;
                            if let Some(cut) = cut {
                                file.set_len(*cut as u64)?;
                            }
                            files.push(file);
                        }
                        store.syncv(&files.iter().collect::<Vec<_>>())
                    },
                    store,
                )
            }
        }
    }

    fn commit(
        &mut self,
        next: Files,
        away: bool,
        act: impl FnOnce(&Store) -> Result<(), Error>,
        store: &Store,
    ) -> Result<(), String> {
        let n = self.states.len();
        self.renamed |= !next.keys().eq(self.last().keys());
        self.states.push(next);
        self.disk.set_mark(pack(n - 1, n));
        match act(store) {
            Ok(()) => self.disk.set_mark(pack(n, n)),
            // A quarantined file may keep a name, or the journal.
            Err(e) if away && !matches!(e, Error::SyncFailed { .. }) => {
                self.states.pop();
                self.disk.set_mark(pack(n - 1, n - 1));
            }
            Err(e) => return Err(text("a commit")(e)),
        }
        Ok(())
    }

    /// Closes the store, which must leave plain, complete files.
    fn end(&mut self) -> Result<(), String> {
        let (store, _life) = self.open(FailureClass::Power)?;
        self.find(&store, None)?;
        store.close().map_err(text("close"))?;
        let files = plain_files(&self.disk);
        match files == self.last() {
            true => Ok(()),
            false => Err(format!("after a close: {}", mixture(&Reference::new(self.last()), 1, &files))),
        }
    }
}
