//! Checkpoints: committed changes go into the data files, then the log is truncated.
//!
//! ```text
//! begin       everything committed so far is the checkpoint's part     (short, holds up commits)
//! apply       written to the data files, flushed                       (long, holds up nobody)
//! truncate    a new header gives the records up                        (one flush, holds up nobody)
//! ```
//!
//! While the log has little room, commits that the opening left unapplied are applied in portions,
//! oldest first: each portion is a checkpoint of the commits in some segments of the log, which it frees. The remaining
//! commits are then a part of the checkpoint of everything committed so far. A portion leaves out ranges that later
//! segments overwrite: they stay in the log until a later portion has applied them.

mod apply_file;
mod one_file;
pub(crate) mod restate;
mod side_by_side;
pub(crate) mod throttle;

use crate::engine::files::file_state::{Life, SharedFile};
use crate::engine::waiting::concurrency::unlock_fair;
use crate::engine::{Engine, JournalState};
use crate::invariant;
use crate::sync_point;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use untorn_journal::commits::overlay::Overlay;
use untorn_journal::data_files::create::sync_names;
use untorn_journal::directories::store_dir::make_spare;
use untorn_journal::journal::CheckpointTarget;
use untorn_journal::recovery::flush_one_by_one;
use untorn_journal::statistics::figures::Stage;
use untorn_journal::{Error, Result};
use untorn_os::{File, holds};

/// The state after a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// More commits: a file's attribute must state up to which commit the file is complete.
    More,
    /// A clean journal, which makes the attributes irrelevant: only contents need a flush.
    Clean,
    /// The header of a closed journal, whose flush also makes the data written before it durable.
    Closed,
}

/// The part of one file in a checkpoint.
struct Part {
    file: Arc<SharedFile>,
    overlay: Arc<Overlay>,
    /// Ranges that a portion leaves to the next one.
    rest: Option<Arc<Overlay>>,
    /// An earlier checkpoint has failed, perhaps in flushing this file.
    again: bool,
    /// The checkpoint also covers the file's name, mode or creation.
    names_changed: bool,
}

impl Part {
    /// The changes of the part that the data file still lacks. `None`: they may include a commit that failed.
    /// `failures`: a flush of the whole file system follows, and this many such flushes have failed so far.
    fn to_write(&self, data: &Arc<dyn File>, failures: Option<u64>) -> Result<Option<ToWrite>> {
        let mut state = self.file.write();
        let Some(written) = state.written_first.take() else {
            let (overlay, again) = (self.overlay.clone(), self.again);
            return Ok(Some(ToWrite { overlay, again, first: false, newest: 0 }));
        };
        if self.rest.is_some() {
            // The next portion must not overwrite these bytes either.
            state.written_first = Some(written.clone());
        }
        if state.outcome_unknown {
            return Ok(None);
        }
        let is_told = failures == Some(written.failures);
        let through = || written.through.upgrade().is_some_and(|through| Arc::ptr_eq(&through, data));
        let (again, first) = (self.again || !is_told && !through(), !is_told);
        if written.is_all && !again {
            return Ok(Some(ToWrite { overlay: Arc::default(), again: false, first, newest: 0 }));
        }
        // A commit also wrote newer changes, which older ones must not overwrite.
        let mut overlay = (*self.overlay).clone();
        if holds(invariant::NEWEST_OVER_OLDER) {
            state.content.committed.lay_over(&mut overlay);
        }
        Ok(Some(ToWrite { overlay: Arc::new(overlay), again, first, newest: state.last_lsn }))
    }
}

/// The changes that a checkpoint writes to a data file.
struct ToWrite {
    overlay: Arc<Overlay>,
    /// An earlier flush of the file's data may have failed unnoticed.
    again: bool,
    /// A commit wrote to the file before, and only a flush of that descriptor surely reports a failure of that write:
    /// an error of `syncfs` has been reported to another caller since, or no `syncfs` follows.
    first: bool,
    /// The newest commit among the changes, if it may be newer than the checkpoint.
    newest: u64,
}

/// A checkpoint in progress. If it is dropped after an error, the next one takes over its part.
pub struct Checkpoint<'a> {
    engine: &'a Engine,
    target: CheckpointTarget,
    files: Vec<Part>,
    dirs: BTreeSet<PathBuf>,
    /// It is a portion of the commits that the opening left unapplied.
    is_portion: bool,
    done: bool,
    /// Why a part of it, which was restated, could not be applied.
    waits: Option<Error>,
}

impl Engine {
    /// Makes a complete checkpoint.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        self.checkpoint_beyond(u64::MAX)
    }

    /// Makes a checkpoint, unless the log gets truncated beyond this LSN before everything is applied.
    pub(crate) fn checkpoint_beyond(&self, lsn: u64) -> Result<()> {
        while self.checkpoint_step(lsn)? {}
        Ok(())
    }

    /// Runs one step of a checkpoint, with the limit of [`Self::checkpoint_beyond`]: a portion of the unapplied
    /// commits if commits need room, or everything that remains, with one flush. Returns whether there is another step.
    /// The checkpoint lock is released in between for other waiting checkpoints.
    pub(crate) fn checkpoint_step(&self, lsn: u64) -> Result<bool> {
        let turn = self.checkpoints.lock.lock();
        self.life.check_not_shut_down()?;
        self.commits.forget_file_limit();
        let room = {
            let journal = &self.journal.lock().journal;
            if journal.header().checkpoint_lsn > lsn {
                return Ok(false);
            }
            self.options.journal.journal_bytes.saturating_sub(journal.pending_bytes())
        };
        let is_short = self.checkpoints.room_wanted.load(Relaxed) || room < self.options.journal.journal_bytes / 4;
        let applied = if is_short { self.apply_portion() } else { Ok(false) };
        if let Ok(true) = applied {
            unlock_fair(turn);
            return Ok(true);
        }
        let done = applied.and_then(|_| self.apply_rest());
        self.checkpoints.failed.store(done.is_err(), Relaxed);
        done.map(|()| false)
    }

    /// Applies the next portion of the commits that the opening left unapplied, and truncates the log behind it.
    /// Returns false without such commits, or if a part of the portion cannot be applied: then everything that remains
    /// is applied at once. The caller holds the checkpoint lock.
    fn apply_portion(&self) -> Result<bool> {
        let Some(portion) = self.begin_portion()? else { return Ok(false) };
        let Err(e) = self.finish_checkpoint(portion) else { return Ok(true) };
        tracing::warn!(
            id = "untorn.checkpoint.no_portions",
            error = %e, "the journal is applied as a whole, not in portions"
        );
        self.journal.lock().portions.clear();
        if e.is_failed_flush() { Err(e) } else { Ok(false) }
    }

    fn finish_checkpoint(&self, checkpoint: Checkpoint<'_>) -> Result<()> {
        let begun = self.statistics.begin();
        checkpoint.apply().and_then(Checkpoint::truncate_log)?;
        self.statistics.note(Stage::Checkpoint, begun.as_ref());
        Ok(())
    }

    /// Makes a checkpoint of everything committed so far. The caller holds the checkpoint lock.
    fn apply_rest(&self) -> Result<()> {
        // Merging first shortens the time that the beginning holds up commits.
        self.merge_layers();
        let done = self.with_room(|| match self.begin_checkpoint()? {
            Some(checkpoint) => self.finish_checkpoint(checkpoint),
            None => Ok(()),
        });
        // Also if a part of the checkpoint could not be applied.
        let failed = self.journal.lock().journal.failure().is_some();
        let done = if failed { done } else { done.and(self.forget_unused()) };
        if !failed && !self.checkpoints.has_spare.load(Relaxed) {
            let made =
                make_spare(&*self.storage, &self.store_dir, self.options.journal.segment_bytes_first, self.dir_mode());
            self.checkpoints.has_spare.store(made.is_ok(), Relaxed);
        }
        done
    }

    /// Applies by this function. If a data file finds no room, the journal gives its free segments back, and the function
    /// is called again. The caller holds the checkpoint lock.
    pub(crate) fn with_room(&self, apply: impl Fn() -> Result<()>) -> Result<()> {
        let done = apply();
        let is_full = matches!(done, Err(Error::NoSpace { .. }));
        if is_full && self.journal.lock().journal.give_back()? { apply() } else { done }
    }

    /// Merges the committed layers of each file, while commits continue.
    pub(crate) fn merge_layers(&self) {
        let files: Vec<_> = self.journal.lock().dirty.values().cloned().collect();
        files.iter().for_each(|file| self.merge_layers_of(file));
    }

    fn merge_layers_of(&self, file: &SharedFile) {
        let layers = file.read().content.committed.to_merge();
        if let Some(layers) = layers {
            let merged = layers.merged();
            file.write().content.committed.replace(&layers, merged);
        }
    }

    /// Begins a checkpoint, which covers everything committed so far. The caller holds the checkpoint lock.
    pub(crate) fn begin_checkpoint(&self) -> Result<Option<Checkpoint<'_>>> {
        let mut state = self.journal.lock();
        if let Some(e) = state.journal.failure() {
            return Err(e);
        }
        let target = state.journal.begin_checkpoint();
        if target.checkpoint_lsn == state.journal.header().checkpoint_lsn {
            return Ok(None);
        }
        // Readers that come from now on show everything that the checkpoint overwrites.
        state.journal.publish(target.checkpoint_lsn)?;
        // A caller that makes a checkpoint step by step, as in tests, does not hold the checkpoint lock.
        if self.checkpoints.running.swap(true, Relaxed) {
            return Ok(None);
        }
        debug_assert!(
            target.checkpoint_lsn > state.journal.header().checkpoint_lsn,
            "a checkpoint to {} behind {}",
            target.checkpoint_lsn,
            state.journal.header().checkpoint_lsn
        );
        let mut files = Vec::new();
        self.shared_spill.end();
        state.portions.clear();
        debug_assert!(state.dirty.iter().all(|(id, file)| *id == file.id), "a file waits under another identity");
        for file in std::mem::take(&mut state.dirty).into_values() {
            let mut state = file.write();
            debug_assert!(
                state.last_lsn <= target.checkpoint_lsn,
                "{:?} has commit {}, and the log ends with {}",
                state.path(),
                state.last_lsn,
                target.checkpoint_lsn
            );
            state.whole_pages.clear();
            let (overlay, again) = state.content.begin_applying();
            let names_changed = std::mem::take(&mut state.names_changed);
            drop(state);
            files.push(Part { file, overlay, rest: None, again, names_changed });
        }
        let dirs = std::mem::take(&mut state.dirs);
        Ok(Some(Checkpoint { engine: self, target, files, dirs, is_portion: false, done: false, waits: None }))
    }

    /// Begins a checkpoint of the next portion of the commits that the opening left unapplied. Returns `None` without
    /// such commits. The caller holds the checkpoint lock.
    pub(crate) fn begin_portion(&self) -> Result<Option<Checkpoint<'_>>> {
        let mut state = self.journal.lock();
        let Some(end) = state.portions.front().copied() else { return Ok(None) };
        if let Some(e) = state.journal.failure() {
            return Err(e);
        }
        if self.checkpoints.running.swap(true, Relaxed) {
            return Ok(None);
        }
        debug_assert!(
            state.portions.iter().is_sorted_by(|one, next| one < next),
            "portions are not in order: {:?}",
            state.portions
        );
        let target = state.journal.begin_portion(end);
        let mut files = Vec::new();
        for file in state.dirty.values() {
            let of_file = file.read();
            // A file without ranges in the portion takes part, too: its attribute must cover every commit that is
            // truncated from the log.
            if of_file.unapplied.as_ref().is_none_or(|unapplied| *unapplied.start() > end) {
                continue;
            }
            let all = of_file.content.applying.as_deref();
            let (overlay, rest) = all.map_or_else(Default::default, |all| all.split_at(end));
            if overlay.has_no_ranges() && !holds(invariant::PORTION_REACHES_ALL) {
                continue;
            }
            let rest = (!rest.has_no_ranges() && holds(invariant::PORTION_REST_STAYS)).then(|| Arc::new(rest));
            let (overlay, names_changed) = (Arc::new(overlay), of_file.names_changed);
            drop(of_file);
            files.push(Part { file: file.clone(), overlay, rest, again: true, names_changed });
        }
        let dirs = std::mem::take(&mut state.dirs);
        Ok(Some(Checkpoint { engine: self, target, files, dirs, is_portion: true, done: false, waits: None }))
    }
}

impl<'a> Checkpoint<'a> {
    /// Writes the data files and flushes each through a descriptor that was open before.
    pub fn apply(self) -> Result<Checkpoint<'a>> {
        self.apply_before(After::More)
    }

    pub(crate) fn apply_before(mut self, after: After) -> Result<Checkpoint<'a>> {
        let engine = self.engine;
        engine.free_kept();
        // A commit that needs a name may apply it after the flush below, which then does not cover it.
        let (names_wait, reasons, names_healed) = {
            let mut journal = engine.journal.lock();
            engine.apply_waiting_names(&mut journal);
            self.dirs.append(&mut journal.dirs);
            let unapplied = journal.unapplied.iter();
            let reasons: BTreeMap<_, _> = unapplied
                .flat_map(|waiting| waiting.names.files.keys().map(|id| (*id, waiting.reason.clone())))
                .collect();
            (journal.unapplied.first().map(|waiting| waiting.reason.clone()), reasons, journal.names_healed)
        };
        let one_by_one = flush_one_by_one(&*engine.storage, self.files.len());
        let failures = engine.flush.failures();
        let attribute_unsynced = |part: &Part| !part.overlay.is_empty() && part.file.read().attribute_unsynced;
        if !one_by_one && engine.is_durable() && self.files.iter().any(attribute_unsynced) {
            // A file whose creation could not be applied is not on the disk yet: it gets its attribute, unflushed,
            // later.
            let exists = |part: &&Part| {
                let state = part.file.read();
                state.content.data.is_some() || state.life == Life::Named && !reasons.contains_key(&part.file.id)
            };
            let exist: Vec<_> = self.files.iter().filter(exists).collect();
            engine.sync_file_system(sync_point::ATTRIBUTE_MANY)?;
            exist.into_iter().for_each(|part| part.file.write().attribute_unsynced = false);
        }
        let (mut first_error, mut file_waits, mut waiting) = (None, None, BTreeMap::new());
        let mut removed = BTreeSet::new();
        let failures_before = (!one_by_one && engine.is_durable()).then_some(failures);
        for (part, applied) in self.files.iter().zip(self.apply_files(failures_before, after, &reasons)) {
            match applied {
                Ok(Applied::Done) => {}
                // A later commit removed the file. The removal must be flushed before the log is truncated, because a
                // file that a power cut brought back would lack these changes.
                Ok(Applied::Gone) => {
                    self.dirs.extend(part.file.read().path().parent().map(Path::to_owned));
                    removed.insert(part.file.id);
                }
                Ok(Applied::Not(e)) => {
                    waiting.insert(part.file.id, part.file.clone());
                    file_waits.get_or_insert(e);
                }
                Err(e) => _ = first_error.get_or_insert(e),
            }
        }
        if engine.is_durable() && !one_by_one {
            engine.sync_file_system(sync_point::CHECKPOINT_MANY)?;
            if engine.flush.failures() != failures {
                // The other flush may have reported a failed write of this checkpoint.
                return Err(Error::io("flush", &engine.path, rustix::io::Errno::IO.into()));
            }
        } else if engine.is_durable() && after != After::Closed {
            self.flush_dirs()?;
        }
        // A disk that failed a write or flush may also have lost earlier writes to other files.
        if let Some(e) = first_error {
            return Err(e);
        }
        // A removal that could not be applied is not on the disk.
        let names_wait = names_wait.or_else(|| {
            let journal = engine.journal.lock();
            let gone = |id: &u64| removed.contains(id);
            let waiting = journal.unapplied.iter().find(|unapplied| unapplied.names.files.keys().any(gone));
            waiting.map(|unapplied| unapplied.reason.clone())
        });
        if let Some(reason) = file_waits.or(names_wait) {
            if after != After::More || self.is_portion {
                return Err(reason);
            }
            if !self.restate(&waiting, names_healed)? {
                engine.reserve_for(&mut engine.journal.lock(), &waiting);
                return Err(reason);
            }
            self.waits = Some(reason);
        }
        self.done = true;
        let was_running = self.engine.checkpoints.running.swap(false, Relaxed);
        debug_assert!(was_running, "a checkpoint to {} ends twice", self.target.checkpoint_lsn);
        for part in self.files.iter().filter(|part| !waiting.contains_key(&part.file.id)) {
            let mut state = part.file.write();
            debug_assert!(
                self.is_portion || state.content.applying.is_some(),
                "{:?} has nothing that was applied",
                state.path()
            );
            state.content.applying = part.rest.clone();
            state.applied_lsn = self.target.durable_lsn;
            state.attribute_unsynced = false;
        }
        engine.checkpoints.count.fetch_add(1, Relaxed);
        Ok(self)
    }

    /// Restates changes that could not be applied, so that the log before them can be truncated. Returns false if they
    /// stay where they are.
    fn restate(&self, waiting: &BTreeMap<u64, Arc<SharedFile>>, names_healed: u64) -> Result<bool> {
        let mut state = self.engine.journal.lock();
        // A file that a commit removed meanwhile may still be on the disk: its records stay until the removal is
        // flushed.
        if waiting.values().any(|file| file.read().life == Life::Gone) {
            return Ok(false);
        }
        // Names that were applied after the flush are neither restated nor flushed.
        if state.names_healed != names_healed || !self.engine.restate(&mut state, waiting)? {
            return Ok(false);
        }
        // A mode that could not be set is flushed with its file once it is set.
        let named: Vec<_> = state.unapplied.iter().flat_map(|unapplied| unapplied.files.clone()).collect();
        for file in named {
            let mut of_file = file.write();
            if of_file.life == Life::Named && of_file.content.data.is_some() {
                of_file.names_changed = true;
                drop(of_file);
                state.dirty.insert(file.id, file);
            }
        }
        for part in self.files.iter().filter(|part| waiting.contains_key(&part.file.id)) {
            part.file.write().names_changed |= part.names_changed;
            state.dirty.insert(part.file.id, part.file.clone());
        }
        Ok(true)
    }

    fn flush_dirs(&self) -> Result<()> {
        sync_names(&*self.engine.storage, &self.dirs, sync_point::CHECKPOINT_NAMES)
    }

    /// Truncates the log up to the LSN at which the checkpoint began.
    pub fn truncate_log(self) -> Result<()> {
        debug_assert!(self.done, "the log is truncated to {} before it is applied", self.target.checkpoint_lsn);
        let write = {
            let mut state = self.engine.journal.lock();
            // A disk that failed a flush of the journal may also have lost data-file writes, and reported that to
            // nobody else.
            if let Some(e) = state.journal.failure() {
                return Err(e);
            }
            state.journal.begin_truncate(self.target)?
        };
        write.write()?;
        let mut state = self.engine.journal.lock();
        state.journal.finish_truncate(write);
        debug_assert_eq!(state.journal.header().checkpoint_lsn, self.target.checkpoint_lsn, "the log is truncated");
        if self.is_portion {
            self.finish_portion(&mut state);
        }
        if self.waits.is_none() && state.unapplied.is_empty() {
            state.journal.reserve(None);
        }
        drop(state);
        let mut table = self.engine.files.lock();
        self.files.iter().for_each(|part| table.note_idle(&part.file));
        drop(table);
        self.waits.clone().map_or(Ok(()), Err)
    }
}

impl Checkpoint<'_> {
    /// Removes files without unapplied commits from the next checkpoint.
    fn finish_portion(&self, journal: &mut JournalState) {
        let end = self.target.checkpoint_lsn;
        // Its end alone, unless a caller that makes checkpoints step by step, as in tests, let another one end first.
        journal.portions.retain(|portion| *portion > end);
        for part in &self.files {
            let mut state = part.file.write();
            state.unapplied = state.unapplied.take().filter(|unapplied| *unapplied.end() > end);
            if state.last_lsn <= end {
                state.names_changed = false;
                journal.dirty.remove(&part.file.id);
            }
        }
    }
}

/// The result of applying a file's part of a checkpoint.
enum Applied {
    Done,
    Gone,
    /// The file waits: it is missing or was changed by others, or the system refuses the write or the mode.
    Not(Error),
}

impl Drop for Checkpoint<'_> {
    fn drop(&mut self) {
        self.engine.checkpoints.running.store(false, Relaxed);
        if self.done || !holds(invariant::APPLY_AGAIN) {
            return;
        }
        let mut state = self.engine.journal.lock();
        for Part { file, names_changed, .. } in self.files.drain(..) {
            file.write().names_changed |= names_changed;
            state.dirty.insert(file.id, file);
        }
        state.dirs.append(&mut self.dirs);
    }
}
