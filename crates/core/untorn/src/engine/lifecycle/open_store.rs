//! An open store from its opening to its end.

use crate::engine::checkpoint::After;
use crate::engine::commit::ticket::Ticket;
use crate::engine::lifecycle::background;
use crate::engine::options::StoreOptions;
use crate::engine::paths::error_paths::error_in_store;
use crate::engine::waiting::completion::Completion;
use crate::engine::waiting::concurrency::{AtomicBool, AtomicU64, Condvar, Mutex, RwLock};
use crate::engine::{Engine, JournalState};
use crate::sync_point;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use untorn_journal::directories::store_dir::{StoreDir, StoreLock};
use untorn_journal::format::UNCLOSED_MAX;
use untorn_journal::recovery::{OpenOptions, Opened, clear_pending, flush_one_by_one, open};
use untorn_journal::scanning::scan::note_lost_flush;
use untorn_journal::{Context, Result};
use untorn_os::{Storage, process_generation};

/// What the handles of a store hold. When the last handle goes, the store closes then and there, whatever the
/// background thread is doing.
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
    /// The handle of a commit that was submitted.
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
        let how = OpenOptions {
            journal: options.journal,
            create: options.create,
            wait: options.wait,
            accept_unknown: options.accept_unknown,
            salvage: options.salvage,
            // What cannot be written could not be restated: whole pages are in the log only.
            redo: options.redo || options.full_page,
            progress,
        };
        let Opened { journal, store_lock, recovered, quarantined, carried, has_spare } =
            open(&storage, &store_dir, &how).map_err(|e| error_in_store(e, &path))?;
        for q in &quarantined {
            tracing::warn!(file = %q.path.display(), reason = %q.reason, "file quarantined");
        }
        if recovered.commits > 0 {
            let (commits, files) = (recovered.commits, recovered.files);
            tracing::info!(store = %path.display(), commits, files, "recovered a store that was not closed");
        }
        for note in &recovered.notes {
            tracing::warn!(store = %path.display(), note, "recovery");
        }
        let file_bytes_max = journal.file_bytes_max()?;
        let engine = Arc::new(Engine {
            file_bytes_max,
            storage,
            store_dir,
            path,
            options: options.clone(),
            epoch: journal.epoch(),
            store_id: journal.store(),
            generation: process_generation(),
            recovered,
            quarantined,
            found: journal.header().clone(),
            found_lsn: journal.last_lsn(),
            carried: carried.files.iter().map(|file| file.state.id).collect(),
            checkpoint_turn: Mutex::new(()),
            page: journal.readers_page().cloned(),
            parked_to: AtomicU64::new(0),
            journal: Mutex::new(JournalState::new(journal)),
            closing: Mutex::new(()),
            closed: AtomicBool::new(false),
            shut_down: AtomicBool::new(false),
            renaming: RwLock::default(),
            queue: Mutex::default(),
            queue_changed: Condvar::new(),
            files: Mutex::default(),
            wakeup: Arc::default(),
            failed: AtomicBool::new(false),
            next_txn: AtomicU64::new(1),
            commits_waited: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            checkpoints: AtomicU64::new(0),
            flushing: Mutex::new(()),
            flush_failures: AtomicU64::new(0),
            checkpointing: AtomicBool::new(false),
            room_wanted: AtomicBool::new(false),
            checkpoint_failed: AtomicBool::new(false),
            merge_wanted: AtomicBool::new(false),
            has_spare: AtomicBool::new(has_spare),
        });
        engine.take_over(carried);
        if engine.found.unclosed.len() == UNCLOSED_MAX {
            // Soon one of them would not be known any more.
            engine.clear_left_marks(true)?;
        }
        if options.background {
            background::start(&engine)?;
        }
        Ok(Arc::new(OpenStore { engine, lock: Mutex::new(Some(store_lock)) }))
    }

    /// Closes: finishes commits, checkpoints, leaves plain, whole files.
    pub(crate) fn close(&self) -> Result<()> {
        self.check_fork()?;
        let _closing = self.closing.lock();
        if self.closed.swap(true, SeqCst) {
            return Ok(());
        }
        if let Some(page) = &self.page {
            page.begin_end();
        }
        self.drain();
        self.fail_stuck();
        self.wakeup.stop();
        let done = {
            let _turn = self.checkpoint_turn.lock();
            let done = self.close_journal();
            self.leave_readers();
            self.shut_down.store(true, SeqCst);
            done
        };
        for file in self.files.lock().take_all() {
            // Handles and maps may stay; the claims on the files end here.
            let mut state = file.write();
            if state.handles > 0 && state.txn.is_none() {
                state.tell_what_is_discarded(&self.path);
            }
            state.content.data = None;
            if let Some(region) = &mut state.region {
                region.release();
            }
        }
        // Whatever happened, the store is free for the next owner, who recovers it if need be.
        if let (Some(lock), Ok(())) = (self.lock.lock().take(), &done) {
            lock.release();
        }
        done
    }

    /// The caller has the checkpoints' turn.
    fn close_journal(&self) -> Result<()> {
        {
            let state = self.journal.lock();
            if let Some(e) = state.journal.failure() {
                // The failed commits must not be applied: the journal stays pending.
                return Err(e);
            }
            if !state.journal.is_dirty() && !state.journal.header().marks_left {
                return Ok(());
            }
        }
        let by_one_flush = self.is_durable() && self.storage.keeps_order();
        if let Some(checkpoint) = self.begin_checkpoint()? {
            checkpoint.apply_before(if by_one_flush { After::Closed } else { After::Clean })?;
        }
        let with_attribute: Vec<_> = self.files.lock().all().filter(|f| f.read().attribute_set).cloned().collect();
        // The files hold everything, durably: nobody has to wait for the journal any more, wherever a file goes.
        let left = self.clear_left_marks(!by_one_flush)?;
        for one in &left {
            tracing::warn!(store = %self.path.display(), "{}", one.problem());
        }
        if !left.is_empty() && !self.journal.lock().journal.is_dirty() {
            // As it was found.
            return Ok(());
        }
        let mut cleared = Vec::new();
        for file in with_attribute {
            if let Ok(state) = self.changeable(&file)
                && let Some(data) = &state.content.data
                && clear_pending(&**data, self.store_id, file.id)
            {
                cleared.push((data.clone(), state.path().to_owned()));
            } else {
                self.journal.lock().journal.keep_epoch();
            }
        }
        if by_one_flush {
            if self.journal.lock().journal.write_closed_header()? {
                return Ok(());
            }
            self.storage.sync_file_system(sync_point::CLEARED).context("flush", &self.path)?;
        } else if self.is_durable() && !flush_one_by_one(&*self.storage, cleared.len()) {
            self.storage.sync_file_system(sync_point::CLEARED).context("flush", &self.path)?;
        } else if self.is_durable() {
            for (data, path) in cleared {
                data.sync_all(sync_point::CLEARED).context("flush the attribute of", path)?;
            }
        }
        if !self.is_durable()
            && let Err(e) = self.storage.sync_file_system(sync_point::RECOVER_DATA).context("flush", &self.path)
        {
            // What it lost, no later flush brings back.
            let _ = note_lost_flush(&*self.storage, &self.store_dir.journal());
            return Err(e);
        }
        self.journal.lock().journal.write_clean_header()?;
        Ok(())
    }

    /// Waits for who holds a commit; then readers learn that nothing of what follows is told. What was read is as durable as
    /// it was.
    pub(crate) fn leave_readers(&self) {
        if let Some(Err(e)) = self.page.as_ref().map(|page| page.end()) {
            tracing::warn!(store = %self.path.display(), error = %e, "readers were not told that the store is closed");
        }
        self.remove_parked(u64::MAX);
    }

    /// Nothing of the store is left on disk: there is nothing to close.
    pub(crate) fn forget(&self) {
        self.closed.store(true, SeqCst);
    }
}

impl Drop for OpenStore {
    fn drop(&mut self) {
        if self.check_fork().is_err() {
            // In a forked child everything of the store is closed already.
            return;
        }
        if let Err(e) = self.close() {
            tracing::error!(store = %self.path.display(), error = %e, "closing failed");
        }
    }
}
