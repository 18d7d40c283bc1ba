//! Restoring.

use crate::chain::objects::Objects;
use crate::chain::walk::behind;
use crate::error::{Error, Result};
use crate::interface::{Commit, Piece, Pieces, Point, State, Target};
use crate::object::log::{Body, LogObject};
use crate::object::manifest::Position;
use crate::object::snapshot::{EXTENT_BYTES_MAX, Head, decode_extent, list_hash};
use crate::object::{hash, names};
use crate::restore::plan::{Base, Kept, Plan, Wanted, extend, read};
use bytes::Bytes;

/// How often a restore is planned anew because the bucket was pruned meanwhile.
const PLANS: u32 = 8;

/// Restores a point into a target. Afterwards the target should be flushed and renamed.
///
/// # Errors
/// The point is not there, the bucket does not answer or is damaged, or the target cannot be written.
pub fn restore(objects: &Objects<'_>, wanted: Wanted, target: &mut dyn Target) -> Result<State> {
    for _ in 0..PLANS {
        let mut chain = read(objects, wanted)?;
        let plan = chain.plan(wanted)?;
        match execute(objects, &plan, &mut chain.kept, target) {
            Err(Error::Busy(_)) => {}
            done => return done,
        }
    }
    Err(Error::Busy(PLANS))
}

/// An object that the plan needs is not there (any more).
fn gone<T>(name: String) -> Result<T> {
    Err(Error::Gone { name })
}

/// Executes a plan. Objects that were kept are not read again.
///
/// # Errors
/// [`Error::Busy`] if the bucket was pruned meanwhile; else as [`restore`].
pub fn execute(objects: &Objects<'_>, plan: &Plan, kept: &mut Kept, target: &mut dyn Target) -> Result<State> {
    let done = apply(objects, plan, kept, target);
    // Objects, and errors in them, count only if the floor is not beyond.
    let newest = objects.newest()?;
    let is_gone = match plan.base {
        Base::Snapshot(number) if plan.is_below_the_floor => !newest.has(number),
        _ => newest.is_beyond(plan.start.place()),
    };
    match done {
        _ if is_gone => Err(Error::Busy(1)),
        Err(Error::Gone { name }) => Err(Error::Damaged { name, reason: "it is missing".into() }),
        done => done,
    }
}

fn apply(objects: &Objects<'_>, plan: &Plan, kept: &mut Kept, target: &mut dyn Target) -> Result<State> {
    let mut state = load(objects, plan.base, &plan.start, target)?;
    let unread = || plan.objects.iter().filter(|place| !kept.has(**place));
    objects.bucket.expect(&mut || Ok(unread().map(|(generation, lsn)| names::log(*generation, *lsn)).collect()));
    for (generation, lsn) in &plan.objects {
        let object = match kept.take((*generation, *lsn)) {
            Some(object) => object,
            None => objects.log(*generation, *lsn)?.map_or_else(|| gone(names::log(*generation, *lsn)), Ok)?,
        };
        state = step(objects, &state, &object, plan.last, target)?;
    }
    if state.point.lsn != plan.last {
        return Err(Error::NotThere(format!(
            "the bucket's objects end at #{} instead of #{}",
            state.point.lsn, plan.last
        )));
    }
    Ok(state)
}

/// Replaces everything by the contents at a place.
///
/// # Errors
/// [`Error::Gone`] if a part of the snapshot is not there; else as [`restore`].
pub fn load(objects: &Objects<'_>, base: Base, at: &Position, target: &mut dyn Target) -> Result<State> {
    let state = |epochs| State {
        store: objects.store,
        generation: at.generation,
        point: at.point,
        hash: at.hash,
        time: at.time,
        epochs,
    };
    let (Base::Snapshot(number) | Base::OfEnd(number)) = base else {
        let state = state(Vec::new());
        return target.replace(None, &state).map(|()| state);
    };
    let Some(head) = objects.head(number)? else { return gone(names::head(number)) };
    let of_list = || hash::base(&objects.store, head.point, &list_hash(&head.entries));
    let fits = (head.point, head.hash) == (at.point, at.hash);
    if !fits || (matches!(base, Base::OfEnd(_)) && head.hash != of_list()) {
        return Err(Error::Damaged { name: names::head(number), reason: "it is of another history".into() });
    }
    let state = state(head.epochs.clone());
    let extents = || head.entries.iter().filter(|entry| entry.length > 0);
    objects.bucket.expect(&mut || Ok(extents().map(|entry| names::extent(entry.owner, &entry.data)).collect()));
    target.replace(Some(&mut FromBucket { objects: *objects, head, next: 0 }), &state)?;
    Ok(state)
}

/// The pieces of a snapshot in the bucket.
struct FromBucket<'a> {
    objects: Objects<'a>,
    head: Head,
    next: usize,
}

impl Pieces for FromBucket<'_> {
    fn next_piece(&mut self) -> Result<Option<Piece>> {
        let Some(entry) = self.head.entries.get(self.next) else { return Ok(None) };
        self.next += 1;
        if entry.length == 0 {
            return Ok(Some(Piece { about: entry.about.clone(), data: Bytes::new() }));
        }
        let name = names::extent(entry.owner, &entry.data);
        let Some(bytes) = self.objects.bucket.get(&name, EXTENT_BYTES_MAX)? else { return gone(name) };
        let data = decode_extent(&name, &bytes, entry.length, &entry.data)?;
        Ok(Some(Piece { about: entry.about.clone(), data }))
    }
}

/// Applies an object to a target that stands before it, up to the commit `last`.
///
/// # Errors
/// [`Error::DoesNotFit`] if the object does not continue the target's history; else as [`restore`].
pub fn step(
    objects: &Objects<'_>,
    state: &State,
    object: &LogObject,
    last: u64,
    target: &mut dyn Target,
) -> Result<State> {
    let Some(after) = behind(&position(state), object) else {
        return Err(Error::DoesNotFit { lsn: state.point.lsn });
    };
    match &object.body {
        Body::End(end) if end.snapshot != 0 => load(objects, Base::OfEnd(end.snapshot), &after, target),
        Body::End(_) => {
            let state = State { generation: after.generation, ..state.clone() };
            target.apply(&[], &state).map(|()| state)
        }
        Body::Commits(commits) => {
            let wanted: Vec<Commit> = commits.iter().filter(|commit| commit.lsn <= last).cloned().collect();
            let state = behind_commits(state, object, &wanted);
            target.apply(&wanted, &state).map(|()| state)
        }
    }
}

fn behind_commits(state: &State, object: &LogObject, commits: &[Commit]) -> State {
    let Some(last) = commits.last() else { return state.clone() };
    let point = Point { epoch: last.epoch, lsn: last.lsn };
    let hash = commits.iter().fold(state.hash, |before, commit| hash::after(&before, commit));
    let mut epochs = state.epochs.clone();
    extend(&mut epochs, &object.epochs, point);
    State { point, hash, time: last.time, epochs, ..state.clone() }
}

/// The state as a place on the chain.
pub fn position(state: &State) -> Position {
    let (generation, point, hash, time) = (state.generation, state.point, state.hash, state.time);
    Position { generation, point, hash, time, owner: [0; 16], who: String::new() }
}
