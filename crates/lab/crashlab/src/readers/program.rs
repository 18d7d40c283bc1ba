//! One program: owners and readers on one disk, several times until the power is cut.

use super::owner::Owner;
use super::plan::{BootPlan, LifePlan, Plan, Stop};
use super::reading::Reading;
use super::totals::ReaderTotals;
use super::world::World;
use crate::simulation::SimDisk;
use crate::simulation::turns::{FIRST, Seat, Turns};
use fastrand::Rng;
use parking_lot::Mutex;
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The most things that a reader does in one life.
const READER_STEPS_MAX: usize = 60;
/// Beside readers, a step of the owner may take so many times the calls that it takes alone, and some more.
const CALLS_TIMES: u64 = 8;
const CALLS_MORE: u64 = 300;

/// A finished program.
pub(super) struct Done {
    pub totals: ReaderTotals,
    /// The calls of all steps of owners.
    calls: Vec<(&'static str, u64)>,
}

/// Ends the turns of a thread, however it ends.
struct EndOnDrop(Seat);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Runs what a thread does in its turns. A violation or a panic ends the whole boot.
fn in_turns(seat: &Seat, act: impl FnOnce() -> Result<(), Stop>) {
    let _end = EndOnDrop(seat.clone());
    seat.begin();
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(Err(Stop::Wrong(what))) => seat.fail(format!("{}: {what}", seat.name())),
        Ok(_) => {}
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
            seat.fail(format!("{} panics: {text}", seat.name()));
        }
    }
}

/// The lives of owners until the machine is off.
fn own(owner: &mut Owner, boot: &BootPlan, seat: &Seat, killed: &mut u64) -> Result<(), Stop> {
    for life in &boot.lives {
        match owner.live(life, Some(seat)) {
            Err(Stop::Dead) if seat.is_off() => break,
            Err(Stop::Dead) => *killed += 1,
            done => done?,
        }
    }
    Ok(())
}

/// The lives of a reader until the machine is off, or until the owner and then this life are done.
fn read(reader: &mut Reading, seat: &Seat) -> Result<(), Stop> {
    loop {
        let is_last = !seat.has_first();
        let steps = reader.rng.usize(1..READER_STEPS_MAX);
        let dies_at = (reader.rng.u8(..4) == 0).then(|| reader.rng.u64(1..400));
        match reader.live(steps, dies_at, Some(seat)) {
            Err(Stop::Dead) if seat.is_off() => return Ok(()),
            Err(Stop::Dead) => reader.totals.died += 1,
            done => done?,
        }
        if is_last {
            return Ok(());
        }
    }
}

impl Plan {
    /// Runs the program.
    pub fn run(&self) -> Result<Done, String> {
        self.run_on(&SimDisk::new(self.options))
    }

    /// Runs the program, and returns one line for each call, and one for the result.
    pub fn trace(&self) -> Vec<String> {
        let disk = SimDisk::new(self.options);
        disk.trace();
        let result = self.run_on(&disk).map(|done| done.totals);
        let mut lines = disk.traced();
        lines.push(format!("{result:?}"));
        lines
    }

    fn run_on(&self, disk: &SimDisk) -> Result<Done, String> {
        let world = Mutex::new(World::new());
        let (rng, kept_most) = (Rng::with_seed(self.owner_seed), 0);
        let mut owner = Owner { rng, disk, world: &world, plan: self, calls: Vec::new(), kept_most };
        let first = LifePlan { closes: true, ..LifePlan::default() };
        owner.live(&first, None).map_err(|stop| describe("creating the store", stop))?;
        disk.settle();
        let mut totals = ReaderTotals::default();
        for (number, boot) in self.boots.iter().enumerate() {
            let failed = |what: String| format!("boot {number}: {what}");
            totals += self.run_boot(boot, &mut owner).map_err(failed)?;
        }
        // Somebody who comes later finds a whole commit, and nothing that was kept.
        let totals_of_last = ReaderTotals::default();
        let rng = Rng::with_seed(self.owner_seed);
        let mut last = Reading { rng, disk, world: &world, plan: self, totals: totals_of_last };
        last.live(4, None, None).map_err(|stop| describe("the last reader", stop))?;
        owner.free().map_err(|stop| describe("the last owner", stop))?;
        totals += last.totals;
        totals.kept_most = owner.kept_most;
        Ok(Done { totals, calls: owner.calls })
    }

    fn run_boot(&self, boot: &BootPlan, owner: &mut Owner) -> Result<ReaderTotals, String> {
        let (disk, world) = (owner.disk, owner.world);
        let names = std::iter::once("owner".to_owned()).chain((1..=boot.readers).map(|n| format!("reader {n}")));
        let turns: Arc<Turns> = Turns::new(boot.turns_seed, names.collect(), boot.off_at);
        let mut totals = ReaderTotals::default();
        let mut killed = 0;
        let mut readings: Vec<Reading> = (1..=boot.readers as u64)
            .map(|n| {
                let rng = Rng::with_seed(boot.turns_seed ^ (n << 56));
                Reading { rng, disk, world, plan: self, totals: ReaderTotals::default() }
            })
            .collect();
        std::thread::scope(|scope| {
            for (n, reading) in readings.iter_mut().enumerate() {
                let seat = turns.seat(FIRST + 1 + n);
                scope.spawn(move || in_turns(&seat, || read(reading, &seat)));
            }
            let seat = turns.seat(FIRST);
            in_turns(&seat, || own(owner, boot, &seat, &mut killed));
        });
        if let Some(failure) = turns.failure() {
            return Err(failure);
        }
        totals.killed += killed;
        readings.into_iter().for_each(|reading| totals += reading.totals);
        if turns.is_off() {
            totals.cuts += 1;
            disk.power_cut(boot.cut);
        }
        Ok(totals)
    }

    /// Compares the calls of the first owner's steps with those that they take without readers.
    pub fn check_calls(&self, beside: &Done) -> Result<(), String> {
        let Some(alone) = self.alone() else { return Ok(()) };
        let alone = alone.run().map_err(|what| format!("without readers: {what}"))?;
        let steps = self.boots[0].lives[0].steps;
        for (n, (beside, alone)) in beside.calls.iter().zip(&alone.calls).take(steps).enumerate() {
            if beside.0 != alone.0 {
                // The first owner was killed, and the next one goes on otherwise.
                break;
            }
            if beside.1 > CALLS_TIMES * alone.1 + CALLS_MORE {
                let mut what = String::new();
                _ = write!(what, "step {n} of the owner, {}, takes {} calls beside readers", alone.0, beside.1);
                return Err(format!("{what}, and {} alone", alone.1));
            }
        }
        Ok(())
    }
}

fn describe(who: &str, stop: Stop) -> String {
    match stop {
        Stop::Dead => format!("{who}: the process is dead"),
        Stop::Wrong(what) => format!("{who}: {what}"),
    }
}
