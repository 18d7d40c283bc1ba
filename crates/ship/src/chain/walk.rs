//! The chain: from a place, the object under the log's next name leads on.

use crate::chain::objects::{ATTEMPTS, Objects};
use crate::error::{Error, Result};
use crate::interface::EpochStart;
use crate::invariant;
use crate::object::log::{Body, LogObject};
use crate::object::manifest::{Manifest, Position};
use crate::object::names;
use untorn_os::holds;

/// A stretch of the chain.
#[derive(Clone, Debug)]
pub struct Walked {
    /// The place where it begins: the floor, or a remembered place.
    pub start: Position,
    /// The place behind the last object.
    pub tip: Position,
    /// The epochs of the newest history, as far as the stretch knows them.
    pub epochs: Vec<EpochStart>,
    /// The newest manifest, read after all objects.
    pub manifest: Manifest,
}

/// Gets each object, and the places before and behind it. Called again from the beginning, after `restart`, if the walk
/// begins anew.
pub trait Visitor {
    /// Forgets everything.
    fn restart(&mut self, start: &Position);
    /// The next object.
    fn visit(&mut self, before: &Position, object: &LogObject, after: &Position);
}

/// Looks at nothing.
impl Visitor for () {
    fn restart(&mut self, _: &Position) {}
    fn visit(&mut self, _: &Position, _: &LogObject, _: &Position) {}
}

/// The place behind an object that was read at this place; `None` if it does not continue the history.
pub fn behind(before: &Position, object: &LogObject) -> Option<Position> {
    if (object.generation, object.first_lsn) != (before.generation, before.point.lsn + 1) {
        return None;
    }
    match &object.body {
        Body::Commits(commits) => {
            let last = commits.last()?;
            let point = crate::interface::Point { epoch: last.epoch, lsn: last.lsn };
            let after = Position { point, hash: object.hash, time: object.time, ..before.clone() };
            (object.hash_before == before.hash).then_some(after)
        }
        Body::End(end) => {
            let (generation, who) = (before.generation + 1, end.who.clone());
            let time = if end.snapshot == 0 { before.time } else { object.time };
            let (point, hash, owner) = (end.base, end.base_hash, object.owner);
            let is_joined = end.snapshot != 0 || (end.base, end.base_hash) == (before.point, before.hash);
            is_joined.then_some(Position { generation, point, hash, time, owner, who })
        }
    }
}

/// The epochs of the history behind an object.
pub fn add_epochs(epochs: &mut Vec<EpochStart>, object: &LogObject) {
    match &object.body {
        Body::End(end) if end.snapshot != 0 => *epochs = object.epochs.clone(),
        Body::End(_) => {}
        Body::Commits(_) => {
            for start in &object.epochs {
                if epochs.last().is_none_or(|last| last.epoch != start.epoch) {
                    epochs.push(*start);
                }
            }
        }
    }
}

/// The epoch of a place, as a list.
pub fn epochs_at(position: &Position) -> Vec<EpochStart> {
    let start = EpochStart { epoch: position.point.epoch, first_lsn: position.point.lsn };
    if position.point.lsn == 0 { Vec::new() } else { vec![start] }
}

/// Walks to the tip, from a remembered place or from the floor.
///
/// # Errors
/// The bucket does not answer, or the chain is damaged.
pub fn walk(objects: &Objects<'_>, remembered: Option<Position>, visitor: &mut dyn Visitor) -> Result<Walked> {
    let mut is_checked = remembered.is_none() || holds(invariant::REMEMBERED_PLACE_IS_CHECKED);
    let mut first = objects.newest()?;
    let mut start = remembered.unwrap_or_else(|| first.floor.clone());
    for _ in 0..ATTEMPTS {
        visitor.restart(&start);
        let (tip, epochs, broken) = stretch(objects, &start, visitor)?;
        let manifest = if holds(invariant::OBJECT_BEFORE_FLOOR) { objects.newest()? } else { first };
        if manifest.is_beyond(start.place()) && is_checked {
            // Objects at these places may have been deleted, and created again by a slow process.
            start = manifest.floor.clone();
            first = manifest;
            is_checked = true;
            continue;
        }
        return match broken {
            Some(error) => Err(error),
            None => Ok(Walked { start, tip, epochs, manifest }),
        };
    }
    Err(Error::Busy(ATTEMPTS))
}

/// Reads objects until none is there. The error is one of the chain, and counts only if the floor is below.
fn stretch(
    objects: &Objects<'_>,
    start: &Position,
    visitor: &mut dyn Visitor,
) -> Result<(Position, Vec<EpochStart>, Option<Error>)> {
    let (mut at, mut epochs) = (start.clone(), epochs_at(start));
    let mut expected = None;
    loop {
        if expected.replace(at.generation) != Some(at.generation) {
            expect(objects, &at);
        }
        let read = match objects.log(at.generation, at.point.lsn + 1) {
            Ok(None) if !holds(invariant::CHAIN_IS_DENSE) => highest(objects, &mut at),
            read => read,
        };
        let object = match read {
            Ok(Some(object)) => object,
            Ok(None) => return Ok((at, epochs, None)),
            Err(error @ Error::Bucket(_)) => return Err(error),
            Err(error) => return Ok((at, epochs, Some(error))),
        };
        let Some(after) = behind(&at, &object) else {
            let name = names::log(object.generation, object.first_lsn);
            let reason = format!("it does not continue the history behind #{}", at.point.lsn);
            return Ok((at, epochs, Some(Error::Damaged { name, reason })));
        };
        add_epochs(&mut epochs, &object);
        visitor.visit(&at, &object, &after);
        at = after;
    }
}

/// Says that the log behind a place will be read.
fn expect(objects: &Objects<'_>, at: &Position) {
    let before = names::log(at.generation, at.point.lsn);
    objects.bucket.expect(&mut || objects.bucket.list(&names::log_of(at.generation), Some(&before)));
}

/// For the mutation gate: the highest object of the generation, over any hole.
fn highest(objects: &Objects<'_>, at: &mut Position) -> Result<Option<LogObject>> {
    let listed = objects.bucket.list(&names::log_of(at.generation), None)?;
    let above = listed.iter().filter_map(|name| names::parse_log(name)).filter(|(_, lsn)| *lsn > at.point.lsn).max();
    let Some((generation, lsn)) = above else { return Ok(None) };
    let object = objects.log(generation, lsn)?.filter(|object| matches!(object.body, Body::Commits(_)));
    if let Some(object) = &object {
        at.point.lsn = object.first_lsn - 1;
        at.hash = object.hash_before;
    }
    Ok(object)
}
