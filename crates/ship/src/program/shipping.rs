//! The loop of shipping: requests run in a few threads, and their answers come back here.

use crate::bucket::{Bucket, Created, Failed};
use crate::chain::objects::Objects;
use crate::error::Error;
use crate::interface::Source;
use crate::object::hash::Nonces;
use crate::object::names;
use crate::program::metrics::Metrics;
use crate::ship::running::{NextPut, Put, Shipper};
use crate::ship::start::{Mode, Options, start};
use crate::store::live::{LiveStore, now};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use untorn_terminal::{Failure, Output, say};

/// Most bytes of commits in an object, and most objects in flight.
const BODIES_BYTES_MAX: u64 = 64 << 20;
const IN_FLIGHT_MAX: usize = 4;

/// From this size on, an object is followed by the next one at once.
const LARGE: usize = 4 << 20;

/// How often the place is looked at while objects are created there.
const PLACE_SEEN_EACH: Duration = Duration::from_secs(10);

/// Failures in a row after which `--once` gives up.
const ATTEMPTS_ONCE: u32 = 5;

/// The longest pause after failures.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Settings of the loop.
pub struct Settings {
    /// How it starts.
    pub mode: Mode,
    /// The time between two looks at the store.
    pub interval: Duration,
    /// Whether it ends when everything is shipped.
    pub is_once: bool,
    /// Whether events are JSON.
    pub json: bool,
    /// The place, for people.
    pub name: String,
    /// Whether commits were shipped there before, so that nothing begins anew there.
    pub has_shipped: bool,
    /// The message for such a place that is empty.
    pub empty: String,
    /// Set by a signal.
    pub is_stopped: Arc<AtomicBool>,
    /// Figures.
    pub metrics: Arc<Metrics>,
}

type Answer = (u64, Duration, Result<Created, Failed>);

/// Ships until it is stopped.
///
/// # Errors
/// The store must not be shipped to this bucket (any more), or one of them cannot be used.
pub fn ship(
    store: &mut LiveStore,
    bucket: &dyn Bucket,
    nonces: &mut Nonces,
    settings: &Settings,
) -> Result<Output, Failure> {
    let (mut mode, mut has_shipped) = (settings.mode, settings.has_shipped);
    if let Some(acknowledged) = store.slot().and_then(|slot| slot.acknowledged().ok().flatten()) {
        settings.metrics.shipped(acknowledged.point.lsn);
    }
    loop {
        let shipper = begin(store, bucket, nonces, settings, mode, has_shipped)?;
        let Some(shipper) = shipper else { return Ok(Output::default()) };
        // A gap begins another generation of this machine, without anybody's decision.
        (mode, has_shipped) = (Mode::Automatic, true);
        settings.metrics.shipped(shipper.confirmed().point.lsn);
        event(settings, "started", shipper.confirmed().generation, shipper.confirmed().point.lsn);
        let end = std::thread::scope(|scope| {
            let (answer, answers) = channel();
            let send = |put: Put| {
                let (answer, metrics) = (answer.clone(), &settings.metrics);
                scope.spawn(move || request(bucket, put, &answer, metrics));
            };
            run(store, bucket, shipper, settings, &send, &answers)
        })?;
        if end == End::Done {
            return Ok(Output::default());
        }
    }
}

#[derive(PartialEq, Eq)]
enum End {
    Done,
    Gap,
}

fn request(bucket: &dyn Bucket, put: Put, answer: &Sender<Answer>, metrics: &Metrics) {
    let began = Instant::now();
    let created = bucket.create(&put.name, put.bytes);
    metrics.put(began.elapsed());
    // The loop has ended if nobody takes it.
    let _ = answer.send((put.lsn, began.elapsed(), created));
}

/// Starts; tries again while the bucket does not answer.
fn begin(
    store: &mut LiveStore,
    bucket: &dyn Bucket,
    nonces: &mut Nonces,
    settings: &Settings,
    mode: Mode,
    has_shipped: bool,
) -> Result<Option<Shipper>, Failure> {
    let mut pauses = Pauses::default();
    loop {
        settings.metrics.store(store.durable()?.lsn);
        let options = Options {
            mode,
            now: now(),
            remembered: None,
            bodies_bytes_max: BODIES_BYTES_MAX,
            in_flight_max: IN_FLIGHT_MAX,
        };
        let checked = if has_shipped { check_place(bucket, store, settings) } else { Ok(()) };
        match checked.and_then(|()| start(bucket, store, nonces, &options)) {
            Ok(shipper) => return Ok(Some(shipper)),
            Err(Error::Bucket(failed)) if failed.is_transient && !settings.is_once => {
                failure(settings, &failed.reason);
                if pauses.pause(settings) {
                    return Ok(None);
                }
            }
            Err(e) => return Err(e.into()),
        }
    }
}

fn run(
    store: &mut LiveStore,
    bucket: &dyn Bucket,
    mut shipper: Shipper,
    settings: &Settings,
    send: &dyn Fn(Put),
    answers: &Receiver<Answer>,
) -> Result<End, Failure> {
    let mut pauses = Pauses::default();
    let mut next_look = Instant::now();
    let mut has_gap = false;
    let mut waiting = 0usize;
    let mut place_seen = Instant::now();
    // With `--once`: commits that are made meanwhile are left to the next run.
    let target = store.durable()?.lsn;
    loop {
        let is_stopped = settings.is_stopped.load(Ordering::SeqCst);
        let mut is_all = settings.is_once && shipper.sent().lsn >= target;
        if !is_stopped && !is_all && !has_gap && Instant::now() >= next_look {
            settings.metrics.store(store.durable()?.lsn);
            match shipper.next_put(store, BODIES_BYTES_MAX)? {
                NextPut::Put(put) => {
                    if place_seen.elapsed() >= PLACE_SEEN_EACH {
                        match check_place(bucket, store, settings) {
                            // The request for the object tells of it, too.
                            Err(Error::Bucket(failed)) if failed.is_transient => {}
                            checked => checked?,
                        }
                        place_seen = Instant::now();
                    }
                    next_look = if put.bytes.len() < LARGE { Instant::now() + settings.interval } else { next_look };
                    waiting += 1;
                    send(put);
                }
                NextPut::Nothing => {
                    next_look = Instant::now() + settings.interval;
                    is_all = settings.is_once;
                }
                NextPut::Full => next_look = Instant::now() + Duration::from_millis(10),
                NextPut::Gap => has_gap = true,
            }
        }
        if shipper.in_flight() == 0 {
            if is_stopped || is_all {
                return Ok(End::Done);
            }
            if has_gap {
                return Ok(End::Gap);
            }
        }
        if settings.is_once {
            // Everything is sent as soon as possible.
            next_look = Instant::now();
        }
        let wait = next_look.saturating_duration_since(Instant::now()).min(Duration::from_millis(200));
        if waiting == 0 && shipper.in_flight() == 0 {
            std::thread::sleep(wait);
            continue;
        }
        match answers.recv_timeout(wait.max(Duration::from_millis(1))) {
            Ok((lsn, _, answer)) => {
                waiting -= 1;
                if let Ok(Created::Unknown(failed)) | Err(failed) = &answer {
                    failure(settings, &failed.reason);
                }
                shipper.answered(lsn, answer)?;
            }
            Err(RecvTimeoutError::Timeout) if waiting > 0 => continue,
            Err(_) => {}
        }
        waiting += settle(store, bucket, &mut shipper, settings, &mut pauses, send)?;
    }
}

/// Refuses a place that was emptied, or that belongs to another store now: objects there would have no history.
fn check_place(bucket: &dyn Bucket, store: &mut LiveStore, settings: &Settings) -> Result<(), Error> {
    match Objects::open(bucket) {
        Err(Error::NotThere(_)) => Err(Error::NotThere(settings.empty.clone())),
        Ok(objects) if objects.store != store.store_id() => {
            Err(Error::OtherStore { found: names::hex(&objects.store) })
        }
        opened => opened.map(|_| ()),
    }
}

/// Settles the objects with an answer; returns how many objects are sent again.
fn settle(
    store: &mut LiveStore,
    bucket: &dyn Bucket,
    shipper: &mut Shipper,
    settings: &Settings,
    pauses: &mut Pauses,
    send: &dyn Fn(Put),
) -> Result<usize, Failure> {
    match shipper.settle(bucket, store) {
        Ok(settled) => {
            if let Some(point) = settled.acknowledged {
                settings.metrics.shipped(point.lsn);
                event(settings, "shipped", shipper.confirmed().generation, point.lsn);
                *pauses = Pauses::default();
            }
            let again = settled.again.len();
            if again > 0 {
                pauses.pause_or_give_up(settings)?;
            }
            settled.again.into_iter().for_each(send);
            Ok(again)
        }
        Err(Error::Bucket(failed)) if failed.is_transient => {
            failure(settings, &failed.reason);
            pauses.pause_or_give_up(settings)?;
            Ok(0)
        }
        Err(e) => Err(e.into()),
    }
}

/// Longer and longer pauses while nothing succeeds.
#[derive(Default)]
struct Pauses(u32);

impl Pauses {
    /// Waits. A process that shall stop, or ship once, does not try for ever.
    fn pause_or_give_up(&mut self, settings: &Settings) -> Result<(), Failure> {
        let is_stopped = self.pause(settings);
        if is_stopped || (settings.is_once && self.0 >= ATTEMPTS_ONCE) {
            let why = if is_stopped { "interrupted" } else { "the place does not answer" };
            return Err(Failure::new(format!("{why}; not everything is shipped, and the store keeps the rest")));
        }
        Ok(())
    }

    /// Waits. True if the process shall stop.
    fn pause(&mut self, settings: &Settings) -> bool {
        let pause = Duration::from_millis(200 << self.0.min(6)).min(PAUSE_MAX);
        self.0 += 1;
        let end = Instant::now() + pause;
        while Instant::now() < end && !settings.is_stopped.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(20));
        }
        settings.is_stopped.load(Ordering::SeqCst)
    }
}

fn failure(settings: &Settings, reason: &str) {
    settings.metrics.failed();
    tracing::warn!(id = "untorn.ship.retried", error = reason, "commits were not shipped: it is tried again");
}

fn event(settings: &Settings, what: &str, generation: u64, lsn: u64) {
    if settings.json {
        say!("{}", json!({"event": what, "generation": generation, "lsn": lsn, "time_ns": now()}));
    } else if what == "started" {
        say!("ships to {} in generation {generation}, from #{lsn} on", settings.name);
    } else if settings.is_once {
        say!("shipped #{lsn}");
    }
}
