//! A running shipper: objects in flight, settled and acknowledged in order.
//!
//! It sends nothing itself: [`Shipper::next_put`] gives an object to create, [`Shipper::answered`] takes the answer,
//! and [`Shipper::settle`] resolves answers that left the outcome open, and acknowledges.

use crate::bucket::{Bucket, Created, Failed};
use crate::chain::objects::Objects;
use crate::error::{Error, Result};
use crate::interface::{Commit, Hash, Next, Point, Random, Source, StoreId};
use crate::invariant;
use crate::object::log::{Body, LogObject, OBJECT_BYTES_MAX, epochs_of};
use crate::object::manifest::Position;
use crate::object::{hash, names};
use crate::ship::options::Options;
use bytes::Bytes;
use std::collections::VecDeque;
use untorn_os::holds;

/// An object to create.
#[derive(Clone, Debug)]
pub struct Put {
    /// Names it in [`Shipper::answered`].
    pub lsn: u64,
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub bytes: Bytes,
}

/// The next thing to do.
#[derive(Clone, Debug)]
pub enum NextPut {
    /// Create this object.
    Put(Put),
    /// Nothing is new.
    Nothing,
    /// Enough objects are in flight.
    Full,
    /// The log lacks the next commit: when nothing is in flight any more, start again.
    Gap,
}

/// The answer to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Waiting,
    Created,
    /// The name is taken, perhaps by this object.
    Taken,
    Unknown,
    /// It certainly had no effect.
    Refused,
}

struct InFlight {
    put: Put,
    last: Point,
    hash: Hash,
    time: u64,
    answer: Answer,
}

/// The owner of a generation.
pub struct Shipper {
    store: StoreId,
    generation: u64,
    owner: Random,
    nonce: Random,
    /// The last commit that was sent, and the history there.
    sent: (Point, Hash, u64),
    /// The last one that was confirmed.
    confirmed: Position,
    in_flight: VecDeque<InFlight>,
    in_flight_max: usize,
}

/// The outcome of [`Shipper::settle`].
#[derive(Debug, Default)]
pub struct Settled {
    /// Objects to send again.
    pub again: Vec<Put>,
    /// The last commit that was acknowledged by this call.
    pub acknowledged: Option<Point>,
}

impl Shipper {
    /// The owner of the generation that begins here.
    pub(crate) fn new(store: StoreId, base: Position, nonce: Random, options: &Options) -> Shipper {
        Shipper {
            store,
            generation: base.generation,
            owner: base.owner,
            nonce,
            sent: (base.point, base.hash, base.time),
            confirmed: base,
            in_flight: VecDeque::new(),
            in_flight_max: options.in_flight_max,
        }
    }

    /// The place up to which everything is confirmed: worth remembering for the next start.
    pub fn confirmed(&self) -> &Position {
        &self.confirmed
    }

    /// The last commit that was sent.
    pub fn sent(&self) -> Point {
        self.sent.0
    }

    /// The number of objects that are not confirmed yet.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// The next object, with at most `bodies_bytes_max` bytes of bodies.
    ///
    /// # Errors
    /// The store was put back, or cannot be read.
    pub fn next_put(&mut self, source: &mut dyn Source, bodies_bytes_max: u64) -> Result<NextPut> {
        if self.in_flight.len() >= self.in_flight_max {
            return Ok(NextPut::Full);
        }
        let (last, before, time) = self.sent;
        let durable = source.durable()?.lsn;
        let next = match source.commits(last.lsn, bodies_bytes_max)? {
            Next::Gap if !holds(invariant::GAP_NEEDS_A_SNAPSHOT) => behind_gap(source, last.lsn, bodies_bytes_max)?,
            next => next,
        };
        // After the commits were read, so that all of them are of the store that is looked at here.
        let durable = source.durable()?.lsn.min(durable);
        if holds(invariant::STORE_CHECKED_EACH_TIME) && !source.contains(last)? {
            return Err(Error::PutBack { lsn: last.lsn });
        }
        let Next::Commits(mut commits) = next else { return Ok(NextPut::Gap) };
        if holds(invariant::DURABLE_COMMITS_ONLY) {
            commits.retain(|commit| commit.lsn <= durable);
        }
        let Some(first) = commits.first() else { return Ok(NextPut::Nothing) };
        if first.lsn != last.lsn + 1 && holds(invariant::GAP_NEEDS_A_SNAPSHOT) {
            return Err(Error::store(format!("the store gave #{} for #{}", first.lsn, last.lsn + 1)));
        }
        raise_times(&mut commits, time);
        let object = self.object(last.lsn + 1, before, commits);
        let (time, hash) = (object.time, object.hash);
        let Body::Commits(commits) = &object.body else { unreachable!("just made") };
        let last = commits.last().map_or(last, |commit| Point { epoch: commit.epoch, lsn: commit.lsn });
        let name = names::log(self.generation, object.first_lsn);
        let put = Put { lsn: object.first_lsn, name, bytes: object.encode() };
        self.sent = (last, hash, time);
        self.in_flight.push_back(InFlight { put: put.clone(), last, hash, time, answer: Answer::Waiting });
        Ok(NextPut::Put(put))
    }

    fn object(&self, first_lsn: u64, hash_before: Hash, commits: Vec<Commit>) -> LogObject {
        let last = commits.iter().fold(hash_before, |before, commit| hash::after(&before, commit));
        LogObject {
            store: self.store,
            generation: self.generation,
            first_lsn,
            epochs: epochs_of(&commits),
            hash_before,
            hash: last,
            nonce: self.nonce,
            owner: self.owner,
            time_first: commits.first().map_or(0, |commit| commit.time),
            time: commits.last().map_or(0, |commit| commit.time),
            body: Body::Commits(commits),
        }
    }

    /// Takes the answer to an object.
    ///
    /// # Errors
    /// The bucket refuses it for good.
    pub fn answered(&mut self, lsn: u64, answer: std::result::Result<Created, Failed>) -> Result<()> {
        let Some(sent) = self.in_flight.iter_mut().find(|sent| sent.put.lsn == lsn) else { return Ok(()) };
        sent.answer = match answer {
            Ok(Created::New) => Answer::Created,
            Ok(Created::Exists) => Answer::Taken,
            Ok(Created::Unknown(_)) => Answer::Unknown,
            Err(failed) if failed.is_transient => Answer::Refused,
            Err(failed) => return Err(failed.into()),
        };
        Ok(())
    }

    /// Confirms objects in order, and acknowledges them. Objects to send again are on their way then.
    ///
    /// # Errors
    /// Another machine ships this store now; or the bucket or the slot does not answer.
    pub fn settle(&mut self, bucket: &dyn Bucket, source: &mut dyn Source) -> Result<Settled> {
        let mut settled = Settled::default();
        let outcome = self.confirm(&Objects { bucket, store: self.store }, &mut settled);
        // Also before a failure: this is confirmed.
        if let Some(point) = settled.acknowledged {
            source.acknowledge(point, self.confirmed.hash)?;
        } else if !holds(invariant::ACKNOWLEDGED_IN_ORDER)
            && let Some(sent) = self.in_flight.iter().rev().find(|sent| sent.answer == Answer::Created)
        {
            source.acknowledge(sent.last, sent.hash)?;
        }
        outcome.map(|()| settled)
    }

    fn confirm(&mut self, objects: &Objects<'_>, settled: &mut Settled) -> Result<()> {
        while let Some(first) = self.in_flight.front_mut() {
            let is_confirmed = match first.answer {
                Answer::Waiting => return Ok(()),
                Answer::Created => true,
                Answer::Refused => false,
                Answer::Taken | Answer::Unknown => is_mine(objects, self.generation, first, &self.confirmed)?,
            };
            if !is_confirmed {
                first.answer = Answer::Waiting;
                settled.again.push(first.put.clone());
                return Ok(());
            }
            let Some(sent) = self.in_flight.pop_front() else { return Ok(()) };
            (self.confirmed.point, self.confirmed.hash, self.confirmed.time) = (sent.last, sent.hash, sent.time);
            settled.acknowledged = Some(sent.last);
        }
        Ok(())
    }
}

/// Whether the object is in the bucket, or was until it was pruned. False: it must be sent again.
fn is_mine(objects: &Objects<'_>, generation: u64, sent: &InFlight, confirmed: &Position) -> Result<bool> {
    let found = objects.bucket.get(&sent.put.name, OBJECT_BYTES_MAX)?;
    let fenced = |who: String| Error::Fenced { who, lsn: confirmed.point.lsn };
    let is_mine = found.as_ref().is_some_and(|found| hash::of(found) == hash::of(&sent.put.bytes));
    if is_mine && !holds(invariant::OWN_OBJECT_IS_NO_FENCE) {
        return Err(fenced("this machine".into()));
    }
    if is_mine || (sent.answer == Answer::Taken && !holds(invariant::TAKEN_NAME_IS_READ)) {
        return Ok(true);
    }
    let floor = objects.newest()?.floor;
    if floor.generation == generation && floor.point.lsn >= sent.last.lsn && holds(invariant::FLOOR_SETTLES) {
        return Ok(true);
    }
    let Some(found) = found else { return Ok(false) };
    match LogObject::decode(&sent.put.name, Some(&objects.store), &found)?.body {
        Body::End(end) => Err(fenced(end.who)),
        Body::Commits(_) => Err(fenced("another process of this machine, or of a copy of it,".into())),
    }
}

fn raise_times(commits: &mut [Commit], mut time: u64) {
    for commit in commits {
        time = commit.time.max(time);
        commit.time = time;
    }
}

/// For the mutation gate: the commits behind a gap.
fn behind_gap(source: &mut dyn Source, mut lsn: u64, bytes_max: u64) -> Result<Next> {
    let durable = source.durable()?.lsn;
    while lsn < durable {
        if let Next::Commits(commits) = source.commits(lsn, bytes_max)? {
            return Ok(Next::Commits(commits));
        }
        lsn += 1;
    }
    Ok(Next::Commits(Vec::new()))
}
