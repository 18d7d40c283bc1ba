//! A checkpoint of one file: its data file gets every commit, and the log stays as it is.
//!
//! Recovery still finds the file's commits in the log, and writes the same bytes again. So the file stays this store's:
//! another program may change it only after a checkpoint of the whole store.

use super::{After, Applied, Checkpoint, Part};
use crate::engine::Engine;
use crate::engine::files::file_state::{Life, SharedFile};
use crate::sync_point;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use untorn_journal::Result;
use untorn_journal::data_files::create::sync_names;

impl Engine {
    /// Brings one data file up to everything committed so far, durably.
    pub(crate) fn checkpoint_file(&self, file: &Arc<SharedFile>) -> Result<()> {
        let _turn = self.checkpoints.lock.lock();
        self.life.check_not_shut_down()?;
        self.merge_layers_of(file);
        match self.begin_file(file)? {
            Some(checkpoint) => checkpoint.apply_alone(file),
            None => Ok(()),
        }
    }

    /// Begins a checkpoint of one file. Returns `None` if the data file lacks nothing. The caller holds the checkpoint
    /// lock.
    fn begin_file(&self, file: &Arc<SharedFile>) -> Result<Option<Checkpoint<'_>>> {
        let mut state = self.journal.lock();
        if let Some(e) = state.journal.failure() {
            return Err(e);
        }
        self.apply_waiting_names(&mut state);
        if !state.dirty.contains_key(&file.id) {
            return Ok(None);
        }
        let target = state.journal.begin_checkpoint();
        // Readers that come from now on show everything that is overwritten.
        state.journal.publish(target.checkpoint_lsn)?;
        if self.checkpoints.running.swap(true, Relaxed) {
            return Ok(None);
        }
        let (overlay, again) = file.write().content.begin_applying();
        // The next checkpoint of the store flushes names.
        let part = Part { file: file.clone(), overlay, rest: None, again, names_changed: false };
        let dirs = Default::default();
        Ok(Some(Checkpoint {
            engine: self,
            target,
            files: vec![part],
            dirs,
            is_portion: false,
            done: false,
            waits: None,
        }))
    }
}

impl Checkpoint<'_> {
    fn apply_alone(mut self, file: &Arc<SharedFile>) -> Result<()> {
        self.engine.free_kept();
        let applied = self.apply_file(&self.files[0], None, After::More).and_then(|applied| match applied {
            Applied::Not(e) => Err(e),
            Applied::Done | Applied::Gone => self.flush_name(file),
        });
        let mut state = file.write();
        state.quarantine = applied.as_ref().err().cloned();
        applied?;
        self.done = true;
        state.content.applying = None;
        state.applied_lsn = self.target.durable_lsn;
        state.attribute_unsynced = false;
        Ok(())
    }

    /// Flushes the directory that has the file's name, if a commit gave it that.
    fn flush_name(&self, file: &Arc<SharedFile>) -> Result<()> {
        let parent = {
            let state = file.read();
            let is_due = state.names_changed && state.life == Life::Named && self.engine.is_durable();
            is_due.then(|| state.path().parent().unwrap_or(Path::new("")).to_owned())
        };
        sync_names(&*self.engine.storage, parent, sync_point::CHECKPOINT_NAMES)
    }
}
