//! Schedules in which a rare order matters. Each keeps every invariant, and breaks one without the rule that it is for.

use super::checks;
use super::processes::{Call, Extras, Work};
use super::random::{clone_store, put_back};
use super::world::{How, Replica, World};
use untorn_ship::object::names;
use untorn_ship::restore::plan::{Wanted, read};
use untorn_ship::retain::prune::Policy;
use untorn_ship::ship::start::Mode;

/// A schedule by its name.
pub type Directed = (&'static str, fn(&mut Script));

/// All schedules.
pub const ALL: &[Directed] = &[
    ("late_end_under_a_pruned_object", late_end_under_a_pruned_object),
    ("take_over_under_a_pruned_object", take_over_under_a_pruned_object),
    ("lost_answer_to_the_end", lost_answer_to_the_end),
    ("late_end_before_a_slow_replica", late_end_before_a_slow_replica),
    ("start_from_a_place_that_was_pruned", start_from_a_place_that_was_pruned),
    ("late_object_behind_a_pruned_end", late_object_behind_a_pruned_end),
    ("put_back_and_written_beyond_the_tip", put_back_and_written_beyond_the_tip),
    ("put_back_beside_a_snapshot", put_back_beside_a_snapshot),
    ("late_end_of_a_killed_start", late_end_of_a_killed_start),
    ("replica_below_the_floor", replica_below_the_floor),
    ("promotion_against_a_commit", promotion_against_a_commit),
    ("late_prune_under_a_deleted_number", late_prune_under_a_deleted_number),
    ("two_late_prunes_in_a_row", two_late_prunes_in_a_row),
    ("slow_prune_against_a_higher_floor", slow_prune_against_a_higher_floor),
    ("prune_with_a_policy_that_keeps_more", prune_with_a_policy_that_keeps_more),
    ("base_is_pruned_before_registration", base_is_pruned_before_registration),
    ("prune_between_upload_and_registration", prune_between_upload_and_registration),
    ("prune_before_the_end_arrives", prune_before_the_end_arrives),
    ("cancelled_before_registration", cancelled_before_registration),
    ("cancelled_during_registration", cancelled_during_registration),
    ("two_snapshots_of_the_same_data", two_snapshots_of_the_same_data),
];

/// Runs a schedule, kills everything, and lets the last owner go on.
pub fn run((name, schedule): Directed) -> Result<(), String> {
    let mut script = Script(World::new(1));
    schedule(&mut script);
    if script.0.violation.is_none()
        && let Err(violation) = checks::completes(&mut script.0)
    {
        script.0.violate(violation);
    }
    if script.0.violation.is_some() { Err(script.0.report(name)) } else { Ok(()) }
}

/// A world that follows a script.
pub struct Script(pub World);

/// Most calls of one step.
const CALLS_MAX: usize = 600;

impl Script {
    fn spawn(&mut self, work: Work) -> usize {
        let seed = self.0.processes.len() as u64 + 1;
        self.0.spawn(work, Extras { seed, bodies_bytes_max: 1 << 20, ..Extras::default() })
    }

    /// Starts a shipper that sends each commit by itself.
    fn ship_singly(&mut self, machine: usize, mode: Mode) -> usize {
        let seed = self.0.processes.len() as u64 + 1;
        self.0.spawn(Work::Ship(machine, mode), Extras { seed, bodies_bytes_max: 1, ..Extras::default() })
    }

    /// Lets a process go on until it is about to do this. False if it ends before.
    fn until(&mut self, process: usize, wanted: impl Fn(&Call) -> bool) -> bool {
        for _ in 0..CALLS_MAX {
            match &self.0.processes[process].call {
                Some(call) if wanted(call) => return true,
                Some(_) => self.0.go(process, How::Well),
                None => return false,
            }
        }
        false
    }

    fn until_created(&mut self, process: usize, name: &str) -> bool {
        self.until(process, |call| matches!(call, Call::Create(to, _) | Call::Send(_, to, _) if to == name))
    }

    /// Lets a process end, or come to rest.
    fn finish(&mut self, process: usize) {
        self.until(process, |call| matches!(call, Call::Idle));
    }

    /// Lets a shipper go on until all durable commits are acknowledged.
    fn ship_all(&mut self, process: usize, machine: usize) {
        for _ in 0..CALLS_MAX {
            let store = self.0.store(machine);
            let is_done = store.acknowledged.is_some_and(|point| point == store.last());
            if is_done || !self.0.is_alive(process) {
                return;
            }
            self.0.go(process, How::Well);
            while let Some(n) = self.0.requests.iter().position(|it| it.process == process && it.lsn > 0) {
                self.0.land(n, How::Well);
            }
        }
    }

    fn commit(&mut self, machine: usize, commits: usize) {
        (0..commits).for_each(|_| self.0.store(machine).commit());
        let store = self.0.store(machine);
        store.durable = store.history.len();
        let text = format!("machine {machine} commits and flushes to #{}", store.durable);
        self.0.note(text);
        self.0.durable(machine);
    }

    /// Machine 0 ships so many commits, each by itself.
    fn shipped(&mut self, commits: usize) -> usize {
        self.commit(0, commits);
        let shipper = self.ship_singly(0, Mode::Automatic);
        self.ship_all(shipper, 0);
        shipper
    }

    fn more(&mut self, shipper: usize, commits: usize) {
        self.commit(0, commits);
        self.ship_all(shipper, 0);
    }

    fn compact(&mut self) {
        let compactor = self.spawn(Work::Compact);
        self.finish(compactor);
    }

    fn pruner(&mut self, since: u64, announced_since: u64) -> usize {
        self.spawn(Work::Prune(Policy { since, every: 0, announced_since }))
    }

    fn prune(&mut self) {
        let pruner = self.pruner(u64::MAX, 0);
        self.finish(pruner);
    }

    /// A snapshot of the newest becomes the floor, and everything below is deleted.
    fn raise_the_floor(&mut self) {
        self.compact();
        self.prune();
    }

    fn clone_store(&mut self) {
        let epoch = self.0.next_epoch();
        clone_store(&mut self.0, epoch);
    }

    /// All requests under this name arrive, without answers.
    fn arrive(&mut self, name: &str) {
        while let Some(n) = self.0.requests.iter().position(|it| it.name == name) {
            self.0.land(n, How::Lost);
        }
    }

    /// A slow pruner deletes all manifests but the two highest.
    fn delete_manifests(&mut self) {
        let all: Vec<String> = self.0.objects.keys().filter(|name| name.starts_with(names::META)).cloned().collect();
        for name in &all[..all.len().saturating_sub(2)] {
            self.0.objects.remove(name);
            self.0.note(format!("{name} is deleted"));
        }
    }

    fn follow_to(&mut self, generation: u64) -> usize {
        self.0.replica = Some(Replica::default());
        let replica = self.spawn(Work::Follow);
        for _ in 0..CALLS_MAX {
            let state = self.0.replica.as_ref().and_then(|replica| replica.state.clone());
            let is_idle = matches!(self.0.processes[replica].call, Some(Call::Idle));
            if is_idle && state.is_some_and(|state| state.generation == generation) {
                break;
            }
            self.0.go(replica, How::Well);
        }
        replica
    }
}

/// The first object of generation 1.
fn first_object() -> String {
    names::log(1, 1)
}

/// The answer to an object is lost; it is pruned, and the end of a slow take-over arrives under its name.
fn late_end_under_a_pruned_object(it: &mut Script) {
    it.commit(0, 1);
    it.clone_store();
    let shipper = it.spawn(Work::Ship(0, Mode::Automatic));
    it.until(shipper, |call| matches!(call, Call::Answers));
    let slow = it.spawn(Work::Ship(1, Mode::TakeOver));
    it.until_created(slow, &first_object());
    it.0.lose(0);
    it.arrive(&first_object());
    it.raise_the_floor();
    it.0.go(slow, How::Well);
    it.0.kill(slow, false);
    it.ship_all(shipper, 0);
}

/// A slow take-over wins an end under the name of an object that was pruned.
fn take_over_under_a_pruned_object(it: &mut Script) {
    it.commit(0, 2);
    it.clone_store();
    let shipper = it.ship_singly(0, Mode::Automatic);
    it.until_created(shipper, &first_object());
    let slow = it.ship_singly(1, Mode::TakeOver);
    it.until_created(slow, &first_object());
    it.0.go(shipper, How::Well);
    it.arrive(&first_object());
    it.0.kill(shipper, false);
    it.raise_the_floor();
    it.ship_all(slow, 1);
}

/// The end arrives, and its answer is lost.
fn lost_answer_to_the_end(it: &mut Script) {
    it.commit(0, 1);
    let shipper = it.spawn(Work::Ship(0, Mode::Automatic));
    it.until_created(shipper, &names::log(0, 1));
    it.0.go(shipper, How::Lost);
    it.ship_all(shipper, 0);
}

/// The replica reads the floor; then an object is pruned, and the late end of its own promotion arrives there.
fn late_end_before_a_slow_replica(it: &mut Script) {
    it.commit(0, 1);
    let shipper = it.spawn(Work::Ship(0, Mode::Automatic));
    it.until_created(shipper, &first_object());
    let replica = it.follow_to(1);
    it.0.kill(replica, false);
    let promotion = it.spawn(Work::Promote);
    it.until_created(promotion, &first_object());
    it.0.kill(promotion, true);
    it.0.go(shipper, How::Well);
    let n = it.0.requests.iter().position(|request| request.lsn > 0).expect("sent");
    it.0.land(n, How::Well);
    it.ship_all(shipper, 0);
    let replica = it.spawn(Work::Follow);
    it.until(replica, |call| matches!(call, Call::Get(name) if *name == first_object()));
    it.raise_the_floor();
    it.arrive(&first_object());
    it.finish(replica);
}

/// A copy starts from a place that it remembers, where a late end of its own lies by now.
fn start_from_a_place_that_was_pruned(it: &mut Script) {
    it.commit(0, 1);
    it.clone_store();
    let shipper = it.spawn(Work::Ship(0, Mode::Automatic));
    it.until_created(shipper, &first_object());
    let slow = it.spawn(Work::Ship(1, Mode::TakeOver));
    it.until_created(slow, &first_object());
    it.0.kill(slow, true);
    let bucket = it.0.bucket();
    let objects = untorn_ship::chain::objects::Objects { bucket: &bucket, store: super::STORE };
    let remembered = read(&objects, Wanted::Newest).ok().map(|chain| chain.tip().clone());
    it.0.go(shipper, How::Well);
    let n = it.0.requests.iter().position(|request| request.lsn > 0).expect("sent");
    it.0.land(n, How::Well);
    it.ship_all(shipper, 0);
    it.raise_the_floor();
    it.arrive(&first_object());
    it.commit(1, 1);
    let extras = Extras { seed: 77, bodies_bytes_max: 1 << 20, remembered, now: 0 };
    let again = it.0.spawn(Work::Ship(1, Mode::Automatic), extras);
    it.ship_all(again, 1);
}

/// A late object of the old owner arrives where the end of its generation was.
fn late_object_behind_a_pruned_end(it: &mut Script) {
    it.commit(0, 2);
    it.clone_store();
    let shipper = it.spawn(Work::Ship(0, Mode::Automatic));
    it.until(shipper, |call| matches!(call, Call::Answers));
    let other = it.ship_singly(1, Mode::TakeOver);
    it.until_created(other, &names::log(2, 2));
    let n = it.0.requests.iter().position(|request| request.process == other).expect("sent");
    it.0.land(n, How::Well);
    it.0.kill(other, false);
    it.raise_the_floor();
    let n = it.0.requests.iter().position(|request| request.process == shipper).expect("sent");
    it.0.land(n, How::Well);
    it.ship_all(shipper, 0);
}

/// A store is put back, gets as many other commits as the bucket has, and truncates its log.
fn put_back_and_written_beyond_the_tip(it: &mut Script) {
    let shipper = it.shipped(1);
    let backup = it.0.store(0).clone();
    it.more(shipper, 1);
    it.0.kill(shipper, false);
    let epoch = it.0.next_epoch();
    put_back(&mut it.0, backup, epoch);
    it.commit(0, 2);
    it.0.store(0).truncated = 3;
    let again = it.spawn(Work::Ship(0, Mode::Automatic));
    it.ship_all(again, 0);
}

/// The store is put back between a start's snapshot and its look at the epochs.
fn put_back_beside_a_snapshot(it: &mut Script) {
    let shipper = it.spawn(Work::Ship(0, Mode::Automatic));
    it.ship_all(shipper, 0);
    let backup = it.0.store(0).clone();
    it.commit(0, 1);
    it.0.store(0).truncated = 1;
    it.until(shipper, |call| matches!(call, Call::Epochs(0, 0)));
    let epoch = it.0.next_epoch();
    put_back(&mut it.0, backup, epoch);
    it.finish(shipper);
    it.commit(0, 1);
    let again = it.spawn(Work::Ship(0, Mode::Automatic));
    it.ship_all(again, 0);
}

/// The end of a start that was killed arrives after the next start has begun.
fn late_end_of_a_killed_start(it: &mut Script) {
    it.commit(0, 1);
    let first = it.spawn(Work::Ship(0, Mode::Automatic));
    it.until_created(first, &names::log(0, 1));
    it.0.kill(first, true);
    let second = it.spawn(Work::Ship(0, Mode::TakeOver));
    it.until_created(second, &names::log(0, 1));
    it.0.kill(second, false);
    it.arrive(&names::log(0, 1));
}

/// The replica sleeps until its next object is pruned.
fn replica_below_the_floor(it: &mut Script) {
    it.commit(0, 1);
    let shipper = it.spawn(Work::Ship(0, Mode::Automatic));
    it.until_created(shipper, &first_object());
    let replica = it.follow_to(1);
    it.ship_all(shipper, 0);
    it.raise_the_floor();
    it.0.go(replica, How::Well);
    it.finish(replica);
}

/// A commit arrives before the end of a promotion.
fn promotion_against_a_commit(it: &mut Script) {
    it.commit(0, 1);
    let shipper = it.spawn(Work::Ship(0, Mode::Automatic));
    it.until_created(shipper, &first_object());
    let replica = it.follow_to(1);
    it.0.kill(replica, false);
    let promotion = it.spawn(Work::Promote);
    it.until_created(promotion, &first_object());
    it.ship_all(shipper, 0);
    it.until(promotion, |call| matches!(call, Call::Answers));
}

/// A prune that was planned long ago arrives under a number that was deleted.
fn late_prune_under_a_deleted_number(it: &mut Script) {
    late_prunes(it, false);
}

/// Another late prune arrives before, so that the predecessor is there.
fn two_late_prunes_in_a_row(it: &mut Script) {
    late_prunes(it, true);
}

fn late_prunes(it: &mut Script, with_predecessor: bool) {
    let shipper = it.shipped(1);
    it.compact();
    if with_predecessor {
        let earlier = it.pruner(u64::MAX, 0);
        it.until_created(earlier, &names::meta(3));
        it.0.kill(earlier, true);
    }
    it.more(shipper, 1);
    let compactor = it.spawn(Work::Compact);
    it.until_created(compactor, &names::meta(4));
    let slow = it.pruner(u64::MAX, 1);
    it.until_created(slow, &names::meta(4));
    it.finish(compactor);
    it.more(shipper, 1);
    it.compact();
    it.delete_manifests();
    it.arrive(&names::meta(3));
    it.until(slow, |call| matches!(call, Call::Grace));
    it.finish(slow);
}

/// A prune with an old plan loses against one with a higher floor.
fn slow_prune_against_a_higher_floor(it: &mut Script) {
    let shipper = it.shipped(1);
    it.compact();
    it.more(shipper, 1);
    it.compact();
    let slow = it.pruner(super::contents::time_of(1), 0);
    it.until_created(slow, &names::meta(5));
    let quick = it.pruner(u64::MAX, 0);
    it.until(quick, |call| matches!(call, Call::Grace));
    it.until(slow, |call| matches!(call, Call::Grace));
    it.finish(quick);
}

/// A later prune wants to retain more than is there: a point below the floor is no floor.
fn prune_with_a_policy_that_keeps_more(it: &mut Script) {
    let shipper = it.shipped(1);
    it.compact();
    it.more(shipper, 1);
    it.compact();
    for since in [u64::MAX, super::contents::time_of(1)] {
        let pruner = it.spawn(Work::Prune(Policy { since, every: 1, announced_since: 0 }));
        it.finish(pruner);
    }
}

/// The base of a snapshot is pruned after the upload.
fn base_is_pruned_before_registration(it: &mut Script) {
    let shipper = it.shipped(1);
    it.compact();
    it.more(shipper, 1);
    let compactor = it.spawn(Work::Compact);
    it.until_created(compactor, &names::head(3));
    it.0.go(compactor, How::Well);
    it.more(shipper, 2);
    it.raise_the_floor();
    it.finish(compactor);
}

/// A prune publishes after the upload, and deletes after the registration.
fn prune_between_upload_and_registration(it: &mut Script) {
    let shipper = it.shipped(1);
    it.compact();
    it.more(shipper, 1);
    let compactor = it.spawn(Work::Compact);
    it.until(compactor, |call| matches!(call, Call::Create(name, _) if name.ends_with("/head")));
    it.0.go(compactor, How::Well);
    let pruner = it.pruner(u64::MAX, 0);
    it.until(pruner, |call| matches!(call, Call::Grace));
    it.finish(compactor);
    it.finish(pruner);
}

/// A prune comes while an end is on its way whose snapshot is registered.
fn prune_before_the_end_arrives(it: &mut Script) {
    it.commit(0, 1);
    it.0.store(0).truncated = 1;
    let shipper = it.spawn(Work::Ship(0, Mode::Automatic));
    it.until_created(shipper, &names::log(0, 1));
    it.prune();
    it.ship_all(shipper, 0);
}

/// A snapshot is cancelled and deleted after the upload.
fn cancelled_before_registration(it: &mut Script) {
    let _ = it.shipped(1);
    let compactor = it.spawn(Work::Compact);
    it.until_created(compactor, &names::head(1));
    it.0.go(compactor, How::Well);
    let pruner = it.pruner(0, 1);
    it.finish(pruner);
    it.finish(compactor);
}

/// A snapshot is cancelled and deleted while its registration is on the way.
fn cancelled_during_registration(it: &mut Script) {
    let _ = it.shipped(1);
    let compactor = it.spawn(Work::Compact);
    it.until_created(compactor, &names::meta(2));
    let pruner = it.pruner(0, 1);
    it.finish(pruner);
    it.finish(compactor);
}

/// A snapshot was given up; another one of the same data is made while the first is cancelled and deleted.
fn two_snapshots_of_the_same_data(it: &mut Script) {
    let _ = it.shipped(1);
    let first = it.spawn(Work::Compact);
    it.until_created(first, &names::head(1));
    it.0.kill(first, false);
    let second = it.0.spawn(Work::Compact, Extras { seed: 99, now: 1, ..Extras::default() });
    it.until_created(second, &names::head(2));
    it.0.go(second, How::Well);
    let pruner = it.pruner(0, 1);
    it.finish(pruner);
    it.finish(second);
}
