//! Random schedules.

use super::checks;
use super::machine::Store;
use super::processes::{Call, Extras, Outcome, Work};
use super::world::{How, Replica, World};
use fastrand::Rng;
use std::collections::BTreeMap;
use untorn_ship::error::Error;
use untorn_ship::restore::plan::Wanted;
use untorn_ship::retain::prune::Policy;
use untorn_ship::ship::start::Mode;

/// How often each event may happen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    pub start: u32,
    pub take_over: u32,
    pub fork: u32,
    pub kill: u32,
    pub crash: u32,
    pub truncate: u32,
    pub backup: u32,
    pub put_back: u32,
    pub clone: u32,
    pub prune: u32,
    pub compact: u32,
    pub promote: u32,
    pub twice: u32,
    pub restore: u32,
    pub lsn_max: u64,
    pub has_replica: bool,
    /// The bucket delays the first object of every process until after the next prune.
    pub delays_first: bool,
}

/// The scenarios, by the names that they have in the model.
pub const SCENARIOS: &[(&str, Budget)] = {
    const NONE: Budget = Budget {
        start: 0,
        take_over: 0,
        fork: 0,
        kill: 0,
        crash: 0,
        truncate: 0,
        backup: 0,
        put_back: 0,
        clone: 0,
        prune: 0,
        compact: 0,
        promote: 0,
        twice: 1,
        restore: 0,
        lsn_max: 4,
        has_replica: false,
        delays_first: false,
    };
    const GC: Budget = Budget { start: 2, prune: 2, compact: 3, kill: 1, lsn_max: 5, ..NONE };
    &[
        ("restart", Budget { start: 3, kill: 2, crash: 1, ..NONE }),
        ("crash", Budget { start: 2, kill: 1, crash: 2, truncate: 1, ..NONE }),
        ("gap", Budget { start: 3, kill: 1, truncate: 2, prune: 1, compact: 1, ..NONE }),
        ("clone", Budget { start: 3, take_over: 1, clone: 1, prune: 1, compact: 1, ..NONE }),
        ("putback", Budget { start: 3, backup: 1, put_back: 1, fork: 1, truncate: 1, ..NONE }),
        ("putback-gc", Budget { backup: 1, put_back: 1, fork: 1, truncate: 1, ..GC }),
        ("replica", Budget { start: 2, promote: 2, prune: 1, compact: 2, kill: 1, has_replica: true, ..NONE }),
        ("replica-fork", Budget { backup: 1, put_back: 1, fork: 1, has_replica: true, start: 2, ..NONE }),
        ("zombie", Budget { take_over: 2, clone: 1, ..GC }),
        ("replica2", Budget { take_over: 1, promote: 1, has_replica: true, ..GC }),
        ("restored", Budget { take_over: 2, restore: 1, fork: 1, ..GC }),
        ("manifests", Budget { compact: 6, prune: 4, kill: 2, lsn_max: 6, ..GC }),
        ("delayed", Budget { take_over: 2, clone: 1, delays_first: true, ..GC }),
        ("delayed-replica", Budget { promote: 2, has_replica: true, delays_first: true, ..GC }),
        ("four", Budget { start: 3, crash: 1, truncate: 1, lsn_max: 6, ..GC }),
    ]
};

/// One run of a scenario: the violation, with the steps, or how often things happened.
pub fn run(scenario: &str, budget: Budget, seed: u64) -> Result<BTreeMap<&'static str, u64>, String> {
    let mut run = Random { world: World::new(seed), budget, rng: Rng::with_seed(seed) };
    if budget.has_replica {
        run.world.replica = Some(Replica::default());
        run.world.spawn(Work::Follow, Extras::default());
    }
    for step in 0..400 {
        run.step();
        if (step % 40 == 39 || run.world.violation.is_some()) && !run.is_well() {
            break;
        }
    }
    if run.world.violation.is_none()
        && let Err(violation) = checks::completes(&mut run.world)
    {
        run.world.violate(violation);
    }
    match run.world.violation {
        Some(_) => Err(run.world.report(&format!("{scenario} {seed}"))),
        None => {
            run.world.counts.insert("steps", run.world.steps.len() as u64);
            Ok(std::mem::take(&mut run.world.counts))
        }
    }
}

struct Random {
    world: World,
    budget: Budget,
    rng: Rng,
}

/// Takes one of a budget, if there is one.
fn spend(budget: &mut u32) -> bool {
    let has = *budget > 0;
    *budget = budget.saturating_sub(1);
    has
}

impl Random {
    fn is_well(&mut self) -> bool {
        if self.world.violation.is_none()
            && let Err(violation) = checks::check(&self.world)
        {
            self.world.violate(violation);
        }
        self.world.violation.is_none()
    }

    fn step(&mut self) {
        match self.rng.u32(0..100) {
            0..60 => self.go_on(),
            60..75 => self.arrive(),
            75..80 => self.commit(),
            80..85 => self.flush(),
            85..93 => self.begin(),
            _ => self.event(),
        }
    }

    /// A process goes on. Most often the one that was chosen before, so that some are slow.
    fn go_on(&mut self) {
        let alive: Vec<usize> = (0..self.world.processes.len()).filter(|n| self.world.is_alive(*n)).collect();
        let Some(process) = self.rng.choice(alive) else { return };
        if self.is_delayed(process) {
            return;
        }
        let how = match self.rng.u32(0..20) {
            0 => How::Lost,
            1 => How::Late,
            2 if spend(&mut self.budget.twice) => How::Twice,
            _ => How::Well,
        };
        let creates = matches!(self.world.processes[process].call, Some(Call::Create(..)));
        let times = if self.rng.bool() { self.rng.u32(1..12) } else { 1 };
        self.world.go(process, if creates { how } else { How::Well });
        for _ in 1..times {
            if !self.is_delayed(process) && self.world.violation.is_none() {
                self.world.go(process, How::Well);
            }
        }
    }

    /// Whether the bucket holds a process's first object back, because a prune is to come.
    fn is_delayed(&mut self, process: usize) -> bool {
        let it = &self.world.processes[process];
        let is_first = !it.has_sent && !matches!(it.work, Work::Prune(_) | Work::Compact);
        let writes =
            matches!(&it.call, Some(Call::Create(name, _) | Call::Send(_, name, _)) if name.starts_with("log/"));
        self.budget.delays_first && is_first && writes && self.budget.prune > 0 && self.rng.u32(0..20) != 0
    }

    fn arrive(&mut self) {
        if self.world.requests.is_empty() {
            return;
        }
        let n = self.rng.usize(0..self.world.requests.len());
        match self.rng.u32(0..10) {
            0 => self.world.lose(n),
            1 => self.world.land(n, How::Lost),
            2 if spend(&mut self.budget.twice) => self.world.land(n, How::Twice),
            3 if self.world.requests[n].lsn == 0 => {}
            _ => self.world.land(n, How::Well),
        }
    }

    /// A machine that has a store.
    fn machine(&mut self) -> usize {
        if self.world.stores[1].is_some() && self.rng.bool() { 1 } else { 0 }
    }

    fn commit(&mut self) {
        let (machine, lsn_max) = (self.machine(), self.budget.lsn_max);
        let store = self.world.store(machine);
        if (store.history.len() as u64) < lsn_max {
            store.commit();
            let text = format!("machine {machine} commits #{}", store.history.len());
            self.world.note(text);
        }
    }

    fn flush(&mut self) {
        let machine = self.machine();
        let store = self.world.store(machine);
        if store.durable < store.history.len() {
            store.durable = store.history.len();
            let text = format!("machine {machine} flushes to #{}", store.durable);
            self.world.note(text);
            self.world.durable(machine);
        }
    }

    /// A process begins.
    fn begin(&mut self) {
        let seed = self.rng.u64(..);
        let bodies_bytes_max = if self.rng.bool() { 1 } else { 1 << 20 };
        let machine = self.machine();
        let remembered = self.world.remembered[machine].clone().filter(|_| self.rng.bool());
        let extras = Extras { seed, remembered, bodies_bytes_max, now: seed % 2 };
        let work = match self.rng.u32(0..8) {
            0..4 => match self.start(machine) {
                Some(mode) => Work::Ship(machine, mode),
                None => return,
            },
            4 if spend(&mut self.budget.compact) => Work::Compact,
            5 if spend(&mut self.budget.prune) => {
                let keep = |rng: &mut Rng| if rng.bool() { u64::MAX } else { 15 };
                let (since, every) = (keep(&mut self.rng), if self.rng.bool() { 10 } else { 0 });
                let announced_since = if self.rng.u32(0..4) == 0 { 1 } else { 0 };
                Work::Prune(Policy { since, every, announced_since })
            }
            6 if self.budget.promote > 0 && self.world.replica.is_some() && self.world.shipper(1).is_none() => {
                self.budget.promote -= 1;
                self.end_of_following();
                Work::Promote
            }
            7 if self.world.stores[1].is_none() && self.world.replica.is_none() && spend(&mut self.budget.restore) => {
                Work::RestoreAsMachine(if self.rng.bool() { Wanted::Newest } else { Wanted::Time(25) })
            }
            7 => Work::Restore(if self.rng.bool() { Wanted::Newest } else { Wanted::Lsn(2) }),
            _ => return,
        };
        self.world.spawn(work, extras);
    }

    fn start(&mut self, machine: usize) -> Option<Mode> {
        if self.world.shipper(machine).is_some() {
            return None;
        }
        let last = self.world.processes.iter().rev().find(|it| matches!(it.work, Work::Ship(of, _) if of == machine));
        let failed = last.and_then(|it| match &it.outcome {
            Some(Outcome::Failed(error)) => Some(error),
            _ => None,
        });
        match failed {
            Some(Error::Diverged { tip, .. }) if self.rng.bool() => {
                spend(&mut self.budget.fork).then_some(Mode::Fork { tip: Some(tip.lsn) })
            }
            _ if machine == 1 || self.rng.u32(0..3) == 0 => spend(&mut self.budget.take_over).then_some(Mode::TakeOver),
            _ => spend(&mut self.budget.start).then_some(Mode::Automatic),
        }
        .or_else(|| spend(&mut self.budget.start).then_some(Mode::Automatic))
    }

    /// A replica that is promoted follows no more.
    fn end_of_following(&mut self) {
        for n in 0..self.world.processes.len() {
            if self.world.processes[n].work == Work::Follow {
                self.world.kill(n, false);
            }
        }
    }

    /// A fault, or a checkpoint.
    fn event(&mut self) {
        let machine = self.machine();
        match self.rng.u32(0..7) {
            0 if spend(&mut self.budget.kill) => self.kill(),
            1 if spend(&mut self.budget.crash) => self.crash(machine),
            2 if spend(&mut self.budget.truncate) => {
                let store = self.world.store(machine);
                store.truncated = store.durable;
                let text = format!("machine {machine} truncates its log to #{}", store.durable);
                self.world.note(text);
            }
            3 if spend(&mut self.budget.backup) => {
                self.world.backup = self.world.stores[0].clone();
                self.world.note("backup of machine 0".into());
            }
            4 if self.world.backup.is_some() && spend(&mut self.budget.put_back) => self.put_back(),
            5 if self.world.stores[1].is_none() && self.world.replica.is_none() && spend(&mut self.budget.clone) => {
                self.clone_store();
            }
            6 if self.world.replica.is_some() => self.follow_again(),
            _ => {}
        }
    }

    fn kill(&mut self) {
        let alive: Vec<usize> = (0..self.world.processes.len()).filter(|n| self.world.is_alive(*n)).collect();
        if let Some(process) = self.rng.choice(alive) {
            let arrives = self.rng.bool();
            self.world.kill(process, arrives);
        }
    }

    /// A replica whose promotion was killed follows on.
    fn follow_again(&mut self) {
        let follows = |n: usize| matches!(self.world.processes[n].work, Work::Follow | Work::Promote);
        if !(0..self.world.processes.len()).any(|n| self.world.is_alive(n) && follows(n)) {
            self.world.spawn(Work::Follow, Extras::default());
        }
    }

    fn crash(&mut self, machine: usize) {
        let epoch = self.world.next_epoch();
        let keeps = self.rng.bool();
        let store = self.world.store(machine);
        let kept = if keeps { store.history.len() } else { store.durable };
        store.open(kept, epoch);
        self.world.note(format!("machine {machine} crashes, recovers #{kept}, epoch {epoch}"));
        self.world.durable(machine);
    }

    fn put_back(&mut self) {
        let Some(backup) = self.world.backup.clone() else { return };
        let epoch = self.world.next_epoch();
        put_back(&mut self.world, backup, epoch);
    }

    fn clone_store(&mut self) {
        let epoch = self.world.next_epoch();
        clone_store(&mut self.world, epoch);
    }
}

/// Puts machine 0's store back to a backup.
pub fn put_back(world: &mut World, backup: Store, epoch: u64) {
    let kept = backup.durable;
    let mut store = Store { is_put_back: true, ..backup };
    store.open(kept, epoch);
    world.stores[0] = Some(store);
    world.note(format!("machine 0 is put back to #{kept}, epoch {epoch}"));
    world.durable(0);
}

/// Copies machine 0's store to machine 1.
pub fn clone_store(world: &mut World, epoch: u64) {
    let store = world.store(0).clone();
    let kept = store.durable;
    let mut store = Store { machine: 1, ..store };
    store.open(kept, epoch);
    world.stores[1] = Some(store);
    world.note(format!("machine 1 is a copy at #{kept}, epoch {epoch}"));
    world.durable(1);
}
