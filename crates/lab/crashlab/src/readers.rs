//! Readers beside an owner, at every interleaving of their calls: a reader must never see a mixture, a commit that is
//! not durable, a name as of another moment, or anything older than it saw before.
//!
//! An owner runs a program on the simulated disk, and the run is recorded: commits of bytes and names, checkpoints with
//! commits in between, closings, crashes. Readers then read the recording, which moves on between their calls. A reader
//! must see the tree after some commit that a power cut at that moment would not lose.

pub(crate) mod lease_moments;
pub(crate) mod lease_stand_in;

use crate::programs::runner::KillOnDrop;
use crate::readers::lease_stand_in::{Taken, lease_closed, read_on, stand_in};
use crate::simulation::replayed::{Pace, Recording, Replayed};
use crate::simulation::{Cut, Options, PROFILES, SimDisk, Snapshot};
use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use untorn::__private::{OpenStoreOn, StoreSteps, open_reader_on};
use untorn::reader::{Followed, Snapshot as View};
use untorn::{Error, Store, StoreOptions};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_journal::readers::look::Look;
use untorn_os::Storage;

/// Names and contents.
type Tree = BTreeMap<String, Vec<u8>>;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const STEPS: usize = 14;
const FILE_BYTES_MAX: usize = 9000;

/// The counts of readers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderTotals {
    /// Moments that were recorded.
    pub moments: u64,
    /// Trees that were read completely.
    pub whole: u64,
    /// The number of these that were read while the recording moved on.
    pub across: u64,
    /// Snapshots that expired before they were read completely.
    pub expired: u64,
    /// Commits that followers got.
    pub followed: u64,
    /// Trees that were read completely under a lease while the recording moved on.
    pub held: u64,
}

impl std::ops::AddAssign for ReaderTotals {
    fn add_assign(&mut self, other: ReaderTotals) {
        self.moments += other.moments;
        self.whole += other.whole;
        self.across += other.across;
        self.expired += other.expired;
        self.followed += other.followed;
        self.held += other.held;
    }
}

fn said(what: &str) -> impl Fn(Error) -> String + '_ {
    move |e| format!("{what}: {e}")
}

/// The bytes of the journal, of its first segment, and of the largest commit that is not spilled. With the small
/// journal, commits wait for checkpoints.
type Sizes = (u64, u64, u64);
const LARGE: Sizes = (256 << 10, 4 << 10, 2 << 10);
const SMALL: Sizes = (48 << 10, 8 << 10, 4 << 10);

fn open(disk: &SimDisk, (journal, first, inline): Sizes) -> Result<(Store, KillOnDrop), String> {
    let life = KillOnDrop(disk.spawn());
    let options = StoreOptions::new().create(true).background(false).sizes(journal, first, inline).page(true);
    let store = options.open_on(life.0.clone(), StoreDir::of_directory(), PathBuf::new());
    Ok((store.map_err(said("opening the store"))?, life))
}

fn mark(acknowledged: usize, begun: usize) -> u64 {
    (acknowledged as u64) << 32 | begun as u64
}

/// The owner: a store, and the tree after each commit.
struct Owner {
    rng: Rng,
    disk: SimDisk,
    trees: Vec<Tree>,
    /// The leases in place of readers, if readers have leases.
    leases: Option<Taken>,
}

impl Owner {
    fn tree(&self) -> Tree {
        self.trees.last().expect("the empty one").clone()
    }

    /// Makes a commit that leads to this tree.
    fn commit(&mut self, tree: Tree, act: impl FnOnce() -> untorn::Result<()>) -> Result<(), String> {
        let before = self.trees.len() - 1;
        self.trees.push(tree);
        self.disk.set_mark(mark(before, before + 1));
        act().map_err(said("a commit"))?;
        self.disk.set_mark(mark(before + 1, before + 1));
        Ok(())
    }

    /// Bytes that depend on the commit that writes them.
    fn bytes(&mut self) -> Vec<u8> {
        let n = self.trees.len() as u64;
        let len = if self.rng.u8(..4) == 0 { self.rng.usize(1..FILE_BYTES_MAX) } else { self.rng.usize(1..600) };
        n.to_le_bytes().into_iter().cycle().take(len).collect()
    }

    fn name(&mut self, tree: &Tree) -> Option<String> {
        let known: Vec<&String> = tree.keys().collect();
        (!known.is_empty()).then(|| known[self.rng.usize(..known.len())].clone())
    }

    fn change(&mut self, store: &Store) -> Result<(), String> {
        let mut tree = self.tree();
        let Some(name) = self.name(&tree) else { return self.create(store, tree) };
        match self.rng.u8(..10) {
            0..=3 => self.write(store, tree, name),
            4 => {
                let file = store.open_file(&name).map_err(said("open"))?;
                let len = self.rng.usize(..FILE_BYTES_MAX / 2);
                let contents = tree.get_mut(&name).expect("a name");
                if contents.len() == len {
                    return Ok(());
                }
                contents.resize(len, 0);
                self.commit(tree, || file.set_len(len as u64).and_then(|()| file.commit()))
            }
            5 | 6 => self.create(store, tree),
            7 | 8 => {
                let to = NAMES[self.rng.usize(..NAMES.len())].to_owned();
                if to == name {
                    return Ok(());
                }
                let contents = tree.remove(&name).expect("a name");
                tree.insert(to.clone(), contents);
                self.commit(tree, || store.rename(&name, &to))
            }
            _ => {
                tree.remove(&name);
                self.commit(tree, || {
                    let mut txn = store.begin();
                    txn.unlink(&name)?;
                    txn.commit()
                })
            }
        }
    }

    /// Writes to one file, or to two of them at once.
    fn write(&mut self, store: &Store, mut tree: Tree, name: String) -> Result<(), String> {
        let mut names = vec![name];
        names.extend(self.name(&tree).filter(|other| *other != names[0]));
        let bytes = self.bytes();
        let mut files = Vec::new();
        for name in &names {
            let contents = tree.get_mut(name).expect("a name");
            let at = self.rng.usize(..=contents.len());
            let end = at + bytes.len();
            contents.resize(contents.len().max(end), 0);
            contents[at..end].copy_from_slice(&bytes);
            let file = store.open_file(name).map_err(said("open"))?;
            file.write_all_at(&bytes, at as u64).map_err(said("write"))?;
            files.push(file);
        }
        self.commit(tree, || store.syncv(&files.iter().collect::<Vec<_>>()))
    }

    /// Creates a file with contents, under a new name or in the place of another file.
    fn create(&mut self, store: &Store, mut tree: Tree) -> Result<(), String> {
        let name = NAMES[self.rng.usize(..NAMES.len())].to_owned();
        let bytes = self.bytes();
        let is_new = tree.insert(name.clone(), bytes.clone()).is_none();
        self.commit(tree, || {
            let mut txn = store.begin();
            if !is_new {
                txn.unlink(&name)?;
            }
            txn.create(&name, 0o644)?.write_all_at(&bytes, 0)?;
            txn.commit()
        })
    }

    /// A checkpoint, with commits between its steps.
    fn checkpoint(&mut self, store: &Store) -> Result<(), String> {
        let Some(begun) = store.begin_checkpoint().map_err(said("a checkpoint"))? else { return Ok(()) };
        for _ in 0..self.rng.usize(..2) {
            self.change(store)?;
        }
        let applied = begun.apply().map_err(said("a checkpoint"))?;
        for _ in 0..self.rng.usize(..2) {
            self.change(store)?;
        }
        applied.truncate_log().map_err(said("a checkpoint"))
    }

    /// One life of the store, until it is closed, or killed before any of its calls. Returns its moments.
    fn live(&mut self, steps: usize, is_killed: bool) -> Result<Vec<Snapshot>, String> {
        self.disk.record();
        if let Some(taken) = self.leases.clone() {
            let one_in = self.rng.usize(3..25);
            self.disk.let_others(stand_in(self.rng.u64(..), one_in, taken));
        }
        let (store, life) = open(&self.disk, LARGE)?;
        for _ in 0..steps {
            match self.rng.u8(..8) {
                0 | 1 => self.checkpoint(&store)?,
                2 => _ = store.write_durable_mark().map_err(said("a durable mark"))?,
                _ => self.change(&store)?,
            }
        }
        if !is_killed {
            store.close().map_err(said("close"))?;
        }
        let mut moments = self.disk.recorded();
        life.0.kill();
        if is_killed {
            moments.truncate(self.rng.usize(moments.len() / 2..moments.len()) + 1);
            let last = moments.last().expect("a moment");
            let (acknowledged, begun) = ((last.mark() >> 32) as usize, (last.mark() & 0xffff_ffff) as usize);
            self.disk = last.killed();
            self.trees.truncate(begun + 1);
            let kept = commit_in(&self.disk.fork(), &self.trees)?;
            self.trees.truncate(kept + 1);
            self.disk.set_mark(mark(acknowledged, kept));
        }
        // Nobody has the store open, and the next owner may have to wait for the lease.
        if self.leases.is_some() && self.trees.len().is_multiple_of(2) {
            lease_closed(&self.disk);
        }
        moments.push(self.disk.snapshot());
        Ok(moments)
    }
}

/// A recorded program, and the tree after each commit.
struct Program {
    recording: Arc<Recording>,
    trees: Vec<Tree>,
    /// A file that another program has moved away for a while.
    missing: Option<&'static str>,
    /// The commits that each follower got.
    followed: Vec<Vec<Given>>,
    /// The numbers of all commits that are in the log at some moment.
    commits: BTreeSet<u64>,
    /// The leases: the first moment and the last one of each.
    leases: Vec<(usize, usize)>,
}

/// A commit, a range of commits that may be missing, or the start of a follower.
#[derive(Clone, Copy, Debug)]
struct Given {
    first_lsn: u64,
    last_lsn: u64,
}

fn recorded(seed: u64) -> Result<Program, String> {
    let mut rng = Rng::with_seed(seed);
    let disk = SimDisk::new(Options {
        profile: PROFILES[rng.usize(..PROFILES.len())],
        direct: rng.bool(),
        seed,
        ..Options::default()
    });
    let mut owner = Owner { rng, disk, trees: vec![Tree::new()], leases: None };
    owner.disk.settle();
    owner.live(0, false)?;
    owner.leases = (!seed.is_multiple_of(3)).then(Taken::default);
    // Readers that announce themselves rely on a look at the page for a short time; others never do.
    if !seed.is_multiple_of(4) {
        read_on(&owner.disk)?;
    }
    let mut moments = Vec::new();
    for _ in 0..owner.rng.usize(2..4) {
        let (steps, is_killed) = (owner.rng.usize(1..STEPS), owner.rng.u8(..3) > 0);
        moments.extend(owner.live(steps, is_killed)?);
    }
    moments.extend(owner.live(0, false)?);
    Ok(Program::new(moments, owner.trees, None))
}

/// Records a run in which a file waits, because another program has moved it away, and the journal goes on without it.
fn recorded_with_a_file_that_waits() -> Result<Program, String> {
    let disk = SimDisk::new(Options::default());
    let (store, _life) = open(&disk, SMALL)?;
    let mut owner = Owner { rng: Rng::with_seed(7), disk, trees: vec![Tree::new()], leases: None };
    for name in ["a", "b"] {
        let mut tree = owner.tree();
        tree.insert(name.into(), vec![1; 3000]);
        owner.commit(tree, || {
            let mut txn = store.begin();
            txn.create(name, 0o644)?.write_all_at(&[1; 3000], 0)?;
            txn.commit()
        })?;
    }
    store.checkpoint().map_err(said("a checkpoint"))?;
    let moved = |e: std::io::Error| format!("moving a file: {e}");
    owner.disk.record();
    for n in 2..60u8 {
        let name = if n == 2 { "a" } else { "b" };
        let mut tree = owner.tree();
        tree.insert(name.into(), vec![n; 3000]);
        let file = store.open_file(name).map_err(said("open"))?;
        owner.commit(tree, || file.write_all_at(&[n; 3000], 0).and_then(|()| file.commit()))?;
        if n == 2 {
            owner.disk.rename("a", "elsewhere").map_err(moved)?;
        }
    }
    owner.disk.rename("elsewhere", "a").map_err(moved)?;
    for n in 60..63u8 {
        let mut tree = owner.tree();
        tree.insert("b".into(), vec![n; 3000]);
        let file = store.open_file("b").map_err(said("open"))?;
        owner.commit(tree, || file.write_all_at(&[n; 3000], 0).and_then(|()| file.commit()))?;
    }
    Ok(Program::new(owner.disk.recorded(), owner.trees, Some("a")))
}

/// The part of a snapshot that a reader has seen.
#[derive(Default)]
struct Seen {
    names: Option<Vec<String>>,
    files: Tree,
}

impl Seen {
    /// Whether the part that was seen matches this tree.
    fn is_of(&self, tree: &Tree, missing: Option<&str>) -> bool {
        let is_there = |name: &&String| missing != Some(name.as_str());
        let names = |names: &Vec<String>| {
            names.iter().filter(is_there).eq(tree.keys().filter(is_there)) || names.iter().eq(tree.keys())
        };
        self.names.as_ref().is_none_or(names)
            && self.files.iter().all(|(name, contents)| tree.get(name) == Some(contents))
    }

    fn describe(&self) -> String {
        let file = |(name, contents): (&String, &Vec<u8>)| {
            let mut tags: Vec<u8> = contents.iter().filter(|b| **b != 0).copied().collect();
            tags.dedup();
            format!("{name}: {} bytes of {tags:?}", contents.len())
        };
        format!("names {:?}; {}", self.names, self.files.iter().map(file).collect::<Vec<_>>().join(", "))
    }
}

/// Reads a whole snapshot, in some order, in pieces.
fn read(view: &View, rng: &mut Rng, missing: Option<&str>, seen: &mut Seen) -> untorn::Result<()> {
    let mut names: Vec<String> = NAMES.iter().map(|name| (*name).to_owned()).collect();
    if rng.bool() {
        let listed: Vec<String> = view.list("")?.into_iter().map(|name| name.to_string_lossy().into()).collect();
        let known = |name: &String| name != "elsewhere";
        seen.names = Some(listed.iter().filter(|name| known(name)).cloned().collect());
        names = listed;
    }
    rng.shuffle(&mut names);
    let mut found = Vec::new();
    for name in names.iter().filter(|name| *name != "elsewhere") {
        let file = match view.open(name) {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound && seen.names.is_none() => {
                continue;
            }
            Err(_) if missing == Some(name.as_str()) => continue,
            done => done?,
        };
        found.push((name.clone(), file));
    }
    for (name, file) in found {
        let mut contents = vec![0; file.len()? as usize];
        let middle = rng.usize(..=contents.len());
        let (first, second) = contents.split_at_mut(middle);
        let n = file.read_at(first, 0)? + file.read_at(second, middle as u64)?;
        contents.truncate(n);
        seen.files.insert(name, contents);
    }
    if seen.names.is_none() && missing.is_none() {
        seen.names = Some(seen.files.keys().cloned().collect());
    }
    Ok(())
}

/// The commit that is there after a power cut that loses as much as possible.
fn survives(moment: &Snapshot, trees: &[Tree]) -> Result<usize, String> {
    commit_in(&moment.power_cut(Cut::Nothing).disk, trees)
}

/// The commit that recovery finds.
fn commit_in(disk: &SimDisk, trees: &[Tree]) -> Result<usize, String> {
    // The owner does not wait for readers here.
    disk.machine().leases.clear();
    let (store, _life) = open(disk, LARGE)?;
    let mut tree = Tree::new();
    for name in store.list("").map_err(said("list"))? {
        let file = store.open_file(&name).map_err(said("open"))?;
        let mut contents = vec![0; file.len().map_err(said("len"))? as usize];
        file.read_exact_at(&mut contents, 0).map_err(said("read"))?;
        tree.insert(name.to_string_lossy().into(), contents);
    }
    trees.iter().rposition(|left| *left == tree).ok_or_else(|| "recovery finds a mixture".into())
}

impl Program {
    fn new(moments: Vec<Snapshot>, trees: Vec<Tree>, missing: Option<&'static str>) -> Program {
        let recording = Recording::new(moments);
        let leases = recording.leases();
        Program { recording, trees, missing, followed: Vec::new(), commits: BTreeSet::new(), leases }
    }

    fn is_owned(&self, moment: usize) -> bool {
        self.recording.moments[moment].is_any_locked()
    }

    /// One reader of the recording.
    fn read(&mut self, seed: u64, totals: &mut ReaderTotals) -> Result<(), String> {
        let mut rng = Rng::with_seed(seed);
        let last = self.recording.moments.len() - 1;
        // Mostly near a lease, if there is one.
        let lease = rng.choice(&self.leases).filter(|_| rng.u8(..4) > 0);
        let from = lease.map_or(rng.usize(..=last), |(begin, end)| rng.usize(begin.saturating_sub(4)..=*end));
        let pace = match rng.u8(..3) {
            0 if lease.is_some() => Pace::Leap { call: rng.usize(1..90), moments: rng.usize(1..12) },
            0 => Pace::Leap { call: rng.usize(1..120), moments: rng.usize(1..=last / 4 + 1) },
            1 => Pace::Steps { one_in: rng.usize(1..4), most: rng.usize(1..4) },
            _ => Pace::Steps { one_in: rng.usize(8..40), most: rng.usize(1..=last / 8 + 1) },
        };
        let replayed = Replayed::new(&self.recording, from, pace, seed);
        let reader = open_reader_on(replayed.storage(), StoreDir::of_directory(), PathBuf::new());
        let reader = reader.map_err(said("opening a reader"))?;
        let mut follow = reader.follow().map_err(said("following"))?;
        let mut given = vec![Given { first_lsn: follow.lsn(), last_lsn: follow.lsn() }];
        let (mut newest, mut kept) = (0, None);
        for _ in 0..rng.usize(1..6) {
            while let Some(next) = follow.next_within(Duration::ZERO).map_err(said("following"))? {
                given.push(match next {
                    Followed::Commit(commit) => Given { first_lsn: commit.lsn, last_lsn: commit.lsn },
                    Followed::Missed { first_lsn, last_lsn } => Given { first_lsn, last_lsn },
                    other => return Err(format!("reader {seed} was given {other:?}")),
                });
            }
            let before = replayed.now();
            // A snapshot continues from the one before, if that still exists.
            if rng.bool() {
                kept = None;
            }
            let view = reader.snapshot().map_err(said("a snapshot"))?;
            let view = &*kept.insert(view);
            let is_held = (lease.is_some() || rng.bool()) && view.hold().is_ok();
            let held_until = if is_held { replayed.leased_until() } else { 0 };
            if is_held && rng.bool() {
                // To the end of the lease, or beyond.
                let most = held_until.saturating_sub(replayed.now()) + if rng.bool() { 30 } else { 0 };
                replayed.pass(rng.usize(..=most));
            }
            let mut seen = Seen::default();
            let done = read(view, &mut rng, self.missing, &mut seen);
            let after = replayed.now();
            let wrong = |what: &str| {
                let (from, to) = (self.recording.moments[before].call(), self.recording.moments[after].call());
                let (lsn, seen) = (view.lsn(), seen.describe());
                Err(format!("reader {seed}, {pace:?}, calls {from} to {to}, as of commit {lsn}: {what}; {seen}"))
            };
            match &done {
                Ok(()) => totals.whole += 1,
                Err(Error::SnapshotExpired { .. }) if is_held && after <= held_until => {
                    return wrong(&format!("it has expired under a lease, which lasted until moment {held_until}"));
                }
                Err(Error::SnapshotExpired { .. }) => totals.expired += 1,
                Err(e) => return wrong(&e.to_string()),
            }
            totals.across += u64::from(done.is_ok() && after > before);
            totals.held += u64::from(done.is_ok() && after > before && is_held);
            // A commit that was pending when its owner was killed may be gone.
            let begun = (self.recording.moments[after].mark() & 0xffff_ffff) as usize;
            let begun = begun.min(self.trees.len() - 1);
            // Renaming a file and back leads to the same tree twice.
            let shown: Vec<usize> = (0..=begun).filter(|n| seen.is_of(&self.trees[*n], self.missing)).collect();
            let Some(last) = shown.last() else { return wrong("a mixture") };
            if done.is_err() || self.missing.is_some() {
                continue;
            }
            let acknowledged = (self.recording.moments[before].mark() >> 32) as usize;
            let least = acknowledged.max(newest);
            let Some(shown) = shown.iter().find(|n| **n >= least) else {
                return wrong(&format!("commit {last} of the program after commit {least}"));
            };
            newest = *shown;
            if (before..=after).all(|moment| self.is_owned(moment)) {
                let kept = survives(&self.recording.moments[after], &self.trees)?;
                if kept < *shown {
                    return wrong(&format!("commit {shown} of the program, and a power cut leaves {kept}"));
                }
            }
        }
        totals.followed += given.len() as u64 - 1;
        self.followed.push(given);
        Ok(())
    }

    /// Checks that followers got each commit once, in order.
    fn check_followed(&self) -> Result<(), String> {
        for given in &self.followed {
            for pair in given.windows(2) {
                let (last, next) = (pair[0].last_lsn, pair[1].first_lsn);
                if next <= last {
                    return Err(format!("a follower was given commit {next} after commit {last}"));
                }
                if let Some(lsn) = self.commits.range(last + 1..next).next() {
                    return Err(format!("a follower was not given commit {lsn}, between {last} and {next}"));
                }
            }
        }
        Ok(())
    }

    /// Runs a reader of the state after a killed owner: the commit that it was shown must survive a power cut.
    fn read_without_owner(&mut self, moment: &Snapshot, skipped: u64) -> Result<(), String> {
        let disk = moment.killed();
        disk.set_options(|options| options.skipped = skipped);
        let life = KillOnDrop(disk.spawn());
        let reader = open_reader_on(life.0.clone(), StoreDir::of_directory(), PathBuf::new());
        let storage: Arc<dyn Storage> = life.0.clone();
        let look = Look::take_after(&storage, &StoreDir::of_directory(), 0).map_err(said("a look"))?;
        self.commits.extend(look.accepted.iter().filter(|a| !a.record.restates()).map(|a| a.lsn));
        let (reader, mut seen) = (reader.map_err(said("opening a reader"))?, Seen::default());
        let view = reader.snapshot().map_err(said("a snapshot"))?;
        let mut rng = Rng::with_seed(moment.call());
        read(&view, &mut rng, None, &mut seen).map_err(said("reading without an owner"))?;
        let Some(shown) = (0..self.trees.len()).find(|n| seen.is_of(&self.trees[*n], None)) else {
            return Err(format!("without an owner, before call {}: a mixture; {}", moment.call(), seen.describe()));
        };
        let kept = survives(&disk.snapshot(), &self.trees)?;
        match kept < shown {
            true => Err(format!(
                "without an owner, before call {}: commit {shown}, and a power cut leaves {kept}",
                moment.call()
            )),
            false => Ok(()),
        }
    }
}

/// Runs readers of one program.
pub fn readers_of(seed: u64, readers: u64, skipped: u64) -> Result<ReaderTotals, String> {
    let mut program = recorded(seed)?;
    let mut totals = ReaderTotals { moments: program.recording.moments.len() as u64, ..ReaderTotals::default() };
    for n in 0..readers {
        program.read(seed << 20 | n, &mut totals).map_err(|what| format!("program {seed}: {what}"))?;
    }
    let recording = program.recording.clone();
    for moment in recording.moments.iter().step_by(7) {
        program.read_without_owner(moment, skipped).map_err(|what| format!("program {seed}: {what}"))?;
    }
    program.check_followed().map_err(|what| format!("program {seed}: {what}"))?;
    Ok(totals)
}

/// Runs readers beside an owner with a file that waits.
pub fn readers_of_what_waits(readers: u64) -> Result<ReaderTotals, String> {
    let mut program = recorded_with_a_file_that_waits()?;
    let mut totals = ReaderTotals { moments: program.recording.moments.len() as u64, ..ReaderTotals::default() };
    for n in 0..readers {
        program.read(n, &mut totals).map_err(|what| format!("a file waits: {what}"))?;
    }
    Ok(totals)
}
