//! Pruning: a new floor is published, and only then objects are deleted.

use crate::chain::objects::{ATTEMPTS, Objects};
use crate::error::{Error, Result};
use crate::invariant;
use crate::object::hash::Nonces;
use crate::object::log::Body;
use crate::object::manifest::{Manifest, Position, Registered};
use crate::restore::plan::{Chain, Wanted, read};
use crate::retain::delete::{Deletion, delete};
use std::collections::BTreeSet;
use untorn_os::holds;

/// The retention that a person wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Every commit from this time on stays restorable, in nanoseconds since 1970.
    pub since: u64,
    /// Of older snapshots, one in each stretch of so many nanoseconds stays as a single point; 0 keeps none.
    pub every: u64,
    /// Snapshots in the making that were announced before this time are cancelled.
    pub announced_since: u64,
}

/// Publishes a new floor by the policy. The deletion that it allows should wait for a while, for the sake of restores
/// that are under way; [`delete`] does it. `None`: nothing is to be deleted.
///
/// # Errors
/// The bucket does not answer or is damaged.
pub fn prune(objects: &Objects<'_>, nonces: &mut Nonces, policy: &Policy) -> Result<Option<Deletion>> {
    // For the mutation gate: a plan that was lost.
    let mut kept: Option<Manifest> = None;
    for _ in 0..ATTEMPTS {
        let chain = read(objects, Wanted::Newest)?;
        let nonce = nonces.draw();
        let planned = match kept.take() {
            Some(kept) => Some(Manifest { number: chain.manifest.number + 1, previous: chain.manifest.nonce, ..kept }),
            None => plan(objects, &chain, policy, nonce)?,
        };
        let Some(next) = planned else {
            // Perhaps another pruner ended before it had deleted everything.
            return Ok((chain.manifest.number > 0).then(|| Deletion::new(&chain, chain.manifest.clone())));
        };
        let deletion = Deletion::new(&chain, next.clone());
        if !holds(invariant::PUBLISHED_BEFORE_DELETED) {
            delete(objects, &deletion)?;
        }
        if objects.publish(&next)? {
            return Ok(Some(deletion));
        }
        if !holds(invariant::PRUNE_PLANS_AGAIN) {
            kept = Some(next);
        }
    }
    Err(Error::Busy(ATTEMPTS))
}

/// The next manifest; `None` if the policy changes nothing.
fn plan(objects: &Objects<'_>, chain: &Chain, policy: &Policy, nonce: [u8; 16]) -> Result<Option<Manifest>> {
    let now = &chain.manifest;
    let mut next = now.next(nonce);
    if let Some(floor) = new_floor(chain, policy) {
        next.floor = floor.position;
        next.floor_snapshot = floor.number;
    }
    next.registered = kept(now, &next.floor, policy.every);
    next.announced.retain(|known| known.time >= policy.announced_since);
    // Whether an end is there says nothing: it may be on its way. Only the floor does.
    next.of_ends.retain(|known| next.floor.place() < (known.generation, known.lsn));
    if !holds(invariant::SNAPSHOT_OF_END_STAYS) {
        let mut there = BTreeSet::new();
        for known in &next.of_ends {
            let object = objects.log(known.generation, known.lsn)?;
            there.extend(object.filter(|o| matches!(o.body, Body::End(_)) && o.nonce == known.nonce).map(|o| o.nonce));
        }
        next.of_ends.retain(|known| there.contains(&known.nonce));
    }
    let is_same = (&next.floor, &next.registered, &next.announced, &next.of_ends)
        == (&now.floor, &now.registered, &now.announced, &now.of_ends);
    Ok((!is_same).then_some(next))
}

/// The newest registered snapshot that is old enough, on the chain, and above the floor.
fn new_floor(chain: &Chain, policy: &Policy) -> Option<Registered> {
    let now = &chain.manifest;
    let mut candidates = now.registered.clone();
    if !holds(invariant::FLOOR_IS_REGISTERED) {
        let announced = now.announced.iter();
        candidates.extend(announced.map(|known| Registered { number: known.number, position: known.position.clone() }));
    }
    let places = || (0..=chain.nodes.len()).map(|n| chain.place(n));
    let is_above = |known: &Registered| {
        let at = places().find(|at| at.place() == known.position.place() && at.hash == known.position.hash);
        at.is_some_and(|at| at.place() > now.floor.place())
    };
    candidates
        .retain(|known| known.position.time <= policy.since && (is_above(known) || !holds(invariant::FLOOR_RISES)));
    candidates.into_iter().max_by_key(|known| known.position.place())
}

/// The snapshots that stay: all from the floor on, and single points below.
fn kept(now: &Manifest, floor: &Position, every: u64) -> Vec<Registered> {
    let mut last = None;
    let mut stays = |known: &Registered| {
        if known.position.place() >= floor.place() {
            return true;
        }
        let stretch = known.position.time.checked_div(every);
        let is_kept = stretch.is_some() && stretch != last;
        last = stretch;
        is_kept
    };
    let mut sorted = now.registered.clone();
    sorted.sort_by_key(|known| known.position.place());
    sorted.retain(|known| stays(known));
    sorted
}
