//! An open store from its opening to its close.

use crate::engine::checkpoint::After;
use crate::engine::commit::ticket::Ticket;
use crate::engine::lifecycle::background;
use crate::engine::lifecycle::left_marks::LeftMark;
use crate::engine::options::StoreOptions;
use crate::engine::parts::checkpoints::Checkpoints;
use crate::engine::parts::commit_queue::CommitQueue;
use crate::engine::parts::file_system_flush::FileSystemFlush;
use crate::engine::parts::life::Life;
use crate::engine::parts::opening::Opening;
use crate::engine::parts::shared_spill::SharedSpill;
use crate::engine::parts::statistics::Statistics;
use crate::engine::paths::error_paths::error_in_store;
use crate::engine::waiting::completion::Completion;
use crate::engine::waiting::concurrency::{AtomicBool, Mutex, RwLock};
use crate::engine::waiting::remote_slot::RemoteSlot;
use crate::engine::{Engine, JournalState};
use crate::sync_point;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_journal::directories::store_dir::{StoreDir, StoreLock};
use untorn_journal::format::UNCLOSED_MAX;
use untorn_journal::journal::Journal;
use untorn_journal::readers::epochs::known_epochs;
use untorn_journal::recovery::{OpenOptions, Opened, clear_pending, flush_one_by_one, open};
use untorn_journal::scanning::scan::note_lost_flush;
use untorn_journal::slots::epochs::{EpochStart, Epochs};
use untorn_journal::slots::slot_dir::SlotDir;
use untorn_journal::{Context, Result};
use untorn_os::Storage;

/// The shared part of a store's handles. When the last handle is dropped, the store closes at once, even while the
/// background thread works.
pub(crate) struct OpenStore {
    engine: Arc<Engine>,
    lock: Mutex<Option<StoreLock>>,
}

impl Deref for OpenStore {
    type Target = Engine;
    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl OpenStore {
    /// The ticket of a submitted commit.
    pub(crate) fn ticket(&self, completion: Arc<Completion>) -> Ticket {
        Ticket::new(&self.engine, completion)
    }

    pub(crate) fn open(
        storage: Arc<dyn Storage>,
        store_dir: StoreDir,
        path: PathBuf,
        options: &StoreOptions,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Arc<OpenStore>> {
        options.check()?;
        let epochs = options.remote.is_some().then(|| known_epochs(&*storage, &store_dir, &[]).ok()).flatten();
        let how = OpenOptions {
            journal: options.journal,
            create: options.create,
            wait: options.wait,
            accept_unknown: options.accept_unknown,
            salvage: options.salvage,
            // With `full_page`, redo now: if a write failed later, the pages could not be restated, because whole pages
            // are in the log only.
            redo: options.redo || options.full_page,
            progress,
        };
        let Opened { journal, store_lock, recovered, quarantined, unapplied, has_spare } =
            open(&storage, &store_dir, &how).map_err(|e| error_in_store(e, &path))?;
        for q in &quarantined {
            tracing::warn!(
                id = "untorn.recovery.quarantined",
                file = %q.path.display(), reason = %q.reason, "file quarantined"
            );
        }
        if recovered.commits > 0 {
            let (commits, files) = (recovered.commits, recovered.files);
            tracing::info!(
                id = "untorn.recovery.done",
                store = %path.display(), commits, files, "recovered a store that was not closed"
            );
        }
        for note in &recovered.notes {
            tracing::warn!(id = "untorn.recovery.note", store = %path.display(), note, "recovery has a note");
        }
        let file_bytes_max = journal.file_bytes_max()?;
        let commits = CommitQueue::new();
        let epochs = epochs.map(|(_, epochs)| epochs);
        let remote = remote_slot(&storage, (&store_dir, &path), options, (&journal, epochs), &commits)
            .map_err(|e| error_in_store(e, &path))?;
        let engine = Arc::new(Engine {
            file_bytes_max,
            storage,
            store_dir,
            path,
            options: options.clone(),
            epoch: journal.epoch(),
            store_id: journal.store(),
            opening: Opening {
                recovered,
                quarantined,
                unapplied: unapplied.files.iter().map(|file| file.state.id).collect(),
                header: journal.header().clone(),
                last_lsn: journal.last_lsn(),
            },
            life: Life::new(),
            checkpoints: Checkpoints { has_spare: AtomicBool::new(has_spare), ..Checkpoints::default() },
            undo: journal.undo().cloned(),
            journal: Mutex::new(JournalState::new(journal)),
            renaming: RwLock::default(),
            files: Mutex::default(),
            commits,
            flush: FileSystemFlush::default(),
            shared_spill: SharedSpill::default(),
            statistics: Arc::new(Statistics::new()),
            remote,
        });
        engine.take_over(unapplied);
        if engine.opening.header.unclosed.len() == UNCLOSED_MAX {
            // The list is full, and would soon drop one of them.
            engine.clear_left_marks(true)?;
        }
        if options.background {
            background::start(&engine)?;
        }
        Ok(Arc::new(OpenStore { engine, lock: Mutex::new(Some(store_lock)) }))
    }

    /// Closes the store: finishes commits, makes a checkpoint, and leaves plain, complete files.
    pub(crate) fn close(&self) -> Result<()> {
        self.life.check_fork()?;
        let Some(_closing) = self.life.close() else { return Ok(()) };
        self.drain();
        self.fail_stuck();
        self.commits.wakeup.stop();
        self.end_remote();
        let done = {
            let _turn = self.checkpoints.lock.lock();
            let done = self.close_journal();
            self.free_kept();
            self.life.shut_down();
            done
        };
        for file in self.files.lock().take_all() {
            // Handles and maps may remain, but the claims on the files end here.
            let mut state = file.write();
            if state.handles > 0 && state.txn.is_none() {
                state.tell_what_is_discarded(&self.path);
            }
            state.content.data = None;
            if let Some(region) = &mut state.region {
                region.release();
            }
        }
        // In any case, the store is free for the next owner, which recovers it if necessary.
        if let (Some(lock), Ok(())) = (self.lock.lock().take(), &done) {
            lock.release();
        }
        done
    }

    /// Closes the journal. The caller holds the checkpoint lock.
    fn close_journal(&self) -> Result<()> {
        let is_dirty = {
            let state = self.journal.lock();
            if let Some(e) = state.journal.failure() {
                // The failed commits must not be applied, so the journal stays pending.
                return Err(e);
            }
            let is_dirty = state.journal.is_dirty();
            if !is_dirty && !state.journal.header().marks_left {
                return Ok(());
            }
            is_dirty
        };
        let by_one_flush = self.is_durable() && self.storage.keeps_order();
        let after = if by_one_flush { After::Closed } else { After::Clean };
        self.with_room(|| match self.begin_checkpoint()? {
            Some(checkpoint) => checkpoint.apply_before(after).map(drop),
            None => Ok(()),
        })?;
        let with_attribute: Vec<_> = self.files.lock().all().filter(|f| f.read().attribute_set).cloned().collect();
        // The files durably hold everything, so no file needs the journal any more, even if it is moved.
        let left = self.clear_left_marks(!by_one_flush)?;
        for one in &left {
            tracing::warn!(
                id = "untorn.recovery.older_mark",
                store = %self.path.display(),
                problem = %one.problem(),
                "a file keeps a mark of an earlier owner"
            );
        }
        if !left.is_empty() && !self.journal.lock().journal.is_dirty() {
            // The journal stays as it was found.
            return Ok(());
        }
        // Files to flush one by one. Of more files, none is kept open.
        let (mut cleared, mut count) = (Vec::new(), 0);
        let one_by_one = |count| self.is_durable() && !by_one_flush && flush_one_by_one(&*self.storage, count);
        for file in with_attribute {
            let reason = match self.changeable(&file) {
                Ok(state) => match &state.content.data {
                    Some(data) if clear_pending(&**data, self.store_id, file.id) => {
                        count += 1;
                        match one_by_one(count) {
                            true => cleared.push((data.clone(), state.path().to_owned())),
                            false => cleared.clear(),
                        }
                        continue;
                    }
                    _ => "its attribute `user.untorn` cannot be changed".to_owned(),
                },
                Err(e) => e.to_string(),
            };
            // The next owner knows the epoch, and clears the mark.
            let left = LeftMark { path: file.read().path().to_owned(), reason, seen: true };
            tracing::warn!(
                id = "untorn.store.mark_stays",
                store = %self.path.display(),
                problem = %left.problem(),
                "a file keeps the mark of this store"
            );
            self.journal.lock().journal.keep_epoch();
        }
        if by_one_flush {
            let mut state = self.journal.lock();
            state.assert_applied();
            if state.journal.write_closed_header()? {
                return Ok(());
            }
            drop(state);
            self.storage.sync_file_system(sync_point::CLEARED).context("flush", &self.path)?;
        } else if self.is_durable() && !one_by_one(count) {
            self.storage.sync_file_system(sync_point::CLEARED).context("flush", &self.path)?;
        } else if self.is_durable() {
            for (data, path) in cleared {
                data.sync_all(sync_point::CLEARED).context("flush the attribute of", path)?;
            }
        }
        if !self.is_durable()
            && let Err(e) = self.storage.sync_file_system(sync_point::RECOVER_DATA).context("flush", &self.path)
        {
            if is_dirty {
                // No later flush brings lost data back.
                let _ = note_lost_flush(&*self.storage, &self.store_dir.journal());
            }
            return Err(e);
        }
        let mut state = self.journal.lock();
        state.assert_applied();
        state.journal.write_clean_header()?;
        Ok(())
    }

    /// Marks the store as closed, because none of it is left on the disk.
    pub(crate) fn forget(&self) {
        drop(self.life.close());
        self.end_remote();
    }

    /// Ends the waiting for the slot: nobody writes commits any more.
    fn end_remote(&self) {
        if let Some(remote) = &self.remote {
            remote.close();
        }
    }
}

/// The slot that the options name, with the epochs of the store. `found`: those before this opening.
fn remote_slot(
    storage: &Arc<dyn Storage>,
    (store_dir, path): (&StoreDir, &Path),
    options: &StoreOptions,
    (journal, found): (&Journal, Option<Epochs>),
    commits: &CommitQueue,
) -> Result<Option<Arc<RemoteSlot>>> {
    let Some((name, how)) = &options.remote else { return Ok(None) };
    let slot = SlotDir::of(store_dir, name)?;
    let listed = Epochs::read(&**storage, store_dir, &journal.store())?;
    let mut epochs = listed.or(found).unwrap_or_default();
    if !epochs.has(journal.epoch()) {
        epochs.push(EpochStart { epoch: journal.epoch(), first_lsn: journal.last_lsn() + 1 });
    }
    let notification = commits.notification.clone();
    let remote = RemoteSlot::new(storage.clone(), path, (slot, *how), epochs, options.background, notification);
    Ok(Some(Arc::new(remote)))
}

impl Drop for OpenStore {
    fn drop(&mut self) {
        if self.life.check_fork().is_err() {
            // In a forked child, all descriptors of the store are closed already.
            return;
        }
        if let Err(e) = self.close() {
            tracing::error!(
                id = "untorn.store.close_failed",
                store = %self.path.display(), error = %e, "closing a store failed"
            );
        }
    }
}
