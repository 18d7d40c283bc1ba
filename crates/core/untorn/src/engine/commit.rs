//! Group commit: the first waiting thread leads, and writes the commits of all threads that have submitted by then.
//!
//! ```text
//! submit    each file's write set becomes a commit in the queue     (in the caller's thread; its changes are fixed)
//! write     the queue's commits become records: one write, one flush, then the files follow
//! ```
//!
//! A commit (so an `msync`, too) waits for:
//! - the locks of its files, and for a heap the guards and sections of other threads;
//! - the batch that is being written, and at most [`JOIN_WAIT_MAX`] for threads that commit at the same time
//!   ([`Engine::wait_for_others`]);
//! - its own write and flush;
//! - a checkpoint, if the journal has no room ([`Engine::make_room`]); `status` counts these waits.

mod built_record;
pub(crate) mod capture;
pub(crate) mod committed_names;
pub(crate) mod contents_first;
mod failed;
mod first_attributes;
mod kept_for_readers;
pub(crate) mod names;
mod spilled;
pub(crate) mod stop_the_world;
pub(crate) mod ticket;

use crate::engine::commit::built_record::{BuiltRecord, RunState};
use crate::engine::commit::capture::Threads;
use crate::engine::commit::failed::with_unknown_outcome;
use crate::engine::commit::first_attributes::Marked;
use crate::engine::content::SpillSink;
use crate::engine::files::file_state::SharedFile;
use crate::engine::files::name_op::NameOp;
use crate::engine::files::queue::{Queue, Request};
use crate::engine::waiting::completion::{Completion, PANICKED, Promise};
use crate::engine::waiting::concurrency::{Instant, MutexGuard, thread};
use crate::engine::{Engine, JournalState};
use std::cell::LazyCell;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use untorn_journal::commits::final_state::FinalState;
use untorn_journal::commits::record::Record;
use untorn_journal::journal::Committed;
use untorn_journal::recovery::boot_id;
use untorn_journal::statistics::figures::Stage;
use untorn_journal::{Error, Result};

/// The longest wait for other threads to join a batch.
const JOIN_WAIT_MAX: Duration = Duration::from_micros(200);

/// Commits that may wait in the queue. With more, `commit_async` writes a batch itself, or waits for one, because each
/// commit on its way is an overlay that reads go through.
const QUEUE_MAX: usize = 256;

/// The lead of a thread that writes a batch. If the thread panics, the commits of the batch [fail](Promise), the store
/// accepts no more commits, and nobody waits for this thread.
struct Lead<'e>(&'e Engine);

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            {
                let journal = &mut self.0.journal.lock().journal;
                journal.abandon(PANICKED);
                self.0.life.note_failure(journal, &self.0.path);
            }
            self.0.commits.queue.lock().leading = false;
            self.0.commits.changed.notify_all();
        }
    }
}

/// The part of a transaction in its commit.
pub(crate) struct TxnPart {
    pub id: u64,
    pub names: Vec<NameOp>,
}

// Submit.
impl Engine {
    /// Makes one commit of the write sets of these files, and queues it. With a transaction, the files must belong to
    /// it. If a file is quarantined, a checkpoint is tried first, which may end the quarantine.
    pub(crate) fn submit(&self, files: &[Arc<SharedFile>], txn: Option<TxnPart>) -> Result<Arc<Completion>> {
        self.submit_captured(files, txn, Threads::Run)
    }

    /// Submits like [`Self::submit`], with the bytes that threads stored to mappings captured in one of the
    /// [ways](Threads).
    pub(crate) fn submit_captured(
        &self,
        files: &[Arc<SharedFile>],
        txn: Option<TxnPart>,
        threads: Threads<'_>,
    ) -> Result<Arc<Completion>> {
        let begun = self.statistics.begin();
        let (txn, names) = txn.map_or((None, Vec::new()), |txn| (Some(txn.id), txn.names));
        self.check_not_failed(files)?;
        self.check_room(files)?;
        // All files stay locked until the commit is queued, so that it captures one moment.
        let mut in_order: Vec<&Arc<SharedFile>> = files.iter().collect();
        in_order.sort_unstable_by_key(|file| file.id);
        debug_assert!(in_order.is_sorted_by(|one, next| one.id < next.id), "a file is committed twice in one commit");
        let lock_all = || in_order.iter().map(|file| file.write()).collect::<Vec<_>>();
        let mut states = lock_all();
        if states.iter().any(|state| state.quarantine.is_some()) {
            // The cause may be gone, for example if a full disk has space again. Otherwise the commit is refused below.
            drop(states);
            let _ = self.checkpoint();
            states = lock_all();
        }
        states.iter_mut().try_for_each(|state| state.check_unmarked())?;
        self.capture(&mut states, &in_order, txn, threads)?;
        // A commit that could not be applied must not be acknowledged. The limit may have changed since the write.
        let limit = LazyCell::new(|| self.file_bytes_max.min(self.commits.file_limit(&*self.storage)));
        for state in &states {
            let content = &state.content;
            if !content.write_set.is_empty() && content.size() > *limit {
                self.check_end(content, content.write_set_end(), "commit")?;
            }
        }
        self.spill_large(&mut states)?;
        let completion = Arc::new(Completion::default());
        let mut queue = self.commits.queue.lock();
        self.life.check_usable()?;
        let mut changed = Vec::with_capacity(files.len());
        for (state, file) in states.iter_mut().zip(in_order) {
            // An empty commit still waits for the commit before it, because the changes of that one become part of this
            // one if it fails.
            if state.content.write_set.is_empty() && state.content.committing.is_empty() && txn.is_none() {
                continue;
            }
            state.content.take_write_set(txn.is_some());
            state.txn = None;
            changed.push(file.clone());
        }
        let is_txn = txn.is_some();
        queue.push(Request { files: changed, names, is_txn, begun, completion: Promise(completion.clone()) });
        Ok(completion)
    }

    /// Queues a commit that the background thread writes while the caller continues. If the queue is full, waits for
    /// room first.
    pub(crate) fn submit_async(&self, files: &[Arc<SharedFile>], txn: Option<TxnPart>) -> Result<Arc<Completion>> {
        self.shorten_queue()?;
        let completion = self.submit(files, txn)?;
        self.commits.wakeup.wake();
        Ok(completion)
    }

    /// Refuses a large commit for which the data files have no room. It would take room on the disk for its spill file,
    /// and then wait for ever.
    fn check_room(&self, files: &[Arc<SharedFile>]) -> Result<()> {
        let bytes = files.iter().map(|file| file.read().content.write_set.stored_bytes()).sum::<u64>();
        let has_room = || self.journal.lock().journal.has_room_for(bytes);
        if bytes <= self.inline_bytes_max() || has_room() {
            return Ok(());
        }
        let _ = self.checkpoint();
        match has_room() || self.journal.lock().journal.lose_slots_for(bytes)? {
            true => Ok(()),
            false => Err(Error::NoSpace { detail: format!("the disk has no room for a commit of {bytes} bytes") }),
        }
    }

    /// Calls a second time if there was no room, and the log that is kept for slots has given some.
    pub(crate) fn with_room_of_slots<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        match call() {
            Err(Error::NoSpace { .. }) if self.journal.lock().journal.lose_slots()? => call(),
            done => done,
        }
    }

    /// Refuses commits after a failed write or flush of the journal.
    fn check_not_failed(&self, files: &[Arc<SharedFile>]) -> Result<()> {
        if !self.life.has_failed() {
            return Ok(());
        }
        let Some(e) = self.journal.lock().journal.failure() else { return Ok(()) };
        // Programs that watch are told.
        self.commits.wakeup.note_commit();
        let is_unknown = |file: &Arc<SharedFile>| {
            let state = file.read();
            state.outcome_unknown && state.content.write_set.is_empty()
        };
        Err(if files.iter().any(is_unknown) { with_unknown_outcome(e) } else { e })
    }
}

// Lead.
impl Engine {
    /// Waits for a commit; writes a batch itself if no other thread does.
    pub(crate) fn finish(&self, completion: &Completion) -> Result<()> {
        let mut queue = self.commits.queue.lock();
        queue.waiters += 1;
        queue.waiters_max = queue.waiters_max.max(queue.waiters);
        let mut led = false;
        let result = loop {
            if let Some(result) = completion.result() {
                break result;
            }
            if queue.leading || queue.waiting.is_empty() {
                self.commits.changed.wait(&mut queue);
                continue;
            }
            match &queue.stuck {
                Some(e) if led => break Err(e.clone()),
                _ => queue = self.lead(queue),
            }
            led = true;
        };
        debug_assert!(queue.waiters > 0, "a thread that waits is not counted");
        queue.waiters -= 1;
        result
    }

    /// Writes one batch, unless another thread is writing or nothing is queued.
    pub(crate) fn write_one_batch(&self) -> bool {
        let queue = self.commits.queue.lock();
        let leads = !queue.leading && !queue.waiting.is_empty() && queue.stuck.is_none();
        if leads {
            drop(self.lead(queue));
        }
        leads
    }

    /// Waits until the queue is empty, except for commits that cannot be written now.
    pub(crate) fn drain(&self) {
        // Commits that cannot be written keep their places.
        let _ = self.wait_for_all();
    }

    /// Waits for all commits that are queued or being written.
    pub(crate) fn wait_for_all(&self) -> Result<()> {
        self.shorten_to(0)
    }

    /// Fails the commits that could not be written and kept their places, because the store is closing.
    pub(crate) fn fail_stuck(&self) {
        let mut queue = self.commits.queue.lock();
        // A thread that waits for one of them may be trying to write them again.
        while queue.leading {
            self.commits.changed.wait(&mut queue);
        }
        debug_assert!(
            queue.stuck.is_some() || queue.waiting.is_empty(),
            "{} commits wait in a store that is closing",
            queue.waiting.len()
        );
        let Some(e) = queue.stuck.take() else { return };
        let waiting = std::mem::take(&mut queue.waiting);
        drop(queue);
        self.fail(waiting.into(), &e);
        // Notified under the queue's lock: otherwise a thread that has just checked the queue could miss this and sleep
        // for ever.
        let _queue = self.commits.queue.lock();
        self.commits.changed.notify_all();
        self.commits.notification.signal();
    }

    /// Waits until the queue is not full.
    pub(crate) fn shorten_queue(&self) -> Result<()> {
        self.shorten_to(QUEUE_MAX - 1)
    }

    /// Waits until no commit on its way changes this name.
    pub(crate) fn settle_name(&self, path: &Path) -> Result<()> {
        self.write_while(|queue| queue.changes(path))
    }

    /// Waits until at most this many commits are queued; with 0, also until no batch is being written.
    fn shorten_to(&self, most: usize) -> Result<()> {
        self.write_while(|queue| queue.waiting.len() > most || most == 0 && queue.leading)
    }

    /// Writes batches, or waits for the thread that writes them, as long as `must` is true.
    fn write_while(&self, must: impl Fn(&Queue) -> bool) -> Result<()> {
        let mut queue = self.commits.queue.lock();
        let mut led = false;
        while must(&queue) {
            if queue.leading {
                self.commits.changed.wait(&mut queue);
                continue;
            }
            match &queue.stuck {
                Some(e) if led => return Err(e.clone()),
                _ => queue = self.lead(queue),
            }
            led = true;
        }
        Ok(())
    }

    /// Whether commits are queued that no thread is writing.
    pub(crate) fn has_waiting(&self) -> bool {
        let queue = self.commits.queue.lock();
        !queue.waiting.is_empty() && queue.stuck.is_none() && !queue.leading && !self.life.is_closed()
    }

    /// Takes all queued commits and writes them.
    fn lead<'a>(&'a self, mut queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        debug_assert!(!queue.leading, "two threads lead, with {} commits waiting", queue.waiting.len());
        queue.leading = true;
        let mut queue = self.wait_for_others(queue);
        debug_assert!(queue.leading, "another thread ended this one's lead before the batch");
        let batch = std::mem::take(&mut queue.waiting);
        queue.waiters_max = queue.waiters;
        drop(queue);
        batch.iter().for_each(|request| self.statistics.note(Stage::Queue, request.begun.as_ref()));
        let start = Instant::now();
        let (wants_checkpoint, stuck) = {
            let _lead = Lead(self);
            self.write(batch)
        };
        let mut queue = self.commits.queue.lock();
        debug_assert!(queue.leading, "another thread ended this one's lead");
        debug_assert!(
            stuck.is_none() || self.options.in_order,
            "a commit keeps its place: {:?}",
            stuck.as_ref().map(|(_, e)| e)
        );
        queue.leading = false;
        queue.stuck = stuck.map(|(mut left, e)| {
            left.append(&mut queue.waiting);
            queue.waiting = left;
            e
        });
        queue.batch_took = start.elapsed();
        self.commits.changed.notify_all();
        self.commits.notification.signal();
        self.commits.batches.fetch_add(1, Relaxed);
        self.commits.wakeup.note_commit();
        if self.options.background
            && (wants_checkpoint || self.checkpoints.merge_wanted.load(Relaxed) || !queue.waiting.is_empty())
        {
            self.commits.wakeup.wake();
        }
        queue
    }

    /// Waits briefly for threads that shared the last flush, or waited for it, because they are likely to commit again
    /// soon. The wait, of at most a quarter of a flush, spares them a separate flush. A single thread never waits.
    fn wait_for_others<'a>(&'a self, mut queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        let expected = queue.waiters_max;
        if expected <= 1 || queue.waiting.len() >= expected {
            return queue;
        }
        let (start, most) = (Instant::now(), (queue.batch_took / 4).min(JOIN_WAIT_MAX));
        while queue.waiting.len() < expected && start.elapsed() < most {
            drop(queue);
            thread::yield_now();
            queue = self.commits.queue.lock();
        }
        queue
    }
}

// Write.
impl Engine {
    /// Writes commits: as many as share a flush at a time, with more flushes if the journal fills up in between. A
    /// commit with names goes alone, because it is checked against the names that its predecessor left. Returns whether
    /// the journal is filling up, and with `in_order` the remaining batch from a commit on that cannot be written now.
    fn write(&self, mut batch: VecDeque<Request>) -> (bool, Option<(VecDeque<Request>, Error)>) {
        let (mut singles_left, mut waited) = (0, false);
        // Why only the reserved space is left for the next commit.
        let mut no_room: Option<Error> = None;
        let mut wants_checkpoint = false;
        while !batch.is_empty() {
            let plain = batch.iter().take_while(|request| request.names.is_empty()).count();
            let run = if singles_left > 0 { 1 } else { plain.max(1) };
            let requests = &batch.make_contiguous()[..run];
            let mut journal = self.journal.lock();
            let written = self.write_run(requests, &mut journal, no_room.is_some());
            wants_checkpoint = self.wants_checkpoint(&journal);
            let checkpoint_lsn = journal.journal.header().checkpoint_lsn;
            let has_failed = journal.journal.failure().is_some();
            drop(journal);
            let failure = match written {
                Ok(0) => {
                    if !std::mem::replace(&mut waited, true) {
                        self.commits.waited.fetch_add(run as u64, Relaxed);
                    }
                    let tried = no_room.take();
                    let is_last = tried.is_some();
                    match tried.map_or_else(|| self.make_room(checkpoint_lsn), Err) {
                        Ok(()) => continue,
                        // The first commit of the run has no room, but others may have.
                        Err(_) if run > 1 => {
                            singles_left = run;
                            continue;
                        }
                        Err(e) if !is_last => {
                            no_room = Some(e);
                            continue;
                        }
                        Err(e) => e,
                    }
                }
                Ok(n) => {
                    debug_assert!(n <= run, "{n} commits of {run} were written");
                    no_room = None;
                    (singles_left, waited) = (usize::saturating_sub(singles_left, n), false);
                    batch.drain(..n).for_each(|request| {
                        self.settle_names(&request);
                        self.statistics.note(Stage::Commit, request.begun.as_ref());
                        request.completion.complete(Ok(()));
                    });
                    continue;
                }
                // A single commit of the run may be the cause, so the commits are retried one by one.
                Err(_) if run > 1 && !has_failed => {
                    singles_left = run;
                    continue;
                }
                Err(e) => e,
            };
            if self.options.in_order && !has_failed {
                return (wants_checkpoint, Some((batch, failure)));
            }
            singles_left = singles_left.saturating_sub(run);
            (waited, no_room) = (false, None);
            self.fail(batch.drain(..run).collect(), &failure);
        }
        (wants_checkpoint, None)
    }

    /// Truncates the log beyond this LSN by a checkpoint.
    fn make_room(&self, checkpoint_lsn: u64) -> Result<()> {
        self.checkpoints.room_wanted.store(true, Relaxed);
        let begun = self.statistics.begin();
        let done = self.checkpoint_beyond(checkpoint_lsn);
        self.statistics.note(Stage::Room, begun.as_ref());
        self.checkpoints.room_wanted.store(false, Relaxed);
        if self.journal.lock().journal.header().checkpoint_lsn > checkpoint_lsn {
            // Unapplied changes may remain, but they were restated and take no room.
            return Ok(());
        }
        if done.is_err() && self.journal.lock().journal.end_holding_back() {
            return Ok(());
        }
        done?;
        // Name the files that a failed checkpoint quarantined.
        let quarantined = self.journal.lock().dirty.values().find_map(|file| {
            let state = file.read();
            state.quarantine.as_ref().map(|why| format!("{}: {}", state.path().display(), why.cause()))
        });
        Err(Error::NoSpace {
            detail: match quarantined {
                Some(why) => format!("the journal is full and cannot be emptied, because of {why}"),
                None => "the commit is larger than the journal".to_owned(),
            },
        })
    }

    /// Seals as many of these requests as fit, writes and flushes their records, and updates the files' states. Returns
    /// their number; 0 if the journal has no room before a checkpoint. `in_reserved`: small records may use the
    /// reserved space.
    fn write_run(&self, requests: &[Request], journal: &mut JournalState, in_reserved: bool) -> Result<usize> {
        debug_assert!(
            requests.len() == 1 || requests.iter().all(|request| request.names.is_empty()),
            "a change of names is one of {} commits",
            requests.len()
        );
        if let Some(e) = journal.journal.failure() {
            return Err(e);
        }
        if !self.is_durable() && journal.journal.header().boot.is_none() {
            let boot = boot_id(&*self.storage, &self.path)?;
            journal.journal.record_boot(boot)?;
        }
        if !journal.journal.note_open()? {
            return Ok(0);
        }
        self.check_names_applied(requests, journal)?;
        let last_lsn = journal.journal.last_lsn();
        let mut run = RunState::default();
        let mut built: Vec<BuiltRecord> = Vec::with_capacity(requests.len());
        for (request, lsn) in requests.iter().zip(last_lsn + 1..) {
            built.push(self.build_record(request, lsn, &mut run)?);
        }
        // A durable mark behind the last commit is not flushed, so no file's attribute may name it.
        let unflushed = self.set_attributes(&run.without_attribute, journal.journal.durable_lsn())?;
        let records: Vec<Record> = built.iter_mut().map(|s| std::mem::take(&mut s.record)).collect();
        let is_empty = records.iter().all(|r| r.files.is_empty() && r.ops.is_empty());
        let (first, n) = if is_empty {
            // There is nothing to write. The empty overlays are removed here, so that the next commit does not mistake
            // them for its own.
            (last_lsn, requests.len())
        } else {
            let committed = self.write_records(&records, unflushed, journal, in_reserved);
            self.life.note_failure(&journal.journal, &self.path);
            if committed.is_err() {
                // If the outcome is unknown, recovery decides by these.
                requests.iter().zip(last_lsn + 1..).for_each(|(request, lsn)| request.completion.note_lsn(lsn));
            }
            match committed? {
                Committed::Records { first_lsn: first, n } => {
                    self.commits.note_medium(journal.journal.is_in_memory(), &*self.storage);
                    debug_assert!(
                        first == last_lsn + 1 && (1..=records.len()).contains(&n),
                        "{n} of {} records from {first} on, behind {last_lsn}",
                        records.len()
                    );
                    (first, n)
                }
                Committed::Full => return Ok(0),
            }
        };
        for (i, BuiltRecord { files, .. }) in built.into_iter().take(n).enumerate() {
            let lsn = first + i as u64;
            requests[i].completion.note_lsn(if is_empty { last_lsn } else { lsn });
            for part in &files {
                let mut state = part.file.write();
                if part.has_overlay {
                    state.finish_commit();
                    if state.content.committed.wants_merge() {
                        self.checkpoints.merge_wanted.store(true, Relaxed);
                    }
                }
                state.whole_pages.extend(&part.whole_pages);
                if part.index.is_some() {
                    debug_assert!(state.last_lsn < lsn, "{:?}: commit {lsn} after {}", state.path(), state.last_lsn);
                    state.last_lsn = lsn;
                    drop(state);
                    journal.dirty.insert(part.file.id, part.file.clone());
                }
            }
            if !requests[i].names.is_empty() && !records[i].ops.is_empty() {
                let mut names = FinalState::default();
                names.add_record(&records[i], lsn).expect("a record that was built just now");
                self.keep_names(&names, lsn);
                let named: Vec<_> =
                    files.into_iter().filter(|part| part.index.is_some()).map(|part| part.file).collect();
                self.follow_names(&named, names, journal);
                self.tell_named(lsn);
            }
        }
        Ok(n)
    }

    /// Writes and flushes records, after the unflushed attributes or together with them.
    fn write_records(
        &self,
        records: &[Record],
        unflushed: Vec<Marked>,
        journal: &mut JournalState,
        in_reserved: bool,
    ) -> Result<Committed> {
        let begun = self.statistics.begin();
        if !unflushed.is_empty()
            && self.storage.keeps_order()
            && let Some(committed) = journal.journal.commit_appended(records)?
        {
            self.statistics.note_group(begun.as_ref());
            unflushed.iter().for_each(|marked| marked.file.write().attribute_due = false);
            return Ok(committed);
        }
        self.flush_attributes(unflushed)?;
        let begun = self.statistics.begin();
        let committed = match in_reserved {
            true => journal.journal.commit_in_reserved(records)?,
            false => journal.journal.commit(records)?,
        };
        if let Committed::Records { .. } = committed {
            self.statistics.note_group(begun.as_ref());
        }
        Ok(committed)
    }

    /// Notes that the commit has a result, so its names no longer change.
    fn settle_names(&self, request: &Request) {
        if !request.names.is_empty() {
            self.commits.queue.lock().settle(&request.names);
        }
    }
}
