//! A running program over names on the simulated disk, beside the model.

use crate::names_fuzz::effort::{NameEffort, NameTotals};
use crate::names_fuzz::player::NamePlayer;
use crate::names_fuzz::program::{NameProgram, NameStep};
use crate::names_fuzz::tree::{Entry, NameChange, NameTree};
use crate::programs::differences::{compare_views, mixture, shown_files};
use crate::programs::fixture::{plain_files, store_options};
use crate::programs::program::How;
use crate::programs::reference_model::Model as Reference;
use crate::programs::runner::KillOnDrop;
use crate::simulation::state::inodes::mix;
use crate::simulation::{Fault, On, SimDisk, Snapshot, What};
use fastrand::Rng;
use std::path::PathBuf;
use untorn::__private::{OpenStoreOn, StoreSteps};
use untorn::{Error, FailureClass, Outcome, Store, Ticket};
use untorn_journal::directories::store_dir::StoreDir;

/// The room in the journal that suffices for any commit of a program: an inline record, in blocks of its own.
const ROOM_BYTES_MIN: u64 = 12 << 10;

/// The commits that a crash at some moment may leave, packed into the mark of snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub acknowledged: usize,
    pub begun: usize,
    /// The class in which the store is open.
    pub class: FailureClass,
    /// There may be commits of class `process` that were not flushed.
    pub exposed: bool,
}

const CLASS_BIT: u64 = 1 << 63;
const EXPOSED_BIT: u64 = 1 << 62;

impl Default for Mark {
    fn default() -> Mark {
        Mark { acknowledged: 0, begun: 0, class: FailureClass::Power, exposed: false }
    }
}

impl Mark {
    fn pack(self) -> u64 {
        let class = if self.class == FailureClass::Process { CLASS_BIT } else { 0 };
        let exposed = if self.exposed { EXPOSED_BIT } else { 0 };
        (self.acknowledged as u64) << 32 | self.begun as u64 | class | exposed
    }

    pub fn unpack(mark: u64) -> Mark {
        let class = if mark & CLASS_BIT != 0 { FailureClass::Process } else { FailureClass::Power };
        let acknowledged = ((mark & !(CLASS_BIT | EXPOSED_BIT)) >> 32) as usize;
        Mark { acknowledged, begun: mark as u32 as usize, class, exposed: mark & EXPOSED_BIT != 0 }
    }
}

/// The state after a commit.
#[derive(Clone)]
struct State {
    tree: NameTree,
    /// The commit failed with an error that says that it did not happen.
    refused: bool,
}

pub(super) fn text(what: &str) -> impl Fn(Error) -> String + '_ {
    move |e| format!("{what}: {e}")
}

pub(super) fn other(class: FailureClass) -> FailureClass {
    match class {
        FailureClass::Power | FailureClass::Memory | FailureClass::Remote => FailureClass::Process,
        FailureClass::Process => FailureClass::Power,
    }
}

/// Checks every moment: a file that has got a name has all its committed contents, for every program that opens the
/// name.
pub(super) fn check_shown(moments: &[Snapshot], allowed: impl Fn(&Snapshot) -> Vec<NameTree>) -> Result<(), String> {
    let mut before = None;
    for moment in moments {
        let names = moment.names();
        let Some(earlier) = before.replace(names.clone()) else { continue };
        for (path, slot) in names.iter().filter(|(path, slot)| earlier.get(*path) != Some(slot)) {
            let found = moment.contents(*slot);
            let is_that =
                |tree: &NameTree| matches!(tree.get(path), Some(Entry::File { bytes, .. }) if **bytes == found);
            if !allowed(moment).iter().any(is_that) {
                let (path, call, size) = (path.display(), moment.call(), found.len());
                return Err(format!(
                    "before call {call}, {path} has come to show {size} bytes that no commit left there"
                ));
            }
        }
    }
    Ok(())
}

/// A running program, or its continuation after a crash.
pub(super) struct Run<'p> {
    pub program: &'p NameProgram,
    pub effort: NameEffort,
    pub totals: NameTotals,
    pub disk: SimDisk,
    pub life: KillOnDrop,
    pub player: NamePlayer,
    commits: Vec<State>,
    mark: Mark,
    tickets: Vec<(Ticket, usize)>,
    /// The kernel refuses something: changes may fail, or wait.
    ill: bool,
    /// The journal failed: nothing is committed until the store is opened again.
    dead: bool,
}

pub(super) fn open_store(program: &NameProgram, life: &KillOnDrop, class: FailureClass) -> Result<Store, Error> {
    store_options(&program.setup, class).open_on(life.0.clone(), StoreDir::of_directory(), PathBuf::new())
}

impl<'p> Run<'p> {
    /// Opens the store in a class, and finds the commit that it shows.
    pub fn open(
        program: &'p NameProgram,
        effort: NameEffort,
        disk: SimDisk,
        mut commits: Vec<NameTree>,
        mark: Mark,
    ) -> Result<Run<'p>, String> {
        disk.set_options(|options| options.refusal = None);
        let life = KillOnDrop(disk.spawn());
        let store = open_store(program, &life, mark.class).map_err(text("opening the store"))?;
        let quarantined = store.status().quarantined;
        if !quarantined.is_empty() {
            return Err(format!("files are quarantined: {quarantined:?}"));
        }
        let files = shown_files(&store, &disk)?;
        let Some(last) = commits.iter().rposition(|tree| tree.is_same(&files, effort.alphabet)) else {
            let mut what = String::new();
            for tree in commits.iter().rev().take(2) {
                what += &mixture(&Reference::new(tree.files()), 1, &files);
                what += "; ";
            }
            return Err(format!("of {} commits that may be the last, {what}", commits.len()));
        };
        let mut tree = commits.swap_remove(last);
        // Entries of names that came and went before may still have to change.
        if store.status().journal_bytes_pending == 0 {
            tree.forget_history();
        }
        compare_views(&store, &files)?;
        let exposed = mark.exposed && mark.class == FailureClass::Process;
        let run = Run {
            program,
            effort,
            totals: NameTotals::default(),
            disk,
            life,
            player: NamePlayer::new(store),
            commits: vec![State { tree, refused: false }],
            mark: Mark { acknowledged: 0, begun: 0, class: mark.class, exposed },
            tickets: Vec::new(),
            ill: false,
            dead: false,
        };
        run.set_mark();
        Ok(run)
    }

    fn set_mark(&self) {
        self.disk.set_mark(self.mark.pack());
    }

    /// The state after all commits, if all pending ones succeed.
    pub fn last(&self) -> NameTree {
        self.commits[self.mark.begun].tree.clone()
    }

    /// The commits that may be the last one after a crash at that moment.
    pub fn allowed(&self, mark: Mark) -> Vec<NameTree> {
        let happened = |(at, state): &(usize, &State)| !state.refused || *at == mark.begun;
        let window = self.commits.iter().enumerate().take(mark.begun + 1).skip(mark.acknowledged);
        window.filter(happened).map(|(_, state)| state.tree.clone()).collect()
    }

    fn begin(&mut self, tree: NameTree) -> usize {
        self.commits.push(State { tree, refused: false });
        self.totals.commits += 1;
        self.mark.begun = self.commits.len() - 1;
        self.mark.exposed |= self.mark.class == FailureClass::Process;
        self.set_mark();
        self.mark.begun
    }

    fn done(&mut self, number: usize) {
        self.mark.acknowledged = self.mark.acknowledged.max(number);
        self.set_mark();
    }

    fn wait(&mut self) -> Result<(), String> {
        for (ticket, number) in std::mem::take(&mut self.tickets) {
            ticket.wait().map_err(text("an asynchronous commit"))?;
            self.done(number);
        }
        Ok(())
    }

    /// Handles an error, which is allowed only while the kernel refuses something.
    fn failed(&mut self, what: &str, e: Error) -> Result<(), String> {
        if !self.ill {
            return Err(text(what)(e));
        }
        self.totals.failed += 1;
        self.dead |= matches!(e, Error::SyncFailed { .. });
        Ok(())
    }

    /// Makes the possible ones of these changes. False: none was possible, or the kernel refused the commit.
    pub fn commit(&mut self, changes: &[NameChange], wait: bool) -> Result<bool, String> {
        let mut tree = self.last();
        let txn = match self.player.transaction(&mut tree, changes, self.effort.alphabet) {
            Ok(Some(txn)) => txn,
            Ok(None) => return Ok(false),
            Err(e) => {
                self.player.forget(&NameTree::default(), true);
                return self.failed("a change", e).map(|()| false);
            }
        };
        let before = self.mark;
        let number = self.begin(tree);
        if !wait && !self.ill {
            let ticket = txn.commit_async().map_err(text("an asynchronous commit"))?;
            self.tickets.push((ticket, number));
        } else {
            match txn.commit() {
                Ok(()) => self.done(number),
                Err(e) => {
                    self.player.forget(&NameTree::default(), true);
                    if !matches!(e, Error::SyncFailed { outcome: Outcome::UnknownUntilReopened, .. }) {
                        self.commits[number].refused = true;
                        self.mark = Mark { exposed: self.mark.exposed, ..before };
                        self.set_mark();
                    }
                    return self.failed("a commit", e).map(|()| false);
                }
            }
        }
        let last = self.last();
        self.player.forget(&last, false);
        Ok(true)
    }

    /// Makes one step, and crashes it.
    pub fn step(&mut self, step: &NameStep, nth: u64) -> Result<(), String> {
        let crashed = nth as usize >= self.effort.steps_before;
        if crashed {
            self.disk.record();
        }
        let was_ill = self.ill;
        self.perform(step)?;
        let rng = &mut Rng::with_seed(mix(self.program.seed ^ mix(nth)));
        if crashed {
            let snapshots = self.disk.recorded();
            if !was_ill {
                check_shown(&snapshots, |moment| self.allowed(Mark::unpack(moment.mark())))?;
            }
            for _ in 0..self.effort.moments {
                let snapshot = &snapshots[rng.usize(..snapshots.len())];
                self.crash_all(snapshot, rng)?;
            }
        }
        match step {
            NameStep::Close => self.again(None, self.mark.class),
            NameStep::Other => self.again(None, other(self.mark.class)),
            // Nothing is promised about a power cut in class `process`.
            NameStep::Cut if !self.mark.exposed => {
                let cuts = self.disk.snapshot().cuts(64, rng.u64(..));
                self.again(Some(How::Power(cuts[rng.usize(..cuts.len())])), self.mark.class)
            }
            NameStep::Kill | NameStep::Cut => self.again(Some(How::Killed), self.mark.class),
            _ => Ok(()),
        }
    }

    fn perform(&mut self, step: &NameStep) -> Result<(), String> {
        match step {
            NameStep::Commit(changes) => _ = self.commit(changes, true)?,
            NameStep::Async(changes) => _ = self.commit(changes, false)?,
            NameStep::Checkpoint => {
                if let Err(e) = self.player.store.checkpoint() {
                    self.failed("a checkpoint", e)?;
                }
            }
            NameStep::Between(first, second) => self.between(first, second)?,
            NameStep::Mark => {
                if let Err(e) = self.player.store.write_durable_mark() {
                    self.failed("a mark", e)?;
                }
            }
            NameStep::Forget => {
                let last = self.last();
                self.player.forget(&last, true);
            }
            NameStep::Close | NameStep::Other => self.close()?,
            NameStep::Refuse(refusal) => {
                self.wait()?;
                self.ill = true;
                self.disk.set_options(|options| options.refusal = Some(*refusal));
            }
            NameStep::Fail(after, code) => {
                self.wait()?;
                self.ill = true;
                let on = if code % 2 == 0 { On::Name } else { On::Attribute };
                self.disk.fail(Fault { on, after: *after, times: 1, what: What::Errno(*code) });
            }
            NameStep::Heal => self.heal()?,
            NameStep::Kill | NameStep::Cut => {}
        }
        for (ticket, number) in std::mem::take(&mut self.tickets) {
            match ticket.poll() {
                Some(result) => {
                    result.map_err(text("an asynchronous commit"))?;
                    self.done(number);
                }
                None => self.tickets.push((ticket, number)),
            }
        }
        Ok(())
    }

    /// A checkpoint with two commits: one before it is applied, and one before the log is truncated.
    fn between(&mut self, first: &[NameChange], second: &[NameChange]) -> Result<(), String> {
        let store = self.player.store.clone();
        let begun = match store.begin_checkpoint() {
            Ok(begun) => begun,
            Err(e) => return self.failed("the beginning of a checkpoint", e),
        };
        // A commit that finds the journal full would wait for the running checkpoint.
        let early = !self.has_room();
        if !early {
            self.commit(first, true)?;
        }
        let applied = match begun.map(|begun| begun.apply()).transpose() {
            Ok(applied) => applied,
            Err(e) => {
                self.failed("a checkpoint", e)?;
                None
            }
        };
        let late = !early && self.has_room();
        if late {
            self.commit(second, true)?;
        }
        if let Some(Err(e)) = applied.map(|applied| applied.truncate_log()) {
            self.failed("the end of a checkpoint", e)?;
        }
        if early {
            self.commit(first, true)?;
        }
        if !late {
            self.commit(second, true)?;
        }
        Ok(())
    }

    /// Closes the store. After that there are no commits that a power cut could lose.
    pub fn close(&mut self) -> Result<(), String> {
        self.wait()?;
        let last = self.last();
        self.player.forget(&last, true);
        match self.player.store.clone().close() {
            Ok(()) => {
                self.mark.exposed = false;
                self.set_mark();
                Ok(())
            }
            Err(e) => self.failed("closing the store", e),
        }
    }

    /// Ends the refusal: a checkpoint applies everything, unless the journal has failed.
    fn heal(&mut self) -> Result<(), String> {
        self.disk.set_options(|options| options.refusal = None);
        self.disk.clear_faults();
        if !self.ill || self.dead {
            return Ok(());
        }
        let last = self.last();
        self.player.forget(&last, true);
        self.player.store.checkpoint().map_err(text("a checkpoint after all was well again"))?;
        let waits = self.player.store.status().quarantined;
        if !waits.is_empty() {
            return Err(format!("all is well again, and in quarantine are still {waits:?}"));
        }
        self.ill = false;
        let files = plain_files(&self.disk);
        if last.is_same(&files, self.effort.alphabet) {
            return compare_views(&self.player.store, &files);
        }
        Err(format!("after all was well again, {}", mixture(&Reference::new(last.files()), 1, &files)))
    }

    /// Whether any commit has room in the journal. While calls fail, room that must be allocated first does not count.
    fn has_room(&self) -> bool {
        let status = self.player.store.status();
        let all = if self.ill { status.journal_bytes_allocated } else { status.journal_bytes_max };
        all.saturating_sub(status.journal_bytes_pending) >= ROOM_BYTES_MIN
    }

    /// Ends the process in this way, and continues with the state that the next one finds. The kernel refuses nothing
    /// to that one.
    fn again(&mut self, how: Option<How>, class: FailureClass) -> Result<(), String> {
        let allowed = self.allowed(self.mark);
        let snapshot = self.disk.snapshot();
        let disk = match how {
            None | Some(How::Killed) => snapshot.killed(),
            Some(How::Power(cut)) => snapshot.power_cut(cut).disk,
        };
        self.life.0.kill();
        let next = Run::open(self.program, self.effort, disk, allowed, Mark { class, ..self.mark })?;
        let totals = self.totals;
        *self = next;
        self.totals = totals;
        Ok(())
    }

    /// The end of the program: waits for pending commits.
    pub fn end(&mut self) -> Result<(), String> {
        self.wait()
    }
}
