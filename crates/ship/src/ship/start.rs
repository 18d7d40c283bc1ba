//! Starting to ship: the end of the generation that was, and with it the right to the next.

use crate::bucket::Bucket;
use crate::chain::objects::{ATTEMPTS, Objects, Placed, place};
use crate::chain::walk::{Walked, walk};
use crate::error::{Error, Result};
use crate::interface::{EpochStart, Held, Next, Owner, OwnerId, Point, Random, Source};
use crate::invariant;
use crate::object::bytes::who;
use crate::object::hash::Nonces;
use crate::object::log::{Body, End, LogObject, Reason};
use crate::object::manifest::{Announced, Manifest, OfEnd, Position};
use crate::object::names;
pub use crate::ship::options::{Mode, Options};
use crate::ship::running::Shipper;
use crate::ship::upload::{Plan, upload};
use std::collections::HashMap;
use untorn_os::holds;

/// The owner id that is valid in this place.
///
/// # Errors
/// It cannot be read.
pub fn owner_here(owner: &mut (impl Owner + ?Sized)) -> Result<Option<Random>> {
    let Some(kept) = owner.owner()? else { return Ok(None) };
    let is_here = kept.place == owner.place()? || !holds(invariant::COPY_IS_NOT_THE_OWNER);
    Ok(is_here.then_some(kept.id))
}

/// The decision about one tip.
struct Decision {
    reason: Reason,
    /// Whether the generation begins with a snapshot of the store.
    with_snapshot: bool,
}

/// Starts to ship.
///
/// # Errors
/// The store must not ship to this bucket, or only in another mode; or the bucket or the store does not answer.
pub fn start(bucket: &dyn Bucket, source: &mut dyn Source, nonces: &mut Nonces, options: &Options) -> Result<Shipper> {
    let objects = Objects::open_or_create(bucket, source.store_id())?;
    let mut remembered = options.remembered.clone();
    let mut forked_from = None;
    for _ in 0..ATTEMPTS {
        let walked = walk(&objects, remembered.take(), &mut ())?;
        let tip = &walked.tip;
        let mine = owner_here(source)?;
        let is_new = tip.generation == 0;
        if options.mode == Mode::Automatic && !is_new && mine != Some(tip.owner) {
            return Err(Error::OtherOwner { who: tip.who.clone(), lsn: tip.point.lsn });
        }
        let decision = decide(source, options, &walked)?;
        if decision.reason == Reason::Fork && *forked_from.get_or_insert(tip.place()) != tip.place() {
            return Err(Error::Fork(format!("the bucket got more commits meanwhile, up to #{}", tip.point.lsn)));
        }
        if !holds(invariant::START_IS_A_GENERATION) && !is_new && decision.reason == Reason::Start {
            return Ok(Shipper::new(objects.store, tip.clone(), nonces.draw(), options));
        }
        let keeps_owner = options.mode == Mode::Automatic || holds(invariant::OWNER_STAYS);
        let owner = mine.filter(|_| keeps_owner).unwrap_or_else(|| nonces.draw());
        if mine != Some(owner) && holds(invariant::OWNER_BEFORE_THE_END) {
            keep_owner(source, owner)?;
        }
        let Some(end) = make_end(&objects, source, nonces, tip, &decision, owner, options)? else { continue };
        if !win(&objects, &end)? {
            continue;
        }
        if mine != Some(owner) && !holds(invariant::OWNER_BEFORE_THE_END) {
            keep_owner(source, owner)?;
        }
        let floor = objects.newest()?.floor;
        let is_void = floor.place() >= (tip.generation, tip.point.lsn + 1);
        if is_void && holds(invariant::WON_END_IS_VERIFIED) {
            continue;
        }
        let Body::End(made) = &end.body else { unreachable!("just made") };
        let generation = tip.generation + u64::from(holds(invariant::GENERATION_ENDS));
        let (point, hash) = (made.base, made.base_hash);
        let base = Position { generation, point, hash, time: end.time, owner, who: made.who.clone() };
        source.acknowledge(point, hash)?;
        return Ok(Shipper::new(objects.store, base, end.nonce, options));
    }
    Err(Error::Busy(ATTEMPTS))
}

fn keep_owner(source: &mut dyn Source, id: Random) -> Result<()> {
    let place = source.place()?;
    source.set_owner(OwnerId { id, place })
}

/// Whether the store may go on behind the tip, and how.
fn decide(source: &mut dyn Source, options: &Options, walked: &Walked) -> Result<Decision> {
    let tip = &walked.tip;
    let contains = if holds(invariant::STORE_CONTAINS_TIP) {
        source.contains(tip.point)?
    } else {
        source.durable()?.lsn >= tip.point.lsn
    };
    if let Mode::Fork { tip: told } = options.mode {
        if contains {
            return Err(Error::Fork("the store goes on where the bucket ends: start without --fork".into()));
        }
        if told.is_some_and(|told| told != tip.point.lsn) {
            return Err(Error::Fork(format!("the bucket's newest commit is #{} by now", tip.point.lsn)));
        }
        return Ok(Decision { reason: Reason::Fork, with_snapshot: true });
    }
    if !contains && holds(invariant::FORK_ONLY_ON_REQUEST) {
        return Err(diverged(source, walked)?);
    }
    let has_gap = contains && matches!(source.commits(tip.point.lsn, options.bodies_bytes_max)?, Next::Gap);
    let with_snapshot = !contains || (has_gap && holds(invariant::GAP_NEEDS_A_SNAPSHOT));
    let reason = match options.mode {
        Mode::TakeOver => Reason::TakeOver,
        _ if with_snapshot => Reason::Gap,
        _ => Reason::Start,
    };
    Ok(Decision { reason, with_snapshot })
}

/// How the store and the bucket differ.
fn diverged(source: &mut dyn Source, walked: &Walked) -> Result<Error> {
    let (tip, durable) = (walked.tip.point, source.durable()?);
    let mut common = 0;
    // Newest first: the first one that the store contains is the last common one.
    let ends: Vec<u64> =
        walked.epochs.iter().skip(1).map(|next| next.first_lsn.saturating_sub(1)).chain([tip.lsn]).collect();
    let mine = source.epochs(0)?;
    for (epoch, end) in walked.epochs.iter().zip(ends).rev() {
        let Some(at) = mine.iter().position(|known| known.epoch == epoch.epoch) else { continue };
        let last = mine.get(at + 1).map_or(durable.lsn, |next| next.first_lsn.saturating_sub(1)).min(end);
        if source.contains(Point { epoch: epoch.epoch, lsn: last })? {
            common = last;
            break;
        }
    }
    Ok(Error::Diverged { tip, common, is_behind: common == durable.lsn })
}

/// Makes the end behind the tip, and the snapshot that it names. `None` if the snapshot did not come about.
fn make_end(
    objects: &Objects<'_>,
    source: &mut dyn Source,
    nonces: &mut Nonces,
    tip: &Position,
    decision: &Decision,
    owner: Random,
    options: &Options,
) -> Result<Option<LogObject>> {
    let nonce = nonces.draw();
    let who = who(&source.who());
    let mut time = tip.time;
    let (mut epochs, mut base, mut base_hash, mut snapshot) = (Vec::new(), tip.point, tip.hash, 0);
    if decision.with_snapshot {
        let held = source.snapshot()?;
        (base, time) = (held.point, held.time.max(tip.time));
        // The store may have been put back since it was looked at.
        let is_checked = holds(invariant::STORE_CONTAINS_TIP) && holds(invariant::FORK_ONLY_ON_REQUEST);
        if is_checked && decision.reason != Reason::Fork && !source.contains(tip.point)? {
            return Ok(None);
        }
        epochs = epochs_to(source.epochs(0)?, base);
        // It may be put back at any time: the list is of the snapshot's store if that store has the snapshot's commit now.
        if !source.contains(base)? {
            return Ok(None);
        }
        let place = OfEnd { number: 0, generation: tip.generation, lsn: tip.point.lsn + 1, nonce };
        let made = snapshot_of_end(objects, nonces, held, place, &epochs, options.now)?;
        let Some((number, hash)) = made else { return Ok(None) };
        (snapshot, base_hash) = (number, hash);
    }
    let (generation, reason) = (tip.generation, decision.reason);
    // A change of names, for the mutation gate.
    let elsewhere = if holds(invariant::FENCE_IN_THE_LOG) { 0 } else { 1_000_000 };
    let first_lsn = tip.point.lsn + 1 + elsewhere;
    let end = End { base, base_hash, reason, snapshot, who };
    let (hash_before, hash, time_first, body) = (tip.hash, base_hash, time, Body::End(end));
    let store = objects.store;
    let object =
        LogObject { store, generation, first_lsn, epochs, hash_before, hash, nonce, owner, time_first, time, body };
    Ok(Some(object))
}

/// The list up to a commit.
fn epochs_to(mut epochs: Vec<EpochStart>, point: Point) -> Vec<EpochStart> {
    epochs.retain(|start| start.first_lsn <= point.lsn);
    let cut = epochs.len().saturating_sub(crate::object::log::EPOCHS_MAX);
    epochs.split_off(cut)
}

/// Announces, uploads and registers the snapshot of an end. `None` if others changed retention again and again.
fn snapshot_of_end(
    objects: &Objects<'_>,
    nonces: &mut Nonces,
    mut held: Held,
    place: OfEnd,
    epochs: &[EpochStart],
    now: u64,
) -> Result<Option<(u64, [u8; 32])>> {
    let (generation, point, time) = (place.generation + 1, held.point, held.time);
    let (owner, who, hash) = ([0; 16], String::new(), [0; 32]);
    let position = Position { generation, point, hash, time, owner, who };
    let Some(number) = announce(objects, nonces, &position, now, &|_| true)? else { return Ok(None) };
    let plan = Plan { number, generation, point, hash: None, time, epochs: epochs.to_vec(), shared: HashMap::new() };
    let head = upload(objects, plan, held.pieces.as_mut())?;
    for _ in 0..ATTEMPTS {
        let newest = objects.newest()?;
        if !newest.announces(number) && holds(invariant::ANNOUNCED_FIRST) {
            return Ok(None);
        }
        let mut next = newest.next(nonces.draw());
        next.announced.retain(|known| known.number != number);
        next.of_ends.push(OfEnd { number, ..place });
        if objects.publish(&next)? {
            return Ok(Some((number, head.hash)));
        }
    }
    Ok(None)
}

/// Announces a snapshot, and gives its number; `None` if it is not possible (any more).
///
/// # Errors
/// The bucket does not answer.
pub fn announce(
    objects: &Objects<'_>,
    nonces: &mut Nonces,
    position: &Position,
    now: u64,
    is_possible: &dyn Fn(&Manifest) -> bool,
) -> Result<Option<u64>> {
    let mut kept = None;
    for _ in 0..ATTEMPTS {
        let newest = objects.newest()?;
        if !is_possible(&newest) {
            return Ok(None);
        }
        let mut next = newest.next(nonces.draw());
        let number =
            if holds(invariant::NUMBER_OF_THE_MANIFEST) { next.number } else { *kept.get_or_insert(next.number) };
        if !holds(invariant::ANNOUNCED_FIRST) {
            return Ok(Some(number));
        }
        next.announced.push(Announced { number, time: now, position: position.clone() });
        if objects.publish(&next)? {
            return Ok(Some(number));
        }
    }
    Ok(None)
}

/// Sends an end. Whether it is mine that lies there.
fn win(objects: &Objects<'_>, end: &LogObject) -> Result<bool> {
    let name = names::log(end.generation, end.first_lsn);
    match place(objects.bucket, &name, &end.encode())? {
        Placed::Mine if !holds(invariant::OWN_OBJECT_IS_NO_FENCE) => {
            Err(Error::Fenced { who: "this machine".into(), lsn: end.last_lsn() })
        }
        Placed::Created | Placed::Mine => Ok(true),
        Placed::Other(_) => Ok(!holds(invariant::TAKEN_NAME_IS_READ)),
    }
}
