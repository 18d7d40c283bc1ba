//! One reader of a program: it takes snapshots, keeps several of them, and reads them in pieces.

use super::owner::{ELSEWHERE, NAMES, open, tree_of};
use super::plan::{Plan, Stop, done};
use super::totals::ReaderTotals;
use super::world::{Commit, Tree, World};
use crate::programs::runner::KillOnDrop;
use crate::simulation::turns::Seat;
use crate::simulation::{Cut, SimDisk, SimProcess};
use fastrand::Rng;
use parking_lot::Mutex;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use untorn::__private::open_reader_on;
use untorn::reader::{Follow, Followed, Snapshot as View, SnapshotFile};
use untorn::{Error, Reader};
use untorn_journal::directories::store_dir::StoreDir;

/// The most calls of one operation of a reader, whatever owners do.
const CALLS_MAX: u64 = 2000;
/// The most snapshots that a reader keeps at once.
const HELD_MAX: usize = 4;
/// The number of times that a reader tries to open a store whose owner is still opening it.
const OPENINGS_MAX: usize = 200;

/// One reader, which may have several processes, one after the other.
pub(super) struct Reading<'p> {
    pub rng: Rng,
    pub disk: &'p SimDisk,
    pub world: &'p Mutex<World>,
    pub plan: &'p Plan,
    pub totals: ReaderTotals,
}

/// A snapshot, and everything that it has shown so far.
struct Held {
    view: View,
    lsn: u64,
    /// The commits that fit all that was seen.
    fitting: Vec<Commit>,
    seen: Vec<String>,
    files: Vec<(String, SnapshotFile)>,
    /// The newest commit at the time when the snapshot was taken.
    begun: u64,
}

impl Held {
    /// Notes something that was seen.
    fn note(&mut self, what: String, fits: impl Fn(&Tree) -> bool) -> Result<(), Stop> {
        let numbers: Vec<u64> = self.fitting.iter().map(|commit| commit.number).collect();
        self.fitting.retain(|commit| fits(&commit.tree));
        self.seen.push(what);
        match self.fitting.is_empty() {
            true => Err(Stop::Wrong(format!(
                "a snapshot of LSN {} is of no commit in {numbers:?}: {}",
                self.lsn,
                self.seen.join("; ")
            ))),
            false => Ok(()),
        }
    }
}

fn describe(contents: &[u8]) -> String {
    let mut tags: Vec<u8> = contents.iter().filter(|byte| **byte != 0).copied().collect();
    tags.dedup();
    tags.truncate(12);
    format!("{} bytes of {tags:?}", contents.len())
}

/// Whether an error says that there is no such name.
fn is_absent<T>(result: &untorn::Result<T>) -> bool {
    matches!(result, Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound)
}

impl Reading<'_> {
    /// Runs one process that does this many things, and may die at a call.
    pub fn live(&mut self, steps: usize, dies_at: Option<u64>, seat: Option<&Seat>) -> Result<(), Stop> {
        let life = KillOnDrop(self.disk.spawn());
        seat.into_iter().for_each(|seat| life.0.take_turns(seat.clone()));
        dies_at.into_iter().for_each(|call| life.0.die_at(call));
        let reader = self.open(&life.0, seat)?;
        let mut process = Process { of: self, process: life.0.clone(), reader, held: Vec::new(), newest_lsn: 0, seat };
        process.run(steps)
    }

    fn open(&mut self, process: &Arc<SimProcess>, seat: Option<&Seat>) -> Result<Reader, Stop> {
        for _ in 0..OPENINGS_MAX {
            process.allow(CALLS_MAX);
            match open_reader_on(process.clone(), StoreDir::of_directory(), PathBuf::new()) {
                Err(Error::Busy { .. }) if !process.is_dead() => self.totals.busy += 1,
                opened => return done(process, "opening a reader", opened),
            }
            seat.into_iter().for_each(Seat::pass);
        }
        Err(Stop::Wrong(format!("the store is still busy after {OPENINGS_MAX} openings")))
    }
}

/// One process of a reader.
struct Process<'r, 'p> {
    of: &'r mut Reading<'p>,
    process: Arc<SimProcess>,
    reader: Reader,
    held: Vec<Held>,
    newest_lsn: u64,
    seat: Option<&'r Seat>,
}

impl Process<'_, '_> {
    fn run(&mut self, steps: usize) -> Result<(), Stop> {
        self.process.allow(CALLS_MAX);
        let mut follow = done(&self.process, "following", self.reader.follow())?;
        let mut followed = follow.lsn();
        for _ in 0..steps {
            if self.seat.is_some_and(|seat| !seat.has_first()) && self.held.is_empty() {
                self.take()?;
                break;
            }
            self.process.allow(CALLS_MAX);
            match self.of.rng.u8(..16) {
                0..=3 if self.held.len() < HELD_MAX => self.take()?,
                4 => self.follow(&mut follow, &mut followed)?,
                5 => self.read_newest()?,
                6 => self.finish_one()?,
                8 => drop(self.choose()),
                9 => self.rest(),
                _ => self.read_some()?,
            }
        }
        while !self.held.is_empty() {
            self.finish_one()?;
        }
        self.follow(&mut follow, &mut followed)
    }

    /// Does nothing for a while.
    fn rest(&mut self) {
        let calls = self.of.rng.u64(1..600);
        self.seat.into_iter().for_each(|seat| seat.rest(calls));
    }

    fn is_missing(&self, name: &str) -> bool {
        self.of.plan.missing == Some(name)
    }

    fn done<T>(&self, what: &str, result: untorn::Result<T>) -> Result<T, Stop> {
        done(&self.process, what, result)
    }

    /// Takes a snapshot, which must be of a new enough and durable commit.
    fn take(&mut self) -> Result<(), Stop> {
        let acknowledged = self.of.world.lock().acknowledged();
        let view = self.done("a snapshot", self.reader.snapshot())?;
        let lsn = view.lsn();
        if lsn < self.newest_lsn {
            return Err(Stop::Wrong(format!("a snapshot of LSN {lsn} after one of LSN {}", self.newest_lsn)));
        }
        self.newest_lsn = lsn;
        let (begun, mut fitting) = {
            let world = self.of.world.lock();
            (world.begun(), world.shown_by(lsn))
        };
        let newest = fitting.last().map_or(0, |commit| commit.number);
        fitting.retain(|commit| commit.number >= acknowledged);
        let Some(oldest) = fitting.first().map(|commit| commit.number) else {
            return Err(Stop::Wrong(format!(
                "a snapshot of LSN {lsn} shows commit {newest}, and commit {acknowledged} was acknowledged before"
            )));
        };
        self.of.world.lock().show(oldest);
        if self.of.rng.u8(..8) == 0 {
            self.check_survives(lsn, oldest)?;
        }
        self.held.push(Held { view, lsn, fitting, seen: Vec::new(), files: Vec::new(), begun });
        Ok(())
    }

    /// A shown commit survives a power cut at this moment.
    fn check_survives(&mut self, lsn: u64, oldest: u64) -> Result<(), Stop> {
        let cut = if self.of.rng.bool() { Cut::Nothing } else { Cut::Seed(self.of.rng.u64(..)) };
        let disk = self.of.disk.snapshot().power_cut(cut).disk;
        let life = KillOnDrop(disk.spawn());
        let wrong =
            |what: String| Stop::Wrong(format!("after a power cut ({cut}) behind a snapshot of LSN {lsn}: {what}"));
        let store = open(&life.0, self.of.plan, true).map_err(|e| wrong(e.to_string()))?;
        // An LSN alone may also be of a record without changes, which nobody misses.
        if self.of.plan.missing.is_none() {
            let tree = tree_of(&store).map_err(|e| wrong(e.to_string()))?;
            let left = self.of.world.lock().recovered_commit(&tree).map_err(wrong)?;
            if left < oldest {
                return Err(wrong(format!("commit {oldest} was shown, and commit {left} is left")));
            }
        }
        self.of.totals.survived += 1;
        // The process of the copy ends before its store is dropped.
        life.0.kill();
        Ok(())
    }

    /// Takes one of the snapshots out.
    fn choose(&mut self) -> Option<Held> {
        let at = (!self.held.is_empty()).then(|| self.of.rng.usize(..self.held.len()))?;
        Some(self.held.swap_remove(at))
    }

    /// Takes the result of an operation on a snapshot. None: it was given up, which this program allows.
    fn seen<T>(&mut self, what: &str, result: untorn::Result<T>) -> Result<Option<T>, Stop> {
        match result {
            Err(Error::SnapshotExpired { .. }) if self.of.plan.may_give_up && !self.process.is_dead() => {
                self.of.totals.given_up += 1;
                Ok(None)
            }
            other => self.done(what, other).map(Some),
        }
    }

    /// Reads some parts of one snapshot.
    fn read_some(&mut self) -> Result<(), Stop> {
        let Some(mut held) = self.choose() else { return self.take() };
        for _ in 0..self.of.rng.usize(1..5) {
            let name = NAMES[self.of.rng.usize(..NAMES.len())];
            let is_kept = match self.of.rng.u8(..8) {
                0 => self.list(&mut held)?.is_some(),
                1 => self.look_at(&mut held, name)?,
                2 | 3 => self.open(&mut held, name)?,
                _ if held.files.is_empty() => self.open(&mut held, name)?,
                _ => {
                    let file = self.of.rng.usize(..held.files.len());
                    self.read_piece(&mut held, file)?
                }
            };
            if !is_kept {
                return Ok(());
            }
        }
        self.held.push(held);
        Ok(())
    }

    /// Reads everything in one snapshot, and drops it.
    fn finish_one(&mut self) -> Result<(), Stop> {
        let Some(mut held) = self.choose() else { return Ok(()) };
        let Some(mut names) = self.list(&mut held)? else { return Ok(()) };
        names.extend(self.of.plan.missing.map(String::from));
        self.of.rng.shuffle(&mut names);
        for name in &names {
            self.process.allow(CALLS_MAX);
            if !self.open(&mut held, name)? {
                return Ok(());
            }
        }
        for file in 0..held.files.len() {
            self.process.allow(CALLS_MAX);
            if !self.read_whole(&mut held, file)? {
                return Ok(());
            }
        }
        // By now the owner may know more about the LSNs of its commits. A pending commit may also be gone.
        let (shown, begun) = {
            let world = self.of.world.lock();
            (world.shown_by(held.lsn), world.begun())
        };
        self.of.totals.whole += 1;
        self.of.totals.across += u64::from(begun > held.begun);
        held.fitting.retain(|commit| shown.iter().any(|shown| shown.number == commit.number));
        held.note("all of it".into(), |_| true)?;
        let oldest = held.fitting.iter().map(|commit| commit.number).min();
        self.of.world.lock().show(oldest.expect("a commit that fits"));
        Ok(())
    }

    /// The listed names, without a missing one; None if the snapshot was given up.
    fn list(&mut self, held: &mut Held) -> Result<Option<Vec<String>>, Stop> {
        let Some(listed) = self.seen("list", held.view.list(""))? else { return Ok(None) };
        let names = listed.into_iter().map(|name| name.to_string_lossy().into());
        let names: Vec<String> = names.filter(|name: &String| !self.is_missing(name) && name != ELSEWHERE).collect();
        held.note(format!("the names {names:?}"), |tree| {
            names.iter().eq(tree.keys().filter(|name| !self.is_missing(name)))
        })?;
        Ok(Some(names))
    }

    /// Opens a file; false if the snapshot was given up.
    fn open(&mut self, held: &mut Held, name: &str) -> Result<bool, Stop> {
        let opened = held.view.open(name);
        if self.is_missing(name) && !self.process.is_dead() && opened.is_err() {
            return Ok(true);
        }
        if is_absent(&opened) && !self.process.is_dead() {
            held.note(format!("no {name}"), |tree| !tree.contains_key(name))?;
            return Ok(true);
        }
        let Some(file) = self.seen("open", opened)? else { return Ok(false) };
        let Some(len) = self.seen("the length", file.len())? else { return Ok(false) };
        held.note(format!("{name} of {len} bytes"), |tree| tree.get(name).is_some_and(|c| c.len() as u64 == len))?;
        held.files.push((name.to_owned(), file));
        Ok(true)
    }

    /// Looks at the metadata of a name; false if the snapshot was given up.
    fn look_at(&mut self, held: &mut Held, name: &str) -> Result<bool, Stop> {
        let found = held.view.metadata(name);
        if self.is_missing(name) && !self.process.is_dead() && found.is_err() {
            return Ok(true);
        }
        if is_absent(&found) && !self.process.is_dead() {
            held.note(format!("no metadata of {name}"), |tree| !tree.contains_key(name))?;
            return Ok(true);
        }
        let Some(found) = self.seen("metadata", found)? else { return Ok(false) };
        held.note(format!("{name}: {found:?}"), |tree| {
            tree.get(name).is_some_and(|contents| contents.len() as u64 == found.len && !found.is_directory)
        })?;
        Ok(true)
    }

    fn read_at(&mut self, held: &mut Held, file: usize, at: usize, len: usize) -> Result<bool, Stop> {
        let mut bytes = vec![0xee; len];
        let read = held.files[file].1.read_at(&mut bytes, at as u64);
        let Some(n) = self.seen("read", read)? else { return Ok(false) };
        bytes.truncate(n);
        let name = held.files[file].0.clone();
        let is_of = |contents: &Vec<u8>| contents[at.min(contents.len())..(at + len).min(contents.len())] == bytes;
        held.note(format!("{name} at {at}, {len} bytes: {}", describe(&bytes)), |tree| {
            tree.get(&name).is_some_and(is_of)
        })?;
        Ok(true)
    }

    fn read_piece(&mut self, held: &mut Held, file: usize) -> Result<bool, Stop> {
        let Some(len) = self.seen("the length", held.files[file].1.len())? else { return Ok(false) };
        let (at, piece) = (self.of.rng.usize(..=len as usize), self.of.rng.usize(1..2000));
        self.of.totals.pieces += 1;
        self.read_at(held, file, at, piece)
    }

    fn read_whole(&mut self, held: &mut Held, file: usize) -> Result<bool, Stop> {
        let Some(len) = self.seen("the length", held.files[file].1.len())? else { return Ok(false) };
        let middle = self.of.rng.usize(..=len as usize);
        Ok(self.read_at(held, file, 0, middle)? && self.read_at(held, file, middle, len as usize - middle + 1)?)
    }

    /// Reads a file of a snapshot that lasts only as long as the call.
    fn read_newest(&mut self) -> Result<(), Stop> {
        let name = NAMES[self.of.rng.usize(..NAMES.len())];
        if self.of.plan.missing.is_some() {
            return Ok(());
        }
        let acknowledged = self.of.world.lock().acknowledged();
        let read = self.reader.read(name);
        let found = match is_absent(&read) && !self.process.is_dead() {
            true => None,
            false => match self.seen("read", read)? {
                None => return Ok(()),
                found => found,
            },
        };
        let since = self.of.world.lock().since(acknowledged);
        match since.iter().any(|commit| commit.tree.get(name) == found.as_ref()) {
            true => Ok(()),
            false => Err(Stop::Wrong(format!(
                "{name} has {}, as in no commit since commit {acknowledged}",
                found.map_or("no bytes".into(), |bytes| describe(&bytes))
            ))),
        }
    }

    /// Takes the commits that became durable: each once, in order.
    fn follow(&mut self, follow: &mut Follow, last: &mut u64) -> Result<(), Stop> {
        loop {
            self.process.allow(CALLS_MAX);
            let Some(next) = self.done("following", follow.next_within(Duration::ZERO))? else { return Ok(()) };
            let (first_lsn, last_lsn) = match next {
                Followed::Commit(commit) => (commit.lsn, commit.lsn),
                Followed::Missed { first_lsn, last_lsn } => (first_lsn, last_lsn),
                other => return Err(Stop::Wrong(format!("a follower was given {other:?}"))),
            };
            if first_lsn <= *last {
                return Err(Stop::Wrong(format!("a follower was given LSN {first_lsn} after LSN {last}")));
            }
            if let Some(number) = self.of.world.lock().commit_between(*last, first_lsn) {
                return Err(Stop::Wrong(format!(
                    "a follower was not given commit {number}, between the LSNs {last} and {first_lsn}"
                )));
            }
            *last = last_lsn;
            self.of.totals.followed += 1;
        }
    }
}
