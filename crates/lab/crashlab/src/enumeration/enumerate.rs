//! The enumeration: every program, every moment of it, every crash.
//!
//! Programs come shortest first, and only the last operation of a program is new: the moments before it belong to a
//! shorter program. An operation that does nothing ends its branch. Moments and power cuts are taken one after the
//! other up to a bound, then at random from a seed. A state that was checked before, with the same allowed states, is
//! not recovered again.

use crate::mutation::sync_points;
use crate::programs::fixture::{Expect, prepare};
use crate::programs::oracle::{Oracle, class_after, crash};
use crate::programs::program::{Case, How, Op, Setup, Trouble};
use crate::programs::reference_model::{COMMITS_MAX, Files, Model, numbers};
use crate::programs::runner::Runner;
use crate::simulation::Failed;
use crate::simulation::SimDisk;
use crate::simulation::Snapshot;
use crate::simulation::state::inodes::{hash_bytes, mix};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The effort of an enumeration.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// The most power cuts at each moment.
    pub cuts_max: usize,
    /// The most second troubles, during the recovery, for each state that is checked.
    pub second_max: usize,
    /// The most moments after a failed sync that are tried as crashes; 0: no failed syncs.
    pub after_failed_sync_max: usize,
    /// The number of ways, of three, in which each sync fails; they take turns.
    pub failed_sync_ways: usize,
}

/// A violation: a state that no allowed history leads to.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The case that reproduces it.
    pub case: Case,
    /// The state that was found, and the expected one.
    pub what: String,
    /// The effects that were not durable at the (first) crash.
    pub pending: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n  {}", self.case, self.what)?;
        for line in &self.pending {
            writeln!(f, "  not durable at the crash: {line}")?;
        }
        write!(
            f,
            "  again: UNTORN_CASE='{}' cargo test -p untorn-crashlab --test enumerate again_one_case -- --nocapture",
            self.case
        )
    }
}

/// The counts of an enumeration so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Programs, counted once per setup.
    pub programs: u64,
    /// Power cuts that lost, tore or reordered something unflushed.
    pub states: u64,
    /// Distinct disk images among these.
    pub images: u64,
    /// States that were recovered and checked, including kills.
    pub checked: u64,
    /// Syncs that were made to fail.
    pub failed_syncs: u64,
}

const SHARDS: usize = 64;
const FAILURES: [Failed; 3] = [Failed::Lost, Failed::Half, Failed::Landed];

/// A set of numbers that many threads fill.
struct Seen(Vec<Mutex<HashSet<u64>>>);

impl Seen {
    fn new() -> Seen {
        Seen((0..SHARDS).map(|_| Mutex::default()).collect())
    }

    fn insert(&self, number: u64) -> bool {
        let shard = &self.0[(number % SHARDS as u64) as usize];
        shard.lock().insert(number)
    }
}

/// Limits of an enumeration.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Sync points that are skipped, as bits; see [`crate::Options::skipped`].
    pub skipped: u64,
    /// The number of violations after which it stops.
    pub violations_max: usize,
    /// Time at which it stops.
    pub deadline: Option<Instant>,
    /// The seed of every random choice.
    pub seed: u64,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { skipped: 0, violations_max: 1, deadline: None, seed: 1 }
    }
}

/// An enumeration: tries programs, and keeps counts and violations.
pub struct Enumeration {
    bounds: Bounds,
    seen: Seen,
    images: Seen,
    totals: [AtomicU64; 5],
    violations: Mutex<Vec<Violation>>,
    stop: AtomicBool,
}

#[derive(Clone, Copy)]
enum Count {
    Programs,
    States,
    Images,
    Checked,
    FailedSyncs,
}

/// One program on one setup.
struct Trial<'t> {
    setup: &'t Setup,
    ops: &'t [Op],
    effort: &'t Effort,
}

impl Enumeration {
    /// An enumeration that has tried nothing yet.
    pub fn new(bounds: Bounds) -> Enumeration {
        Enumeration {
            bounds,
            seen: Seen::new(),
            images: Seen::new(),
            totals: Default::default(),
            violations: Mutex::default(),
            stop: AtomicBool::new(false),
        }
    }

    /// Counts so far.
    pub fn totals(&self) -> Totals {
        let [programs, states, images, checked, failed_syncs] = [0, 1, 2, 3, 4].map(|i| self.totals[i].load(Relaxed));
        Totals { programs, states, images, checked, failed_syncs }
    }

    /// The violations so far, shortest programs first.
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = self.violations.lock().clone();
        found.sort_by_key(|v| (v.case.ops.len(), v.case.troubles.len(), v.case.to_string()));
        found
    }

    fn count(&self, what: Count) {
        self.totals[what as usize].fetch_add(1, Relaxed);
    }

    /// Whether a violation or the clock has stopped it.
    pub fn is_over(&self) -> bool {
        self.stop.load(Relaxed) || self.bounds.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    fn report(&self, violation: Violation) {
        let mut found = self.violations.lock();
        found.push(violation);
        if found.len() >= self.bounds.violations_max {
            self.stop.store(true, Relaxed);
        }
    }

    /// Tries every program of exactly `len` of these operations that continues one of `shorter`, each on the setups
    /// that `setups` returns for its number. Returns the programs whose last operation did something. With `len` 0
    /// there is one program: opening the store.
    pub fn level(
        &self,
        shorter: &[Vec<Op>],
        ops: &[Op],
        setups: &(dyn Fn(usize) -> Vec<Setup> + Sync),
        effort: &Effort,
    ) -> Vec<Vec<Op>> {
        let programs: Vec<Vec<Op>> = match shorter {
            [] => vec![Vec::new()],
            _ => shorter.iter().flat_map(|p| ops.iter().map(move |op| [&p[..], &[*op]].concat())).collect(),
        };
        let next = AtomicUsize::new(0);
        let alive = Mutex::new(Vec::new());
        let worker = || {
            let mut bases: HashMap<String, SimDisk> = HashMap::new();
            loop {
                let at = next.fetch_add(1, Relaxed);
                let Some(program) = programs.get(at).filter(|_| !self.is_over()) else { return };
                let mut moved = false;
                for setup in setups(at) {
                    moved |= self.trial(&mut bases, &Trial { setup: &setup, ops: program, effort });
                }
                if moved {
                    alive.lock().push((at, program.clone()));
                }
            }
        };
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(worker);
            }
        });
        let mut alive = alive.into_inner();
        alive.sort_by_key(|(at, _)| *at);
        alive.into_iter().map(|(_, program)| program).collect()
    }

    /// Tries one program alone, crashed at every moment of its last operation.
    pub fn program(&self, setup: &Setup, ops: &[Op], effort: &Effort) {
        self.trial(&mut HashMap::new(), &Trial { setup, ops, effort });
    }

    /// Tries one program with each of these troubles at each of its calls.
    pub fn trouble_at_every_call(&self, setup: &Setup, ops: &[Op], effort: &Effort, troubles: &[fn(u64) -> Trouble]) {
        let trial = Trial { setup, ops, effort };
        let base = prepare(setup, ops.contains(&Op::Many));
        let disk = base.fork();
        if let Err(what) = Runner::new(&disk, setup, false).run(ops) {
            return self.report(self.violation(&trial, vec![], what, None));
        }
        for call in 0..disk.calls() {
            for trouble in troubles {
                if self.is_over() {
                    return;
                }
                self.with_fault(&trial, &base, trouble(call));
            }
        }
    }

    /// Tries one program on one setup. Returns whether its last operation did something.
    fn trial(&self, bases: &mut HashMap<String, SimDisk>, trial: &Trial<'_>) -> bool {
        let many = trial.ops.contains(&Op::Many);
        let base = bases.entry(format!("{}{many}", trial.setup)).or_insert_with(|| prepare(trial.setup, many));
        let disk = base.fork();
        disk.set_options(|options| options.skipped = self.bounds.skipped);
        let mut runner = Runner::new(&disk, trial.setup, false);
        let done = runner.run(trial.ops);
        self.count(Count::Programs);
        if let Err(what) = done {
            self.report(self.violation(trial, vec![], what, None));
            return false;
        }
        if runner.moved {
            self.crash_all(trial, &runner.reference, &runner.snapshots, &[], usize::MAX);
            if trial.effort.after_failed_sync_max > 0 {
                let syncs = sync_points().iter().map(|point| disk.syncs(*point)).sum();
                self.fail_syncs(trial, base, syncs);
            }
        }
        runner.moved
    }

    /// Makes every sync of the run fail once, in every way.
    fn fail_syncs(&self, trial: &Trial<'_>, base: &SimDisk, syncs: u64) {
        for nth in 0..syncs {
            for turn in 0..trial.effort.failed_sync_ways as u64 {
                let at = (nth + turn + self.seed_of(trial, &[])) % FAILURES.len() as u64;
                self.count(Count::FailedSyncs);
                self.with_fault(trial, base, Trouble::Sync(nth, FAILURES[at as usize]));
            }
        }
    }

    /// Runs the program with a fault, and crashes it afterwards.
    fn with_fault(&self, trial: &Trial<'_>, base: &SimDisk, trouble: Trouble) {
        let disk = base.fork();
        disk.set_options(|options| options.skipped = self.bounds.skipped);
        trouble.fault().into_iter().for_each(|fault| disk.fail(fault));
        let mut runner = Runner::new(&disk, trial.setup, true);
        let ran = catch_unwind(AssertUnwindSafe(|| runner.run(trial.ops)));
        match ran.unwrap_or_else(|_| Err("it panicked".to_owned())) {
            Err(what) => self.report(self.violation(trial, vec![trouble], what, None)),
            Ok(()) => self.crash_all(
                trial,
                &runner.reference,
                &runner.snapshots,
                &[trouble],
                trial.effort.after_failed_sync_max,
            ),
        }
    }

    /// Crashes at every moment (at most `most`, including the last one), in every way.
    fn crash_all(&self, trial: &Trial<'_>, reference: &Model, moments: &[Snapshot], before: &[Trouble], most: usize) {
        let oracle = Oracle { setup: trial.setup, reference, again: None };
        let mut contexts: HashMap<u64, u64> = HashMap::new();
        let seed = self.seed_of(trial, before);
        for (i, moment) in moments.iter().enumerate() {
            let left = moments.len() - i;
            // An even random choice that always includes the last one.
            if moments.len() > most && left > 1 && mix(seed ^ i as u64) % moments.len() as u64 >= most as u64 {
                continue;
            }
            if self.is_over() {
                return;
            }
            let mark = moment.mark();
            let context = *contexts.entry(mark).or_insert_with(|| context_of(&oracle, mark));
            let cuts = moment.cuts(trial.effort.cuts_max, mix(seed ^ moment.call()));
            for how in std::iter::once(How::Killed).chain(cuts.into_iter().map(How::Power)) {
                let mut troubles = before.to_vec();
                troubles.push(Trouble::Crash(moment.call(), how));
                if self.is_new(moment, how, context)
                    && let Err((troubles, what)) = self.check(&oracle, moment, how, troubles, trial.effort.second_max)
                {
                    self.report(self.violation(trial, troubles, what, Some(moment)));
                    return;
                }
            }
        }
    }

    fn seed_of(&self, trial: &Trial<'_>, before: &[Trouble]) -> u64 {
        let text = format!("{} {:?} {before:?}", trial.setup, trial.ops);
        hash_bytes(text.as_bytes(), self.bounds.seed)
    }

    /// Counts a state. False: the same disk was checked before, with the same allowed states.
    fn is_new(&self, moment: &Snapshot, how: How, context: u64) -> bool {
        let How::Power(cut) = how else { return true };
        let outcome = moment.power_cut(cut);
        if outcome.something_lost {
            self.count(Count::States);
            if self.images.insert(outcome.image_hash) {
                self.count(Count::Images);
            }
        }
        self.seen.insert(mix(outcome.image_hash ^ mix(context ^ (moment.call() % 3))))
    }

    /// Recovers after a crash, and again with trouble during the recovery.
    fn check(
        &self,
        oracle: &Oracle<'_>,
        moment: &Snapshot,
        how: How,
        troubles: Vec<Trouble>,
        second_max: usize,
    ) -> Result<(), (Vec<Trouble>, String)> {
        self.count(Count::Checked);
        let failed = |what: String| (troubles.clone(), what);
        let disk = crash(moment, how);
        // After a failed flush, the state of class `process` is unknown, too.
        let power = how != How::Killed || troubles.iter().any(|trouble| trouble.fault().is_some());
        let class = class_after(moment);
        if second_max > 0 {
            disk.record();
        }
        let reopened = oracle.recover(&disk, moment.mark(), class, power).map_err(failed)?;
        // After an unknown state was accepted, a crash may bring back another one, so nothing more is promised.
        let second_max = if reopened.accepted { 0 } else { second_max };
        let syncs: u64 = sync_points().iter().map(|point| disk.syncs(*point)).sum();
        let files = oracle.use_again(&disk, reopened).map_err(failed)?;
        let mut recovery = if second_max > 0 { disk.recorded() } else { Vec::new() };
        recovery.retain(|moment| Expect::unpack(moment.mark()).allowed != 0);
        let oracle = &Oracle { again: Some(&files), ..*oracle };
        let seed = mix(moment.call() ^ mix(self.bounds.seed ^ recovery.len() as u64));
        for n in 0..second_max as u64 {
            let chance = mix(seed ^ mix(n));
            let mut troubles = troubles.clone();
            if chance.is_multiple_of(8) && syncs > 0 {
                let how_failed = FAILURES[(chance >> 8) as usize % FAILURES.len()];
                let trouble = Trouble::Sync((chance >> 16) % syncs, how_failed);
                troubles.push(trouble);
                let disk = crash(moment, how);
                trouble.fault().into_iter().for_each(|fault| disk.fail(fault));
                oracle.attempt(&disk, class);
                let after = disk.snapshot();
                self.check_second(oracle, &after, chance, true, troubles)?;
            } else {
                let after = &recovery[(chance >> 16) as usize % recovery.len()];
                self.check_second(oracle, after, chance, power, troubles)?;
            }
        }
        Ok(())
    }

    /// The second crash, and the recovery after it.
    fn check_second(
        &self,
        oracle: &Oracle<'_>,
        moment: &Snapshot,
        chance: u64,
        power: bool,
        mut troubles: Vec<Trouble>,
    ) -> Result<(), (Vec<Trouble>, String)> {
        let cuts = moment.cuts(SECOND_CUTS, mix(chance));
        let pick = (chance >> 32) as usize % (cuts.len() + 1);
        let how = cuts.get(pick).map_or(How::Killed, |cut| How::Power(*cut));
        troubles.push(Trouble::Crash(moment.call(), how));
        let power = power || how != How::Killed;
        if !self.is_new(moment, how, context_of(oracle, moment.mark())) {
            return Ok(());
        }
        self.count(Count::Checked);
        let disk = crash(moment, how);
        let checked = oracle
            .recover(&disk, moment.mark(), class_after(moment), power)
            .and_then(|reopened| oracle.use_again(&disk, reopened).map(drop));
        checked.map_err(|what| (troubles, what))
    }

    fn violation(
        &self,
        trial: &Trial<'_>,
        troubles: Vec<Trouble>,
        what: String,
        moment: Option<&Snapshot>,
    ) -> Violation {
        let case = Case { setup: *trial.setup, skipped: self.bounds.skipped, ops: trial.ops.to_vec(), troubles };
        Violation { case, what, pending: moment.map(Snapshot::describe).unwrap_or_default() }
    }
}

/// The number of power cuts during a recovery from which one is picked.
const SECOND_CUTS: usize = 24;

/// A hash of everything on which a check depends besides the disk.
fn context_of(oracle: &Oracle<'_>, mark: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    let expect = Expect::unpack(mark);
    (mark & !expect.allowed).hash(&mut hasher);
    format!("{}", oracle.setup).hash(&mut hasher);
    for number in numbers(expect.allowed) {
        oracle.reference.state(number).hash(&mut hasher);
    }
    if expect.allowed >> COMMITS_MAX != 0 {
        oracle.again.hash(&mut hasher);
    }
    hasher.finish()
}

/// The error of [`again`] for a crash before a call that is never made.
pub const NO_SUCH_CALL: &str = "the program ends before the crash";

/// Repeats one case, reports every call, and returns the violation.
pub fn again(case: &Case, tell: &dyn Fn(&str)) -> Result<(), String> {
    let trace = |disk: &SimDisk, title: &str| {
        tell(title);
        disk.traced().iter().for_each(|line| tell(&format!("    {line}")));
    };
    let disk = prepare(&case.setup, case.ops.contains(&Op::Many)).fork();
    disk.set_options(|options| options.skipped = case.skipped);
    disk.trace();
    let mut troubles = case.troubles.iter().copied().peekable();
    let fault = troubles.next_if(|t| t.fault().is_some()).and_then(Trouble::fault);
    fault.into_iter().for_each(|fault| disk.fail(fault));
    let mut runner = Runner::new(&disk, &case.setup, fault.is_some());
    let ran = runner.run(&case.ops);
    trace(&disk, "the program:");
    ran?;
    let mut files: Option<Files> = None;
    let mut moments = runner.snapshots.clone();
    let (mut power, mut disk) = (fault.is_some(), disk.fork());
    let mut class = untorn::FailureClass::Power;
    let mut mark = 0;
    while let Some(trouble) = troubles.next() {
        let oracle = Oracle { setup: &case.setup, reference: &runner.reference, again: files.as_ref() };
        if let Trouble::Crash(call, how) = trouble {
            let moment = moments.iter().find(|m| m.call() == call).ok_or(NO_SUCH_CALL)?;
            tell(&format!("crash before call {call}: {trouble}; not durable: {:#?}", moment.describe()));
            power |= how != How::Killed;
            (disk, class, mark) = (crash(moment, how), class_after(moment), moment.mark());
        }
        disk.trace();
        if let Some(fault) = troubles.next_if(|t| t.fault().is_some()).and_then(Trouble::fault) {
            disk.fail(fault);
            power = true;
            oracle.attempt(&disk, class);
            moments = vec![disk.snapshot()];
            trace(&disk, "the recovery, with a fault:");
            continue;
        }
        disk.record();
        let used = oracle.recover(&disk, mark, class, power).and_then(|reopened| oracle.use_again(&disk, reopened));
        moments = disk.recorded();
        trace(&disk, &format!("the recovery in class {class:?}, and what follows:"));
        files = Some(used?);
    }
    Ok(())
}

/// A deadline this far from now.
pub fn within(time: Duration) -> Option<Instant> {
    Some(Instant::now() + time)
}
