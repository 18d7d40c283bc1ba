//! Programs over names on the simulated disk, crashed at random moments, and during the recovery.

use super::name_player::NamePlayer;
use super::name_program::{NameProgram, NameStep, draw_transaction};
use super::name_tree::{Alphabet, Entry, NameChange, NameTree};
use crate::differences::{compare_views, mixture};
use crate::fixture::{plain_files, store_options};
use crate::oracle::check_leftovers;
use crate::program::How;
use crate::reference_model::Model as Reference;
use crate::runner::KillOnDrop;
use crate::simulation::inodes::mix;
use crate::simulation::{SimDisk, Snapshot};
use fastrand::Rng;
use std::fmt;
use std::ops::AddAssign;
use std::path::PathBuf;
use std::time::Instant;
use untorn::{Error, FailureClass, Ticket};
use untorn_journal::store_dir::StoreDir;

/// How much is tried.
#[derive(Clone, Copy, Debug)]
pub struct NameEffort {
    /// Moments of each step at which it is crashed.
    pub moments: usize,
    /// Power cuts at each of them, besides the kill.
    pub cuts: usize,
    /// What changes are drawn from.
    pub alphabet: Alphabet,
}

/// Counts of what was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NameTotals {
    /// Programs that ran.
    pub programs: u64,
    /// Their commits.
    pub commits: u64,
    /// States that were recovered and checked, kills included.
    pub checked: u64,
    /// Power cuts after which something unflushed was lost, torn or reordered.
    pub states: u64,
    /// Crashes during a recovery.
    pub second: u64,
}

impl AddAssign for NameTotals {
    fn add_assign(&mut self, more: NameTotals) {
        self.programs += more.programs;
        self.commits += more.commits;
        self.checked += more.checked;
        self.states += more.states;
        self.second += more.second;
    }
}

/// A program after which, or after a crash of which, the store held what it must not.
#[derive(Clone, Debug)]
pub struct NameViolation {
    /// The program.
    pub program: NameProgram,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for NameViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NameViolation { program, what } = self;
        write!(
            f,
            "{program}\n  {what}\n  again: UNTORN_NAMES_CASE='{program}' cargo test -p untorn-crashlab --test names again \
             -- --nocapture"
        )
    }
}

/// Room in the journal that suffices for any commit of a program: a record of what goes inline, in blocks of its own.
const ROOM_BYTES_MIN: u64 = 12 << 10;

/// Commits that may be the last, packed into the number that snapshots carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    acknowledged: usize,
    begun: usize,
}

impl Window {
    fn unpack(mark: u64) -> Window {
        Window { acknowledged: (mark >> 32) as usize, begun: mark as u32 as usize }
    }
}

fn text(what: &str) -> impl Fn(Error) -> String + '_ {
    move |e| format!("{what}: {e}")
}

/// At every moment: a file that has come to a name has all its committed contents, whoever opens that name.
fn check_shown<'t>(moments: &[Snapshot], allowed: impl Fn(&Snapshot) -> &'t [NameTree]) -> Result<(), String> {
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

struct Run<'p> {
    program: &'p NameProgram,
    effort: NameEffort,
    totals: NameTotals,
    disk: SimDisk,
    life: KillOnDrop,
    player: NamePlayer,
    /// The state after each commit.
    commits: Vec<NameTree>,
    window: Window,
    tickets: Vec<(Ticket, usize)>,
}

/// Runs a program, and crashes it at random moments.
pub fn try_program(program: &NameProgram, effort: NameEffort) -> Result<NameTotals, NameViolation> {
    let wrong = |what| NameViolation { program: program.clone(), what };
    let disk = SimDisk::new(program.setup.disk(0));
    let mut run = Run::open(program, effort, disk, vec![NameTree::default()]).map_err(wrong)?;
    run.totals.programs = 1;
    for (nth, step) in program.steps.iter().enumerate() {
        run.step(step, nth as u64).map_err(|what| wrong(format!("step {nth}, {}: {what}", name_of(step))))?;
    }
    run.wait().map_err(wrong)?;
    Ok(run.totals)
}

fn name_of(step: &NameStep) -> String {
    step.to_string().split('=').next().unwrap_or_default().to_owned()
}

/// The smallest program found that still shows a violation, by leaving out one step or change after the other.
pub fn smallest_violation(found: NameViolation, effort: NameEffort, until: Instant) -> NameViolation {
    let effort = NameEffort { moments: effort.moments.max(1) * 4, cuts: effort.cuts.max(1) * 2, ..effort };
    let mut smallest = found;
    'again: loop {
        for program in smallest.program.smaller() {
            if Instant::now() > until {
                return smallest;
            }
            if let Err(violation) = try_program(&program, effort) {
                smallest = violation;
                continue 'again;
            }
        }
        return smallest;
    }
}

fn open_store(program: &NameProgram, life: &KillOnDrop) -> Result<untorn::Store, String> {
    let options = store_options(&program.setup, FailureClass::Power);
    options.open_on(life.0.clone(), StoreDir::of_directory(), PathBuf::new()).map_err(text("opening the store"))
}

impl<'p> Run<'p> {
    /// Opens the store, and finds which of the commits it holds.
    fn open(
        program: &'p NameProgram,
        effort: NameEffort,
        disk: SimDisk,
        mut commits: Vec<NameTree>,
    ) -> Result<Run<'p>, String> {
        let life = KillOnDrop(disk.spawn());
        let store = open_store(program, &life)?;
        let quarantined = store.status().quarantined;
        if !quarantined.is_empty() {
            return Err(format!("files are quarantined: {quarantined:?}"));
        }
        let files = plain_files(&disk);
        let Some(last) = commits.iter().rposition(|tree| tree.is_same(&files)) else {
            let mut what = String::new();
            for tree in commits.iter().rev().take(2) {
                what += &mixture(&Reference::new(tree.files()), 1, &files);
                what += "; ";
            }
            return Err(format!("of {} commits that may be the last, {what}", commits.len()));
        };
        let tree = commits.swap_remove(last);
        compare_views(&store, &files)?;
        let window = Window { acknowledged: 0, begun: 0 };
        let run = Run {
            program,
            effort,
            totals: NameTotals::default(),
            disk,
            life,
            player: NamePlayer::new(store),
            commits: vec![tree],
            window,
            tickets: Vec::new(),
        };
        run.mark();
        Ok(run)
    }

    fn mark(&self) {
        self.disk.set_mark((self.window.acknowledged as u64) << 32 | self.window.begun as u64);
    }

    fn last(&self) -> NameTree {
        self.commits.last().expect("the start").clone()
    }

    fn begin(&mut self, tree: NameTree) -> usize {
        self.commits.push(tree);
        self.totals.commits += 1;
        self.window.begun = self.commits.len() - 1;
        self.mark();
        self.window.begun
    }

    fn done(&mut self, number: usize) {
        self.window.acknowledged = self.window.acknowledged.max(number);
        self.mark();
    }

    fn wait(&mut self) -> Result<(), String> {
        for (ticket, number) in std::mem::take(&mut self.tickets) {
            ticket.wait().map_err(text("an asynchronous commit"))?;
            self.done(number);
        }
        Ok(())
    }

    fn commit(&mut self, changes: &[NameChange], wait: bool) -> Result<(), String> {
        let mut tree = self.last();
        let begun = self.player.transaction(&mut tree, changes, self.effort.alphabet);
        let Some(txn) = begun.map_err(text("a change"))? else { return Ok(()) };
        let number = self.begin(tree);
        if wait {
            txn.commit().map_err(text("a commit"))?;
            self.done(number);
        } else {
            let ticket = txn.commit_async().map_err(text("an asynchronous commit"))?;
            self.tickets.push((ticket, number));
        }
        let last = self.last();
        self.player.forget(&last, false);
        Ok(())
    }

    fn step(&mut self, step: &NameStep, nth: u64) -> Result<(), String> {
        self.disk.record();
        self.perform(step)?;
        let snapshots = self.disk.recorded();
        let allowed = |moment: &Snapshot| {
            let window = Window::unpack(moment.mark());
            &self.commits[window.acknowledged..=window.begun]
        };
        check_shown(&snapshots, allowed)?;
        let rng = &mut Rng::with_seed(mix(self.program.seed ^ mix(nth)));
        for _ in 0..self.effort.moments {
            let snapshot = &snapshots[rng.usize(..snapshots.len())];
            self.crash_all(snapshot, rng)?;
        }
        match step {
            NameStep::Close => {
                self.wait()?;
                self.again(None)?;
            }
            NameStep::Kill => self.again(Some(How::Killed))?,
            NameStep::Cut => {
                let cuts = self.disk.snapshot().cuts(64, rng.u64(..));
                self.again(Some(How::Power(cuts[rng.usize(..cuts.len())])))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn perform(&mut self, step: &NameStep) -> Result<(), String> {
        match step {
            NameStep::Commit(changes) => self.commit(changes, true)?,
            NameStep::Async(changes) => self.commit(changes, false)?,
            NameStep::Checkpoint => self.player.store.checkpoint().map_err(text("a checkpoint"))?,
            NameStep::Between(first, second) => {
                let store = self.player.store.clone();
                let begun = store.begin_checkpoint().map_err(text("the beginning of a checkpoint"))?;
                // A commit that finds the journal full waits for the checkpoint that is under way.
                let early = !self.has_room();
                if !early {
                    self.commit(first, true)?;
                }
                let applied = begun.map(|begun| begun.apply().map_err(text("a checkpoint"))).transpose()?;
                let late = !early && self.has_room();
                if late {
                    self.commit(second, true)?;
                }
                applied.map_or(Ok(()), |applied| applied.truncate_log().map_err(text("the end of a checkpoint")))?;
                if early {
                    self.commit(first, true)?;
                }
                if !late {
                    self.commit(second, true)?;
                }
            }
            NameStep::Mark => _ = self.player.store.write_durable_mark().map_err(text("a mark"))?,
            NameStep::Forget => {
                let last = self.last();
                self.player.forget(&last, true);
            }
            NameStep::Close => {
                self.wait()?;
                let last = self.last();
                self.player.forget(&last, true);
                self.player.store.clone().close().map_err(text("closing the store"))?;
            }
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

    /// Any commit finds room in the journal.
    fn has_room(&self) -> bool {
        let status = self.player.store.status();
        status.journal_bytes_max - status.journal_bytes_pending >= ROOM_BYTES_MIN
    }

    /// Ends the process in this way, and goes on with what the next one finds.
    fn again(&mut self, how: Option<How>) -> Result<(), String> {
        let allowed = self.commits[self.window.acknowledged..].to_vec();
        let snapshot = self.disk.snapshot();
        let disk = match how {
            None | Some(How::Killed) => snapshot.killed(),
            Some(How::Power(cut)) => snapshot.power_cut(cut).disk,
        };
        self.life.0.kill();
        let next = Run::open(self.program, self.effort, disk, allowed)?;
        let totals = self.totals;
        *self = next;
        self.totals = totals;
        Ok(())
    }

    fn crash_all(&mut self, snapshot: &Snapshot, rng: &mut Rng) -> Result<(), String> {
        let mut ways = vec![How::Killed];
        let cuts = snapshot.cuts(64, rng.u64(..));
        ways.extend((0..self.effort.cuts).map(|_| How::Power(cuts[rng.usize(..cuts.len())])));
        let window = Window::unpack(snapshot.mark());
        let allowed = self.commits[window.acknowledged..=window.begun].to_vec();
        for how in ways {
            let how_written = match how {
                How::Killed => "killed".to_owned(),
                How::Power(cut) => cut.to_string(),
            };
            let at = format!("{how_written}@{}", snapshot.call());
            let disk = match how {
                How::Killed => snapshot.killed(),
                How::Power(cut) => {
                    let outcome = snapshot.power_cut(cut);
                    self.totals.states += u64::from(outcome.something_lost);
                    outcome.disk
                }
            };
            self.recover(disk, allowed.clone(), rng).map_err(|what| format!("{at}: {what}"))?;
        }
        Ok(())
    }

    /// Recovers, sometimes with a crash in between, makes some more commits, and closes to plain files.
    fn recover(&mut self, disk: SimDisk, mut allowed: Vec<NameTree>, rng: &mut Rng) -> Result<(), String> {
        self.totals.checked += 1;
        let mut disk = disk;
        if rng.u32(..4) == 0 {
            self.totals.second += 1;
            disk.record();
            let first = Run::open(self.program, self.effort, disk, allowed.clone())?;
            let snapshots = first.disk.recorded();
            check_shown(&snapshots, |_| &allowed)?;
            let snapshot = &snapshots[rng.usize(..snapshots.len())];
            let cuts = snapshot.cuts(64, rng.u64(..));
            let cut = cuts[rng.usize(..cuts.len())];
            if snapshots.last().is_some_and(|last| last.call() == snapshot.call()) {
                allowed = first.commits.clone();
            }
            drop(first);
            disk = if rng.bool() { snapshot.killed() } else { snapshot.power_cut(cut).disk };
        }
        let mut next = Run::open(self.program, self.effort, disk, allowed)?;
        for _ in 0..rng.usize(..3) {
            let mut tree = next.last();
            let changes = draw_transaction(rng, &mut tree, self.effort.alphabet);
            next.commit(&changes, true).map_err(|what| format!("after the recovery: {what}: {changes:?}"))?;
        }
        let last = next.last();
        next.player.forget(&last, true);
        next.player.store.clone().close().map_err(text("closing after the recovery"))?;
        let files = plain_files(&next.disk);
        if !last.is_same(&files) {
            return Err(format!("after a close, {}", mixture(&Reference::new(last.files()), 1, &files)));
        }
        check_leftovers(&next.disk, "")
    }
}
