//! A snapshot of the newest commit, made of a registered one and the log; on any machine, never of the live store.

use crate::chain::objects::{ATTEMPTS, Objects};
use crate::error::{Error, Result};
use crate::interface::{Hash, State, Target};
use crate::invariant;
use crate::object::hash::Nonces;
use crate::object::manifest::{Manifest, Position, Registered};
use crate::object::names;
use crate::restore::plan::{Base, Kept, Plan, Wanted, read};
use crate::restore::run::execute;
use crate::ship::start::announce;
use crate::ship::upload;
use std::collections::HashMap;
use untorn_os::holds;

/// The outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compacted {
    /// The snapshot of this number is registered.
    Registered {
        /// Its number.
        number: u64,
        /// Its last commit.
        lsn: u64,
    },
    /// The newest commit has a snapshot already.
    NothingNew,
    /// Others changed retention meanwhile. The next prune deletes the parts that were uploaded.
    GivenUp,
}

/// Makes a snapshot of the newest commit.
///
/// `workspace` is a directory that is restored into.
///
/// # Errors
/// The bucket does not answer or is damaged, or the workspace cannot be written.
pub fn compact(objects: &Objects<'_>, workspace: &mut dyn Target, nonces: &mut Nonces, now: u64) -> Result<Compacted> {
    let mut chain = read(objects, Wanted::Newest)?;
    let plan = chain.plan(Wanted::Newest)?;
    if plan.objects.is_empty() && matches!(plan.base, Base::Snapshot(_)) {
        return Ok(Compacted::NothingNew);
    }
    if plan.last == 0 {
        return Ok(Compacted::NothingNew);
    }
    let stays = |manifest: &Manifest| base_stays(manifest, &plan);
    let Some(number) = announce(objects, nonces, &plan.end, now, &stays)? else { return Ok(Compacted::GivenUp) };
    match make(objects, &plan, &mut chain.kept, number, workspace) {
        Err(Error::Busy(_)) => return Ok(Compacted::GivenUp),
        made => made?,
    }
    register(objects, nonces, &plan, number)
}

/// Whether the base can still be relied on.
fn base_stays(manifest: &Manifest, plan: &Plan) -> bool {
    match plan.base {
        Base::Root => !manifest.is_beyond((0, 0)),
        Base::Snapshot(number) | Base::OfEnd(number) => manifest.has(number),
    }
}

fn make(objects: &Objects<'_>, plan: &Plan, kept: &mut Kept, number: u64, workspace: &mut dyn Target) -> Result<()> {
    let state: State = execute(objects, plan, kept, workspace)?;
    let shared = if holds(invariant::SHARED_WITH_THE_BASE) { of_base(objects, plan)? } else { all(objects)? };
    let (generation, point, hash, time) = (state.generation, state.point, Some(state.hash), state.time);
    let upload = upload::Plan { number, generation, point, hash, time, epochs: state.epochs, shared };
    let mut pieces = workspace.pieces()?;
    upload::upload(objects, upload, pieces.as_mut()).map(|_| ())
}

/// The extents of the base.
fn of_base(objects: &Objects<'_>, plan: &Plan) -> Result<HashMap<Hash, u64>> {
    let (Base::Snapshot(number) | Base::OfEnd(number)) = plan.base else { return Ok(HashMap::new()) };
    let Some(head) = objects.head(number)? else { return Err(Error::Busy(1)) };
    Ok(head.entries.iter().filter(|entry| entry.length > 0).map(|entry| (entry.data, entry.owner)).collect())
}

/// For the mutation gate: all extents in the bucket.
fn all(objects: &Objects<'_>) -> Result<HashMap<Hash, u64>> {
    let listed = objects.bucket.list(names::SNAP, None)?;
    let hash = |hex: &str| {
        let byte = |n: usize| u8::from_str_radix(hex.get(2 * n..2 * n + 2)?, 16).ok();
        (0..32).map(byte).collect::<Option<Vec<u8>>>()?.try_into().ok()
    };
    let each = listed.iter().filter_map(|name| {
        let (number, hex) = names::parse_snap(name)?;
        Some((hash(hex?)?, number))
    });
    Ok(each.collect())
}

/// Registers a snapshot that is uploaded.
fn register(objects: &Objects<'_>, nonces: &mut Nonces, plan: &Plan, number: u64) -> Result<Compacted> {
    let position: Position = plan.end.clone();
    let mut is_first = true;
    for _ in 0..ATTEMPTS {
        let newest = objects.newest()?;
        if newest.has(number) {
            return Ok(Compacted::Registered { number, lsn: plan.last });
        }
        let is_announced = newest.announces(number)
            || !holds(invariant::REGISTERED_WHILE_ANNOUNCED)
            || !holds(invariant::ANNOUNCED_FIRST);
        let has_base = base_stays(&newest, plan) || !holds(invariant::REGISTERED_WITH_ITS_BASE);
        let looks = is_first || holds(invariant::REGISTRATION_LOOKS_AGAIN);
        if looks && !(is_announced && has_base) {
            return Ok(Compacted::GivenUp);
        }
        is_first = false;
        let mut next = newest.next(nonces.draw());
        next.announced.retain(|known| known.number != number);
        next.registered.push(Registered { number, position: position.clone() });
        if objects.publish(&next)? {
            return Ok(Compacted::Registered { number, lsn: plan.last });
        }
    }
    Ok(Compacted::GivenUp)
}
