//! The invariants of the protocol, checked on a state of the world.

use super::contents::{Contents, History, Workspace};
use super::machine::{Store, number};
use super::world::{Replica, World};
use super::{Plain, STORE};
use bytes::Bytes;
use std::collections::BTreeSet;
use untorn_ship::bucket::Bucket;
use untorn_ship::chain::objects::Objects;
use untorn_ship::error::Error;
use untorn_ship::interface::{Owner, OwnerId, Pieces, State, Target};
use untorn_ship::object::hash::Nonces;
use untorn_ship::object::log::{Body, LogObject, Reason};
use untorn_ship::object::names;
use untorn_ship::restore::follow::{Followed, follow};
use untorn_ship::restore::plan::{Chain, Wanted, read};
use untorn_ship::restore::run::restore;
use untorn_ship::ship::running::NextPut;
use untorn_ship::ship::start::{Mode, Options, start};

type Checked<T> = Result<T, String>;

fn objects(bucket: &Plain) -> Objects<'_> {
    Objects { bucket, store: STORE }
}

/// The end in an object, if it is one.
pub fn end(name: &str, bytes: &Bytes) -> Option<LogObject> {
    LogObject::decode(name, Some(&STORE), bytes).ok().filter(|object| matches!(object.body, Body::End(_)))
}

/// The newest contents and the owner of the tip, if the end belongs to the tip.
pub fn at_tip(bucket: &Plain, end: &LogObject) -> Option<(Contents, String)> {
    let chain = read(&objects(bucket), Wanted::Newest).ok()?;
    let tip = chain.tip();
    let is_here = (tip.generation, tip.point.lsn + 1) == (end.generation, end.first_lsn);
    is_here.then(|| Some((newest(bucket)?, tip.who.clone())))?
}

fn newest(bucket: &Plain) -> Option<Contents> {
    let mut workspace = Workspace::default();
    restore(&objects(bucket), Wanted::Newest, &mut workspace).ok().map(|_| workspace.contents)
}

fn commits(contents: &Contents) -> BTreeSet<(u64, u64)> {
    contents.0.iter().copied().zip(1..).collect()
}

/// An end arrived at the tip.
pub fn end_arrived(world: &mut World, object: &LogObject, (before, owner): &(Contents, String)) {
    let Body::End(end) = &object.body else { return };
    world.count(match end.reason {
        Reason::Start => "starts",
        Reason::TakeOver => "take-overs",
        Reason::Gap => "gaps",
        Reason::Fork => "forks",
    });
    if end.reason == Reason::Fork {
        let after = newest(&world.bucket()).unwrap_or_default();
        let gone: Vec<(u64, u64)> = commits(before).difference(&commits(&after)).copied().collect();
        world.abandoned.extend(gone);
    }
    let is_asked = matches!(end.reason, Reason::TakeOver | Reason::Fork);
    if !is_asked && !owner.is_empty() && *owner != end.who {
        world.violate(format!("(4) {} takes over from {owner} without being told to", end.who));
    }
}

/// Whether a machine owns the newest generation.
pub fn owns_the_tip(world: &World, machine: usize) -> bool {
    let bucket = world.bucket();
    let owner = world.stores[machine].as_ref().and_then(|store| store.owner);
    let tip = read(&objects(&bucket), Wanted::Newest).map(|chain| chain.tip().owner);
    tip.is_ok_and(|tip| owner.is_some_and(|owner| owner.id == tip))
}

/// Whether the replica's end lies before this state.
pub fn has_won(world: &World, state: &State) -> bool {
    let name = names::log(state.generation - 1, state.point.lsn + 1);
    let end = world.objects.get(&name).and_then(|bytes| end(&name, bytes));
    let owner = world.replica.as_ref().and_then(|replica| replica.owner);
    end.is_some_and(|end| owner.is_some_and(|owner| owner.id == end.owner))
}

/// Everything that must hold in every state.
pub fn check(world: &World) -> Checked<()> {
    let bucket = world.bucket();
    let chain = read(&objects(&bucket), Wanted::Newest).map_err(|error| format!("(1) the chain: {error}"))?;
    let mut all = BTreeSet::new();
    for n in 0..=chain.nodes.len() {
        check_place(world, &bucket, &chain, n, &mut all)?;
    }
    let newest = restored(world, &bucket, Wanted::Newest)?;
    for lsn in chain.start.point.lsn..=chain.tip().point.lsn {
        let wanted = newest.0[..lsn as usize].to_vec();
        let found = restored(world, &bucket, Wanted::Lsn(lsn));
        if all.contains(&wanted) != found.is_ok() || found.is_ok_and(|found| found.0 != wanted) {
            return Err(format!("(3) #{lsn} of the newest history {:?} is not restored as it should be", newest.0));
        }
    }
    let has = commits(&newest);
    if let Some((epoch, lsn)) = world.released.iter().find(|c| !has.contains(c) && !world.abandoned.contains(c)) {
        return Err(format!("(2) #{lsn} of epoch {epoch} was released, and the newest restore is {:?}", newest.0));
    }
    let manifest = &chain.manifest;
    for known in &manifest.registered {
        let (generation, lsn) = known.position.place();
        let contents = restored(world, &bucket, Wanted::In(generation, lsn))
            .map_err(|error| format!("(3) snapshot {}: {error}", known.number))?;
        if contents.0.len() as u64 != lsn {
            return Err(format!("(1) snapshot {} of #{lsn} has {:?}", known.number, contents.0));
        }
    }
    Ok(())
}

/// Every commit between two places, and the snapshot there.
fn check_place(world: &World, bucket: &Plain, chain: &Chain, n: usize, all: &mut BTreeSet<History>) -> Checked<()> {
    let at = chain.place(n);
    let from = match n.checked_sub(1).map(|node| &chain.nodes[node]) {
        Some(node) if !node.is_end => node.before.point.lsn + 1,
        _ => at.point.lsn,
    };
    for lsn in from..=at.point.lsn {
        let contents = restored(world, bucket, Wanted::In(at.generation, lsn))?;
        if contents.0.len() as u64 != lsn {
            return Err(format!("(1) restore of g{} #{lsn} gives {:?}", at.generation, contents.0));
        }
        all.insert(contents.0);
    }
    Ok(())
}

fn restored(world: &World, bucket: &Plain, wanted: Wanted) -> Checked<Contents> {
    let mut workspace = Workspace::default();
    restore(&objects(bucket), wanted, &mut workspace).map_err(|error| format!("(3) restore of {wanted:?}: {error}"))?;
    let contents = workspace.contents;
    if world.was_durable(&contents.0) {
        Ok(contents)
    } else {
        Err(format!("(1) restore of {wanted:?} gives {:?}, no durable history", contents.0))
    }
}

/// Kills everything, lets all requests arrive, and starts the last owner: it must get all its commits acknowledged, and
/// the replica must arrive at the newest.
pub fn completes(world: &mut World) -> Checked<()> {
    world.kill_all();
    while !world.requests.is_empty() {
        world.land(0, super::world::How::Lost);
    }
    if let Some(violation) = world.violation.clone() {
        return Err(violation);
    }
    check(world)?;
    let bucket = world.bucket();
    let chain = read(&objects(&bucket), Wanted::Newest).map_err(|error| error.to_string())?;
    let tip = chain.tip().clone();
    let Some(machine) = number(&tip.who) else { return follows(world, &bucket) };
    let Some(mut store) = world.stores[machine].clone() else { return follows(world, &bucket) };
    let is_owner = store.owner.is_some_and(|owner| owner.id == tip.owner);
    if !store.has(tip.point) || (store.is_put_back && !is_owner) {
        return follows(world, &bucket);
    }
    ship_all(&bucket, &mut store).map_err(|error| format!("(4) stuck: machine {machine}: {error}"))?;
    if store.acknowledged != Some(store.last()) {
        return Err(format!("(4) stuck: machine {machine} has {:?} acknowledged", store.acknowledged));
    }
    let released = commits(&Contents(store.released().to_vec()));
    let has = commits(&newest(&bucket).unwrap_or_default());
    if !released.is_subset(&has) {
        return Err("(2) the last owner's commits are not in the newest restore".into());
    }
    follows(world, &bucket)
}

/// Ships until everything is acknowledged.
fn ship_all(bucket: &Plain, store: &mut Store) -> Result<(), Error> {
    let mut nonces = Nonces::new([0xee; 32]);
    let options =
        Options { mode: Mode::Automatic, now: 0, remembered: None, bodies_bytes_max: 1 << 20, in_flight_max: 2 };
    for _ in 0..4 {
        let mut shipper = start(bucket, store, &mut nonces, &options)?;
        for _ in 0..40 {
            match shipper.next_put(store, 1 << 20)? {
                NextPut::Put(put) => shipper.answered(put.lsn, bucket.create(&put.name, put.bytes))?,
                NextPut::Gap if shipper.in_flight() == 0 => break,
                NextPut::Nothing if shipper.in_flight() == 0 => return Ok(()),
                _ => {}
            }
            for put in shipper.settle(bucket, store)?.again {
                shipper.answered(put.lsn, bucket.create(&put.name, put.bytes))?;
            }
        }
    }
    Err(Error::Busy(4))
}

/// The replica arrives at the newest.
fn follows(world: &World, bucket: &Plain) -> Checked<()> {
    let Some(replica) = &world.replica else { return Ok(()) };
    let mut replica = replica.clone();
    for _ in 0..100 {
        match follow(&objects(bucket), &mut replica) {
            Ok(Followed::Nothing) => break,
            Ok(_) => {}
            Err(error) => return Err(format!("(5) the replica stands at {:?}: {error}", replica.contents.0)),
        }
    }
    let newest = newest(bucket).unwrap_or_default();
    if replica.contents == newest {
        Ok(())
    } else {
        Err(format!("(5) the replica stays at {:?}, the newest is {:?}", replica.contents.0, newest.0))
    }
}

impl Owner for Replica {
    fn owner(&mut self) -> Result<Option<OwnerId>, Error> {
        Ok(self.owner)
    }

    fn set_owner(&mut self, owner: OwnerId) -> Result<(), Error> {
        self.owner = Some(owner);
        Ok(())
    }

    fn place(&mut self) -> Result<[u8; 16], Error> {
        Ok(super::machine::place(1))
    }

    fn who(&self) -> String {
        super::machine::name(1)
    }
}

impl Target for Replica {
    fn state(&mut self) -> Result<Option<State>, Error> {
        Ok(self.state.clone())
    }

    fn apply(&mut self, commits: &[untorn_ship::interface::Commit], state: &State) -> Result<(), Error> {
        let mut contents = self.contents.clone();
        commits.iter().try_for_each(|commit| contents.apply(commit))?;
        (self.contents, self.state) = (contents, Some(state.clone()));
        Ok(())
    }

    fn replace(&mut self, pieces: Option<&mut dyn Pieces>, state: &State) -> Result<(), Error> {
        (self.contents, self.state) = (Contents::of(pieces)?, Some(state.clone()));
        Ok(())
    }

    fn pieces(&mut self) -> Result<Box<dyn Pieces + '_>, Error> {
        Ok(Box::new(super::contents::InMemory(self.contents.pieces().into_iter())))
    }
}
