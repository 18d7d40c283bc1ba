//! Random programs over a heap on the simulated disk, crashed at every moment, and during the recovery.
//!
//! The program runs beside its model. After a crash the heap must have, to the last byte, the contents as of the last
//! acknowledged commit, or of one that had begun. The program then continues from that commit's model.

use crate::heaps::fixture::HeapFixture;
use crate::heaps::layout::{blocks_of, is_metadata};
use crate::heaps::model::HeapModel;
use crate::programs::fixture::store_options;
use crate::programs::oracle::crash;
use crate::programs::program::{How, Journal, Setup, Start, Trouble};
use crate::programs::runner::KillOnDrop;
use crate::simulation::Options;
use crate::simulation::SimDisk;
use crate::simulation::Snapshot;
use crate::simulation::state::inodes::{hash_bytes, mix};
use fastrand::Rng;
use std::collections::HashSet;
use std::fmt;
use std::ops::AddAssign;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;
use untorn::__private::OpenStoreOn;
use untorn::heap::{Heap, HeapOptions};
use untorn::{Error, FailureClass, File, Store, Ticket, TrackerKind};
use untorn_journal::directories::store_dir::StoreDir;

const HEAP: &str = "heap";
/// An ordinary file that some commits change, too.
const NOTE: &str = "note";
const NOTE_BYTES: usize = 600;
/// Small, because many heaps are open at once, each at an address of its own.
const ADDRESS_SPACE: u64 = 128 << 20;
/// Commits that find more changed bytes than this drop memory.
const DIRTY_MAX: u64 = 64 << 10;
const PAGE_BYTES: usize = 4096;
/// Changes and commits after a recovery.
const STEPS_AFTER: usize = 10;

/// The effort of a test.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// The most power cuts at each moment.
    pub cuts_max: usize,
    /// One of this many crashes is followed by another crash during its recovery.
    pub second_every: u64,
    /// The recoveries that are checked even after the deadline.
    pub least: u64,
    /// The time at which it ends early.
    pub deadline: Option<Instant>,
}

/// The counts of programs and crashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Programs that ran.
    pub programs: u64,
    /// Commits of these programs.
    pub commits: u64,
    /// Power cuts that lost, tore or reordered something unflushed.
    pub states: u64,
    /// States that were recovered and checked, including kills.
    pub checked: u64,
    /// The number of these with a crash during a recovery.
    pub second: u64,
}

impl AddAssign for Totals {
    fn add_assign(&mut self, more: Totals) {
        self.programs += more.programs;
        self.commits += more.commits;
        self.states += more.states;
        self.checked += more.checked;
        self.second += more.second;
    }
}

/// A program and its crashes; written `seed/steps/crash,crash`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeapCase {
    /// The seed of the program, its disk and the sizes of its journal.
    pub seed: u64,
    /// The number of steps: changes, commits and so on.
    pub steps: usize,
    /// A crash, and possibly another during the recovery.
    pub crashes: Vec<Trouble>,
}

impl fmt::Display for HeapCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let crashes: Vec<_> = self.crashes.iter().map(Trouble::to_string).collect();
        write!(f, "{}/{}/{}", self.seed, self.steps, crashes.join(","))
    }
}

impl FromStr for HeapCase {
    type Err = String;
    fn from_str(text: &str) -> Result<HeapCase, String> {
        let parts: Vec<_> = text.split('/').collect();
        let [seed, steps, crashes] = parts[..] else { return Err(format!("a case has three parts: {text}")) };
        let bad = |e| format!("{text}: {e}");
        Ok(HeapCase {
            seed: seed.parse().map_err(bad)?,
            steps: steps.parse().map_err(bad)?,
            crashes: crashes.split(',').filter(|c| !c.is_empty()).map(str::parse).collect::<Result<_, _>>()?,
        })
    }
}

/// A violation: a state that no allowed history leads to.
#[derive(Clone, Debug)]
pub struct HeapViolation {
    /// The case that reproduces it.
    pub case: HeapCase,
    /// The description.
    pub what: String,
}

impl fmt::Display for HeapViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HeapViolation { case, what } = self;
        write!(
            f,
            "{case}\n  {what}\n  again: UNTORN_HEAP_CASE='{case}' cargo test -p untorn-crashlab --test heaps again -- \
             --nocapture"
        )
    }
}

/// A commit.
#[derive(Clone)]
pub(super) struct State {
    model: Arc<HeapModel>,
    note: u64,
    /// The sum of all bytes of the heap. None: the heap is still empty, wherever it is, or only the model is known.
    sum: Option<u64>,
}

/// The commits that may be the last after a crash, packed into the mark of snapshots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) acknowledged: usize,
    pub(super) begun: usize,
}

impl Window {
    fn pack(self) -> u64 {
        (self.acknowledged as u64) << 32 | self.begun as u64
    }

    fn unpack(mark: u64) -> Window {
        Window { acknowledged: (mark >> 32) as usize, begun: mark as u32 as usize }
    }
}

/// Begins an error of the program's store, which is allowed if a system call failed.
pub(super) const REFUSED: &str = "refused";

fn text(what: &str) -> impl Fn(Error) -> String + '_ {
    move |e| format!("{REFUSED}, {what}: {} ({})", e, e.kind())
}

/// The setup of a program.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) setup: Setup,
    class: FailureClass,
    told: bool,
}

/// A running program in its process.
pub(super) struct Session<'d> {
    disk: &'d SimDisk,
    // Killed before the rest is dropped: dropping would close the store, which is not part of the program.
    life: KillOnDrop,
    pub(super) heap: Heap,
    pub(super) note_file: File,
    store: Store,
    model: HeapModel,
    note: u64,
    pub(super) commits: Vec<State>,
    pub(super) window: Window,
    tickets: Vec<(Ticket, usize)>,
    /// The heap has the tracker `explicit`.
    told: bool,
}

fn note_bytes(note: u64) -> Vec<u8> {
    note.to_le_bytes().repeat(NOTE_BYTES / 8)
}

fn memory(heap: &Heap) -> &[u8] {
    let (base, len) = heap.memory();
    // SAFETY: the heap's memory, which this thread alone uses.
    unsafe { std::slice::from_raw_parts(base.as_ptr(), len) }
}

fn sum(heap: &Heap) -> u64 {
    hash_bytes(memory(heap), 0)
}

impl<'d> Session<'d> {
    /// Opens the heap, recovering it, and finds the commit that it shows.
    pub(super) fn open(
        disk: &'d SimDisk,
        place: &Place,
        mut commits: Vec<State>,
        window: Window,
    ) -> Result<Session<'d>, String> {
        let life = KillOnDrop(disk.spawn());
        let setup = &place.setup;
        let options = store_options(setup, place.class);
        let store =
            options.open_on(life.0.clone(), StoreDir::of_directory(), PathBuf::new()).map_err(text("the store"))?;
        let quarantined = store.status().quarantined;
        if !quarantined.is_empty() {
            return Err(format!("{REFUSED}, files are quarantined: {quarantined:?}"));
        }
        let tracker = match (place.told, setup.is_direct()) {
            (true, _) => TrackerKind::Explicit,
            (false, true) => TrackerKind::Scan,
            (false, false) => TrackerKind::PageMap,
        };
        let told = place.told;
        let mut options = HeapOptions::new().create(true).address_space(ADDRESS_SPACE).tracker(tracker);
        if setup.journal != Journal::Roomy {
            // SAFETY: one thread uses the heap.
            options = unsafe { options.quiet(true) }.dirty_max(DIRTY_MAX);
        }
        let heap = options.open_in(&store, HEAP).map_err(text("the heap"))?;
        let note_file = store.open_file(NOTE).map_err(text("the note"))?;
        let mut bytes = [0; NOTE_BYTES];
        note_file.read_at(&mut bytes, 0).map_err(text("the note"))?;
        let (sum, is_empty) = (sum(&heap), heap.roots().is_empty());
        // Of a commit that failed, but may be durable, only the structures are known.
        let holds = |number: usize| match commits[number].sum {
            Some(wanted) => wanted == sum,
            None if number == 0 => is_empty,
            None => HeapFixture::of(&heap).is_ok_and(|fixture| fixture.compare(&commits[number].model).is_ok()),
        };
        let same = |number: &usize| bytes[..] == note_bytes(commits[*number].note) && holds(*number);
        let Some(number) = (window.acknowledged..=window.begun).find(same) else {
            return Err(match (0..commits.len()).find(same) {
                Some(number) => format!("{window:?}, and it holds commit {number}"),
                None => format!("{window:?}, and it holds no commit whole"),
            });
        };
        commits.truncate(number + 1);
        let window = Window { acknowledged: number, begun: number };
        let (model, tickets) = (HeapModel::default(), Vec::new());
        let mut session =
            Session { disk, life, heap, note_file, store, model, note: 0, commits, window, tickets, told };
        session.back();
        session.mark();
        session.compare()?;
        Ok(session)
    }

    fn fixture(&self) -> Result<HeapFixture<'_>, String> {
        HeapFixture::of(&self.heap).map_err(text("the structures"))
    }

    pub(super) fn compare(&self) -> Result<(), String> {
        self.fixture()?.compare(&self.model)
    }

    fn mark(&self) {
        self.disk.set_mark(self.window.pack());
    }

    /// Sets the model to the last commit that has begun.
    pub(super) fn back(&mut self) {
        let last = self.commits.last().expect("the start");
        self.model = (*last.model).clone();
        self.note = last.note;
    }

    fn begin(&mut self) -> usize {
        let state = State { model: Arc::new(self.model.clone()), note: self.note, sum: None };
        self.commits.push(state);
        self.window.begun = self.commits.len() - 1;
        self.mark();
        self.window.begun
    }

    /// Records the heap's bytes after the pending commit: the commit gives free space back first, which changes them.
    pub(super) fn settled(&mut self) {
        self.commits.last_mut().expect("the commit").sum = Some(sum(&self.heap));
    }

    pub(super) fn done(&mut self, number: usize) {
        self.window.acknowledged = self.window.acknowledged.max(number);
        self.mark();
    }

    pub(super) fn wait(&mut self) -> Result<(), String> {
        for (ticket, number) in std::mem::take(&mut self.tickets) {
            ticket.wait().map_err(text("an asynchronous commit"))?;
            self.done(number);
        }
        Ok(())
    }

    fn change(&mut self, rng: &mut Rng) -> Result<(), String> {
        let change = self.model.draw(rng);
        let before = self.told.then(|| memory(&self.heap).to_vec());
        let done = self.fixture()?.apply(&change, &self.model);
        if let Some(before) = before {
            self.tell(&before)?;
        }
        done.map_err(|e| format!("{change:?}: {REFUSED}: {e}"))?;
        self.model.apply(&change);
        if rng.u32(..8) == 0 { self.compare() } else { Ok(()) }
    }

    /// Declares all changes since `before`, except for the heap's own bytes, which the heap declares by itself.
    fn tell(&self, before: &[u8]) -> Result<(), String> {
        let after = memory(&self.heap);
        for (page, bytes) in after.chunks(PAGE_BYTES).enumerate() {
            let at = page * PAGE_BYTES;
            let old = before.get(at..at + PAGE_BYTES).unwrap_or(&[0; PAGE_BYTES]);
            if bytes == old || is_metadata(after, at) {
                continue;
            }
            let differs = |(a, b): (&u8, &u8)| a != b;
            let first = bytes.iter().zip(old).position(differs).unwrap_or(0);
            let last = bytes.iter().zip(old).rposition(differs).unwrap_or(0);
            self.heap.mark_dirty_value(&bytes[first..=last]).map_err(text("mark the changes"))?;
        }
        Ok(())
    }

    pub(super) fn commit(&mut self) -> Result<(), String> {
        let number = self.begin();
        self.heap.commit().map_err(text("a commit"))?;
        self.settled();
        self.done(number);
        Ok(())
    }

    pub(super) fn step(&mut self, rng: &mut Rng) -> Result<(), String> {
        match rng.u32(..100) {
            0..10 => self.commit()?,
            10..14 => {
                let number = self.begin();
                let ticket = self.heap.commit_async().map_err(text("an asynchronous commit"))?;
                self.settled();
                self.tickets.push((ticket, number));
            }
            14..18 => {
                self.note = rng.u64(..);
                let written = self.note_file.write_at(&note_bytes(self.note), 0);
                written.map_err(text("the note"))?;
                let number = self.begin();
                self.heap.syncv(&[&self.note_file]).map_err(text("a commit with a file"))?;
                self.settled();
                self.done(number);
            }
            18..24 => {
                // SAFETY: nothing that was allocated since is used.
                unsafe { self.heap.rollback() }.map_err(text("a roll-back"))?;
                self.back();
                let last = self.commits.last().expect("the start");
                if last.sum.is_some_and(|wanted| wanted != sum(&self.heap)) {
                    // An asynchronous commit that failed is rolled back, too.
                    self.wait()?;
                    return Err("a roll-back leaves other bytes than the commit had".to_owned());
                }
                self.compare()?;
            }
            24..26 => self.wait()?,
            26..29 => self.store.checkpoint().map_err(text("a checkpoint"))?,
            // SAFETY: one thread uses the heap.
            29..31 => unsafe { self.heap.reclaim() }.map_err(text("giving memory back"))?,
            _ => self.change(rng)?,
        }
        Ok(())
    }

    /// Ends the process; uncommitted changes are discarded.
    pub(super) fn end(mut self, close: bool) -> Result<(Vec<State>, Window), String> {
        self.wait()?;
        let Session { life, heap, note_file, store, commits, window, .. } = self;
        if close {
            heap.close().map_err(text("closing the heap"))?;
            note_file.close().map_err(text("closing the note"))?;
            store.close().map_err(text("closing the store"))?;
        }
        drop(life);
        Ok((commits, window))
    }

    /// Commits and closes; then the file must have exactly the allocations of this program.
    pub(super) fn finish(mut self) -> Result<Vec<State>, String> {
        self.commit()?;
        self.compare()?;
        let (blocks, others) = self.fixture()?.allocations();
        let disk = self.disk;
        let (commits, _) = self.end(true)?;
        let found = blocks_of(&disk.get(HEAP).map_err(|e| e.to_string())?)?;
        if let Some((at, bytes)) = blocks.iter().find(|(at, bytes)| found.get(at).is_none_or(|found| found < bytes)) {
            return Err(format!("the file has no allocation of {bytes} bytes at {at:#x}"));
        }
        if found.len() != blocks.len() + others {
            let (all, own) = (found.len(), blocks.len() + others);
            return Err(format!("the file has {all} allocations, and the program has {own}"));
        }
        Ok(commits)
    }
}

/// A moment of a run, and the commits at that moment.
pub(super) type Moment = (Snapshot, Arc<Vec<State>>);

/// Runs programs and crashes them, one after the other.
pub struct Programs {
    effort: Effort,
    totals: Totals,
    known: HashSet<u64>,
}

impl Programs {
    /// No program has run yet.
    pub fn new(effort: Effort) -> Programs {
        Programs { effort, totals: Totals::default(), known: HashSet::new() }
    }

    /// Counts so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    pub(super) fn is_over(&self) -> bool {
        self.totals.checked >= self.effort.least
            && self.effort.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Runs the program of a seed to its end, without a crash.
    pub fn play(&mut self, seed: u64, steps: usize) -> Result<(), HeapViolation> {
        let (_, commits) = run(&place_of(seed), seed, steps)
            .map_err(|what| HeapViolation { case: HeapCase { seed, steps, crashes: Vec::new() }, what })?;
        self.count(&commits);
        Ok(())
    }

    fn count(&mut self, commits: &[State]) {
        self.totals.programs += 1;
        self.totals.commits += commits.len() as u64 - 1;
    }

    /// Runs the program of a seed, and crashes it at every moment.
    pub fn program(&mut self, seed: u64, steps: usize) -> Result<(), HeapViolation> {
        let mut crashes = Vec::new();
        let done = self.crash_all(seed, steps, &mut crashes);
        done.map_err(|what| HeapViolation { case: HeapCase { seed, steps, crashes }, what })
    }

    fn crash_all(&mut self, seed: u64, steps: usize, crashes: &mut Vec<Trouble>) -> Result<(), String> {
        let place = place_of(seed);
        let (mut moments, commits) = run(&place, seed, steps)?;
        self.count(&commits);
        // If the time is over early, it is not always the last calls that are left out.
        Rng::with_seed(mix(seed)).shuffle(&mut moments);
        for moment in &moments {
            let cuts = moment.cuts(self.effort.cuts_max, mix(seed ^ moment.call()));
            for how in std::iter::once(How::Killed).chain(cuts.into_iter().map(How::Power)) {
                if self.is_over() {
                    return Ok(());
                }
                if !self.is_new(moment, how, seed) {
                    continue;
                }
                *crashes = vec![Trouble::Crash(moment.call(), how)];
                self.totals.checked += 1;
                let chance = mix(seed ^ mix(moment.call()) ^ self.totals.checked);
                if how != How::Killed && is_refused_as_unknown(&place, moment, how)? {
                    continue;
                }
                let second = chance.is_multiple_of(self.effort.second_every);
                let recovery = recover(&place, moment, how, &commits, second)?;
                if second {
                    let (moment, commits) = &recovery[(chance >> 16) as usize % recovery.len()];
                    let cuts = moment.cuts(24, chance);
                    let pick = (chance >> 32) as usize % (cuts.len() + 1);
                    let how = cuts.get(pick).map_or(How::Killed, |cut| How::Power(*cut));
                    crashes.push(Trouble::Crash(moment.call(), how));
                    self.totals.second += 1;
                    self.totals.checked += 1;
                    if how == How::Killed || !is_refused_as_unknown(&place, moment, how)? {
                        recover(&place, moment, how, commits, false)?;
                    }
                }
            }
        }
        crashes.clear();
        Ok(())
    }

    /// Counts a state. False: the same disk was checked before, with the same allowed commits.
    fn is_new(&mut self, moment: &Snapshot, how: How, seed: u64) -> bool {
        let How::Power(cut) = how else { return true };
        let outcome = moment.power_cut(cut);
        self.totals.states += u64::from(outcome.something_lost);
        self.known.insert(mix(outcome.image_hash ^ mix(seed ^ mix(moment.mark()))))
    }
}

/// The setup of a seed; one program of four is in class `process`.
pub(super) fn place_of(seed: u64) -> Place {
    let all: Vec<_> = Setup::of_disks(Start::Plain, (seed / 8) as usize).collect();
    let class = if mix(seed).is_multiple_of(4) { FailureClass::Process } else { FailureClass::Power };
    Place { setup: all[seed as usize % all.len()], class, told: mix(!seed).is_multiple_of(3) }
}

/// Whether the store refuses to open after a power cut because it was in class `process`. A store that opens must have
/// the last commit, as in class `power`: it was closed, or not used yet.
pub(super) fn is_refused_as_unknown(place: &Place, moment: &Snapshot, how: How) -> Result<bool, String> {
    if place.class == FailureClass::Power {
        return Ok(false);
    }
    let disk = crash(moment, how);
    let life = KillOnDrop(disk.spawn());
    let options = store_options(&place.setup, place.class);
    match options.open_on(life.0.clone(), StoreDir::of_directory(), PathBuf::new()) {
        Err(Error::UnknownState { .. }) => Ok(true),
        Err(e) => Err(text("the store")(e)),
        Ok(_) => Ok(false),
    }
}

/// A disk with a note, everything durable.
pub(super) fn disk_of(place: &Place, seed: u64) -> SimDisk {
    let disk = SimDisk::new(Options { memory: true, seed, ..place.setup.disk(0) });
    disk.put(NOTE, &[0; NOTE_BYTES]).expect("an empty disk");
    disk.settle();
    disk
}

/// The state before the first commit.
pub(super) fn nothing() -> (Vec<State>, Window) {
    (vec![State { model: Arc::default(), note: 0, sum: None }], Window { acknowledged: 0, begun: 0 })
}

/// Runs a program to its end; returns its moments and its commits.
pub(super) fn run(place: &Place, seed: u64, steps: usize) -> Result<(Vec<Snapshot>, Vec<State>), String> {
    let disk = disk_of(place, seed);
    disk.record();
    let mut rng = Rng::with_seed(seed);
    let (mut commits, mut window) = nothing();
    let mut session = Session::open(&disk, place, commits, window)?;
    for _ in 0..steps {
        match rng.u32(..40) {
            n @ (0 | 1) => {
                (commits, window) = session.end(n == 0)?;
                session = Session::open(&disk, place, commits, window)?;
            }
            _ => session.step(&mut rng)?,
        }
    }
    let commits = session.finish()?;
    Ok((disk.recorded(), commits))
}

/// Recovers after a crash, and continues for a while. Returns the moments of that, if they are to be recorded.
pub(super) fn recover(
    place: &Place,
    moment: &Snapshot,
    how: How,
    commits: &[State],
    record: bool,
) -> Result<Vec<Moment>, String> {
    let disk = crash(moment, how);
    let mut moments = Vec::new();
    let mut keep = |commits: &[State]| {
        let commits = Arc::new(commits.to_vec());
        moments.extend(disk.recorded().into_iter().map(|moment| (moment, commits.clone())));
    };
    if record {
        disk.record();
    }
    let mut session = Session::open(&disk, place, commits.to_vec(), Window::unpack(moment.mark()))?;
    if record {
        keep(commits);
        disk.record();
    }
    let mut rng = Rng::with_seed(mix(moment.call() ^ mix(session.model.serial)));
    for _ in 0..STEPS_AFTER {
        session.step(&mut rng)?;
    }
    let commits = session.finish()?;
    if record {
        keep(&commits);
    }
    Ok(moments)
}
