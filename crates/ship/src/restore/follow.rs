//! Following live, and promotion.

use crate::chain::objects::{Objects, Placed, place};
use crate::chain::walk::{behind, walk};
use crate::error::{Error, Result};
use crate::interface::{Commit, Owner, OwnerId, State, Target};
use crate::invariant;
use crate::object::bytes::who;
use crate::object::hash::Nonces;
use crate::object::log::{Body, End, LogObject, Reason};
use crate::object::manifest::{Manifest, Position};
use crate::object::names;
use crate::restore::plan::Base;
use crate::restore::run::{load, position, step};
use crate::ship::start::owner_here;
use untorn_os::holds;

/// Bytes of commits that a promotion reads before it applies them.
const AHEAD_BYTES_MAX: usize = 128 << 20;
/// Names that another machine may take before a promotion gives up.
const RACES_MAX: u32 = 10_000;

/// The outcome of one step of following.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Followed {
    /// Nothing is new.
    Nothing,
    /// An object was applied.
    Applied(State),
    /// Everything was replaced by a snapshot: at the beginning, after a fork or a gap, or because the bucket was pruned
    /// beyond the replica.
    Replaced(State),
}

/// A directory that follows, and can be promoted.
pub trait Replica: Target + Owner {}

impl<T: Target + Owner> Replica for T {}

/// Applies the next object, if there is one.
///
/// # Errors
/// The bucket does not answer; its history does not continue the replica's; the replica cannot be written.
pub fn follow(objects: &Objects<'_>, target: &mut dyn Target) -> Result<Followed> {
    match follow_once(objects, target) {
        // If it was pruned meanwhile, there is a new floor.
        Err(Error::Gone { .. }) => match follow_once(objects, target) {
            Err(Error::Gone { name }) => Err(Error::Damaged { name, reason: "it is missing".into() }),
            done => done,
        },
        done => done,
    }
}

fn follow_once(objects: &Objects<'_>, target: &mut dyn Target) -> Result<Followed> {
    let Some(state) = target.state()? else {
        return replace_by_floor(objects, &objects.newest()?, target);
    };
    if state.store != objects.store {
        return Err(Error::OtherStore { found: names::hex(&objects.store) });
    }
    let at = (state.generation, state.point.lsn);
    let early = if holds(invariant::OBJECT_BEFORE_FLOOR) { None } else { Some(objects.newest()?) };
    let object = objects.log(at.0, at.1 + 1);
    if matches!(object, Ok(None)) && !holds(invariant::REPLICA_READS_THE_FLOOR) {
        return Ok(Followed::Nothing);
    }
    // After the object, which may be one that a slow process made under a deleted name.
    let newest = if let Some(early) = early { early } else { objects.newest()? };
    if newest.is_beyond(at) && holds(invariant::REPLICA_READS_THE_FLOOR) {
        return replace_by_floor(objects, &newest, target);
    }
    let Some(object) = object? else { return Ok(Followed::Nothing) };
    if !holds(invariant::REPLICA_CHECKS_THE_CHAIN) {
        return on_top(&state, &object, target);
    }
    let state = step(objects, &state, &object, u64::MAX, target)?;
    let is_replaced = matches!(&object.body, Body::End(end) if end.snapshot != 0);
    Ok(if is_replaced { Followed::Replaced(state) } else { Followed::Applied(state) })
}

fn replace_by_floor(objects: &Objects<'_>, manifest: &Manifest, target: &mut dyn Target) -> Result<Followed> {
    let base = if manifest.floor_snapshot == 0 { Base::Root } else { Base::Snapshot(manifest.floor_snapshot) };
    load(objects, base, &manifest.floor, target).map(Followed::Replaced)
}

/// For the mutation gate: applies every object, without a check.
fn on_top(state: &State, object: &LogObject, target: &mut dyn Target) -> Result<Followed> {
    let none: &[Commit] = &[];
    let (commits, mut next) = match &object.body {
        Body::Commits(commits) => (commits.as_slice(), state.clone()),
        Body::End(end) => (none, State { generation: state.generation + 1, point: end.base, ..state.clone() }),
    };
    if let Some(last) = commits.last() {
        next.point = crate::interface::Point { epoch: last.epoch, lsn: last.lsn };
    }
    next.hash = object.hash;
    target.apply(commits, &next)?;
    Ok(Followed::Applied(next))
}

/// Makes the replica the owner of the next generation: all other machines are shut out. Afterwards it may be opened for
/// writing, its LSNs going on behind the state, with this owner id.
///
/// # Errors
/// As [`follow`]; or the other machine creates its next object sooner, again and again. It is not known after a failure
/// whether the other machine is shut out already: promote again.
pub fn promote(objects: &Objects<'_>, replica: &mut dyn Replica, nonces: &mut Nonces) -> Result<State> {
    let mut races_left = RACES_MAX;
    while races_left > 0 {
        let Some(state) = replica.state()? else {
            follow(objects, replica)?;
            continue;
        };
        let owner = match owner_here(replica)? {
            Some(owner) => owner,
            None => {
                let drawn = OwnerId { id: nonces.draw(), place: replica.place()? };
                replica.set_owner(drawn)?;
                drawn.id
            }
        };
        if !holds(invariant::PROMOTION_WINS_FIRST) {
            let end = end_of(objects, &position(&state), owner, nonces, who(&replica.who()));
            let _ = objects.bucket.create(&names::log(end.generation, end.first_lsn), end.encode())?;
            return opened(&state, state.generation + 1, replica);
        }
        let (mut at, mut ahead, mut ahead_bytes, mut is_won) = (position(&state), Vec::new(), 0, false);
        // Objects are applied behind the race: while one is applied, a living owner would create the next.
        while ahead_bytes < AHEAD_BYTES_MAX && races_left > 0 {
            let object = match objects.log(at.generation, at.point.lsn + 1)? {
                Some(object) => object,
                None => {
                    let end = end_of(objects, &at, owner, nonces, who(&replica.who()));
                    let name = names::log(end.generation, end.first_lsn);
                    match place(objects.bucket, &name, &end.encode())? {
                        Placed::Created | Placed::Mine => {
                            is_won = true;
                            break;
                        }
                        Placed::Other(_) if !holds(invariant::PROMOTION_APPLIES_FIRST) => match skip(objects, &end)? {
                            Some(generation) => return opened(&state, generation, replica),
                            None => break,
                        },
                        Placed::Other(bytes) => {
                            races_left -= 1;
                            LogObject::decode(&name, Some(&objects.store), &bytes)?
                        }
                    }
                }
            };
            let (Some(after), Body::Commits(commits)) = (behind(&at, &object), &object.body) else { break };
            ahead_bytes += commits.iter().map(|commit| commit.body.len() + 256).sum::<usize>();
            at = after;
            ahead.push(object);
        }
        // Read after all objects: at places that it is beyond, slow processes may have created them.
        let is_beyond = || Ok::<_, Error>(objects.newest()?.is_beyond((state.generation, state.point.lsn)));
        if is_won && (!holds(invariant::WON_END_IS_VERIFIED) || !is_beyond()?) {
            let generation = state.generation + 1;
            let apply = |state: State, object| step(objects, &state, object, u64::MAX, replica);
            let state = ahead.iter().try_fold(state, apply)?;
            return opened(&state, generation, replica);
        }
        for _ in 0..ahead.len().max(1) {
            follow(objects, replica)?;
        }
    }
    Err(Error::Outrun)
}

fn opened(state: &State, generation: u64, replica: &mut dyn Replica) -> Result<State> {
    let state = State { generation, ..state.clone() };
    replica.apply(&[], &state)?;
    Ok(state)
}

fn end_of(objects: &Objects<'_>, at: &Position, owner: [u8; 16], nonces: &mut Nonces, who: String) -> LogObject {
    LogObject {
        store: objects.store,
        generation: at.generation,
        first_lsn: at.point.lsn + 1,
        epochs: Vec::new(),
        hash_before: at.hash,
        hash: at.hash,
        nonce: nonces.draw(),
        owner,
        time_first: at.time,
        time: at.time,
        body: Body::End(End { base: at.point, base_hash: at.hash, reason: Reason::TakeOver, snapshot: 0, who }),
    }
}

/// For the mutation gate: ends the newest generation, though commits came between.
fn skip(objects: &Objects<'_>, end: &LogObject) -> Result<Option<u64>> {
    let tip: Position = walk(objects, None, &mut ())?.tip;
    let mut again = end.clone();
    (again.generation, again.first_lsn) = (tip.generation, tip.point.lsn + 1);
    if let Body::End(end) = &mut again.body {
        end.snapshot = u64::MAX;
    }
    let name = names::log(again.generation, again.first_lsn);
    let placed = place(objects.bucket, &name, &again.encode())?;
    Ok(matches!(placed, Placed::Created).then_some(tip.generation + 1))
}
