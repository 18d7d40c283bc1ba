//! Waits until the consumer of a slot has acknowledged a commit, so that the loss of this machine does not lose it.
//!
//! The acknowledgement is a file in the slot, which another process writes. While anybody waits, one thread of the store
//! looks at it. The lock here comes after all others of a store.

use crate::engine::options::{OnTimeout, Remote};
use crate::engine::waiting::concurrency::thread::{self, JoinHandle};
use crate::engine::waiting::concurrency::{Condvar, Instant, Mutex, MutexGuard};
use crate::engine::waiting::notification::Notification;
use crate::invariant;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;
use untorn_journal::slots::epochs::{Epochs, Point};
use untorn_journal::slots::slot_dir::{ACKNOWLEDGED_BYTES, Acknowledged, SlotDir};
use untorn_journal::{Error, Result};
use untorn_os::{Open, Storage, holds, own_thread, process_generation, read_full_at, without_signals};

/// The shortest and the longest pause between two looks at the file. It grows with the time since the last news.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(10));
/// A pause is this part of the time since the last news; commits that came within this part of the time limit share
/// their age.
const PART: u32 = 32;
/// Ages that are kept at most.
const AGES_MAX: usize = 2 * PART as usize;

/// The slot whose acknowledgements a store's commits wait for.
pub(crate) struct RemoteSlot {
    slot: SlotDir,
    options: Remote,
    /// The process that opened the store; a forked child has another generation, and no thread.
    generation: u64,
    /// The path with which the store was opened.
    path: PathBuf,
    storage: Arc<dyn Storage>,
    /// The epochs of this store: what another store acknowledged is nothing.
    epochs: Epochs,
    /// Whether the store may have threads.
    background: bool,
    notification: Arc<Notification>,
    state: Mutex<State>,
    /// News for those that wait, and the end.
    changed: Condvar,
    /// Work for the thread, and the end.
    work: Condvar,
}

#[derive(Default)]
struct State {
    /// The last commit that is acknowledged.
    acknowledged: Option<Point>,
    /// Commits that were waited for and are not acknowledged, by age.
    ages: VecDeque<Age>,
    /// Whether one of them is older than the time limit.
    late: bool,
    wakers: Vec<(u64, Waker)>,
    thread: Option<JoinHandle<()>>,
    /// The thread waits for work.
    asleep: bool,
    closed: bool,
}

/// When commits up to this one were first waited for.
struct Age {
    lsn: u64,
    first: Instant,
    last: Instant,
}

/// The slot of a store, as [`crate::Status`] shows it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct RemoteStatus {
    /// Its name.
    pub slot: String,
    /// The action when a commit is not acknowledged in time.
    pub on_timeout: OnTimeout,
    /// The last commit of this store that the slot has acknowledged.
    pub acknowledged: Option<Point>,
    /// Number of the log's records behind it.
    pub lag: u64,
    /// Whether a commit has been waited for longer than the time limit.
    pub late: bool,
    /// Whether commits count as remote without an acknowledgement, because of [`OnTimeout::Degrade`].
    pub degraded: bool,
    /// Whether there is no such slot.
    pub missing: bool,
}

impl State {
    fn lsn(&self) -> u64 {
        self.acknowledged.map_or(0, |point| point.lsn)
    }
}

impl RemoteSlot {
    pub(crate) fn new(
        storage: Arc<dyn Storage>,
        path: &Path,
        (slot, options): (SlotDir, Remote),
        epochs: Epochs,
        background: bool,
        notification: Arc<Notification>,
    ) -> RemoteSlot {
        let remote = RemoteSlot {
            slot,
            options,
            generation: process_generation(),
            path: path.to_owned(),
            storage,
            epochs,
            background,
            notification,
            state: Mutex::default(),
            changed: Condvar::new(),
            work: Condvar::new(),
        };
        if remote.is_missing() {
            let (store, slot) = (path.display(), &remote.slot.name);
            tracing::warn!(
                id = "untorn.remote.no_slot",
                %store, slot, "there is no such slot: commits are not remote until there is one"
            );
        }
        remote.look();
        remote
    }

    fn is_missing(&self) -> bool {
        self.storage.stat(&self.slot.cap_file()).is_err()
    }

    /// The acknowledgement, if the file has a whole one.
    fn read(&self) -> Option<Acknowledged> {
        let file = self.storage.open(&self.slot.acknowledged_file(), Open::READ).ok()?;
        let mut bytes = [0; ACKNOWLEDGED_BYTES];
        let n = read_full_at(&*file, &mut bytes, 0).ok()?;
        Acknowledged::decode(&bytes[..n])
    }

    /// Reads the file, and wakes those that waited for its news.
    pub(crate) fn look(&self) {
        // This store must hold the commit: after it was put back to the past, another one may have the LSN.
        let is_ours = |point: &Point| !holds(invariant::REMOTE_BY_EPOCH) || self.epochs.contains(*point);
        let point = self.read().map(|acknowledged| acknowledged.point).filter(is_ours);
        let mut state = self.state.lock();
        let news = point.filter(|point| state.acknowledged.is_none_or(|before| before.lsn < point.lsn));
        if news.is_some() {
            state.acknowledged = news;
        }
        let was_late = state.late;
        self.note_age(&mut state);
        if news.is_none() && was_late == state.late {
            return;
        }
        let (lsn, all) = (state.lsn(), self.is_degraded(&state));
        let (woken, waiting) = std::mem::take(&mut state.wakers).into_iter().partition(|one| all || one.0 <= lsn);
        state.wakers = waiting;
        drop(state);
        self.tell(woken);
    }

    fn tell(&self, woken: Vec<(u64, Waker)>) {
        self.changed.notify_all();
        self.notification.signal();
        woken.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Notes whether a commit waits too long, and logs it when that begins or ends.
    fn note_age(&self, state: &mut State) {
        let lsn = state.lsn();
        while state.ages.front().is_some_and(|age| age.lsn <= lsn) {
            state.ages.pop_front();
        }
        let timeout = self.options.timeout;
        // A lag around the limit does not begin and end it all the time.
        let limit = if state.late { timeout / 2 } else { timeout };
        let late = state.ages.front().is_some_and(|age| age.last.elapsed() >= limit);
        if std::mem::replace(&mut state.late, late) == late {
            return;
        }
        let (store, slot, acknowledged) = (self.path.display(), &self.slot.name, lsn);
        match (late, self.options.on_timeout) {
            (false, _) => tracing::info!(
                id = "untorn.remote.in_time",
                %store, slot, acknowledged, "the slot acknowledges commits in time again"
            ),
            (true, OnTimeout::Hold) => {
                tracing::warn!(
                    id = "untorn.remote.held",
                    %store, slot, acknowledged, ?timeout,
                    "the slot does not acknowledge commits: all that waits for it is held"
                );
            }
            (true, OnTimeout::Degrade) => {
                tracing::error!(
                    id = "untorn.remote.degraded",
                    %store, slot, acknowledged, ?timeout,
                    "the slot does not acknowledge commits: until it does, the loss of this machine loses commits that were waited for"
                );
            }
        }
    }

    fn is_degraded(&self, state: &State) -> bool {
        state.late && self.options.on_timeout == OnTimeout::Degrade
    }

    /// Notes that somebody waits for this commit.
    fn want(&self, state: &mut State, lsn: u64) {
        let (is_full, step) = (state.ages.len() >= AGES_MAX, self.options.timeout / PART);
        match state.ages.back_mut() {
            Some(age) if lsn <= age.lsn => return,
            Some(age) if is_full || age.first.elapsed() <= step => (age.lsn, age.last) = (lsn, Instant::now()),
            _ => state.ages.push_back(Age { lsn, first: Instant::now(), last: Instant::now() }),
        }
        if state.asleep {
            self.work.notify_one();
        }
    }

    /// Starts the thread, unless it runs. Returns whether there is one.
    fn start(self: &Arc<Self>, state: &mut State) -> bool {
        if state.thread.is_none() {
            let remote = self.clone();
            let start = || thread::Builder::new().name("untorn remote".into()).spawn(move || remote.run());
            state.thread = without_signals(start).ok();
        }
        state.thread.is_some()
    }

    fn run(&self) {
        let _own = own_thread();
        let (mut news, mut known) = (Instant::now(), 0);
        loop {
            let mut state = self.state.lock();
            if state.ages.is_empty() {
                state.asleep = true;
                while state.ages.is_empty() && !state.closed {
                    self.work.wait(&mut state);
                }
                (state.asleep, news) = (false, Instant::now());
            }
            if state.closed {
                return;
            }
            drop(state);
            self.look();
            let mut state = self.state.lock();
            if std::mem::replace(&mut known, state.lsn()) != state.lsn() {
                news = Instant::now();
            }
            if !state.closed {
                self.work.wait_for(&mut state, (news.elapsed() / PART).clamp(PAUSE.0, PAUSE.1));
            }
        }
    }

    /// Whether a commit that is durable here is remote; `None` while that is not known.
    fn settled(&self, state: &State, lsn: u64) -> Option<Result<()>> {
        if lsn <= state.lsn() || self.is_degraded(state) {
            return Some(Ok(()));
        }
        state.closed.then(|| Err(self.closed()))
    }

    /// Refuses a child of the process that opened the store, before it takes the lock.
    fn check_fork(&self) -> Result<()> {
        if self.generation == process_generation() { Ok(()) } else { Err(Error::Forked) }
    }

    fn closed(&self) -> Error {
        let why = "the store was closed before the slot acknowledged the commit, which is durable on this machine";
        let slot = format!("the slot {} of {}", self.slot.name, self.path.display());
        Error::io("wait for", slot, io::Error::new(ErrorKind::ConnectionAborted, why))
    }

    /// Waits until a commit that is durable here is remote.
    pub(crate) fn wait(self: &Arc<Self>, lsn: u64) -> Result<()> {
        self.check_fork()?;
        let mut state = self.state.lock();
        loop {
            if let Some(result) = self.settled(&state, lsn) {
                return result;
            }
            self.want(&mut state, lsn);
            if self.background && self.start(&mut state) {
                self.changed.wait(&mut state);
            } else {
                state = self.look_unlocked(state);
                if self.settled(&state, lsn).is_none() {
                    self.changed.wait_for(&mut state, PAUSE.0);
                }
            }
        }
    }

    fn look_unlocked<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        drop(state);
        self.look();
        self.state.lock()
    }

    /// Whether a commit that is durable here is remote; `None` while that is not known.
    pub(crate) fn poll(self: &Arc<Self>, lsn: u64) -> Option<Result<()>> {
        if let Err(e) = self.check_fork() {
            return Some(Err(e));
        }
        let mut state = self.state.lock();
        if self.settled(&state, lsn).is_none() {
            self.want(&mut state, lsn);
            if !self.background || !self.start(&mut state) {
                state = self.look_unlocked(state);
            }
        }
        self.settled(&state, lsn)
    }

    /// Like [`RemoteSlot::poll`]; if it is not known yet, the task is woken when it is.
    pub(crate) fn poll_or_wake(self: &Arc<Self>, lsn: u64, waker: &Waker) -> Option<Result<()>> {
        if let Err(e) = self.check_fork() {
            return Some(Err(e));
        }
        let mut state = self.state.lock();
        let settled = self.settled(&state, lsn);
        if settled.is_none() {
            self.want(&mut state, lsn);
            if !self.start(&mut state) {
                waker.wake_by_ref();
            } else if let Some(known) = state.wakers.iter_mut().find(|known| known.1.will_wake(waker)) {
                known.0 = known.0.min(lsn);
            } else {
                state.wakers.push((lsn, waker.clone()));
            }
        }
        settled
    }

    /// Ends all waiting: nobody looks at the file from here on.
    pub(crate) fn close(&self) {
        if self.check_fork().is_err() {
            return;
        }
        self.look();
        let (thread, woken) = {
            let mut state = self.state.lock();
            state.closed = true;
            self.work.notify_all();
            (state.thread.take(), std::mem::take(&mut state.wakers))
        };
        self.tell(woken);
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) {
            let _ = thread.join();
        }
    }

    /// The slot now; `last_lsn`: the last durable commit.
    pub(crate) fn status(&self, last_lsn: u64) -> RemoteStatus {
        self.look();
        let missing = self.is_missing();
        let state = self.state.lock();
        RemoteStatus {
            slot: self.slot.name.clone(),
            on_timeout: self.options.on_timeout,
            acknowledged: state.acknowledged,
            lag: last_lsn.saturating_sub(state.lsn()),
            late: state.late,
            degraded: self.is_degraded(&state),
            missing,
        }
    }
}
