//! Writes one data file's part of a checkpoint, unless somebody else changed the file.

use super::{After, Applied, Checkpoint, Part, ToWrite};
use crate::engine::checkpoint::throttle::Throttle;
use crate::engine::content::edited;
use crate::engine::files::file_state::{FileState, Life, SharedFile};
use crate::sync_point;
use std::path::PathBuf;
use std::sync::Arc;
use untorn_journal::data_files::apply::apply_overlay_in_steps;
use untorn_journal::format::{Attribute, AttributeFound};
use untorn_journal::recovery::set_checkpoint_lsn;
use untorn_journal::{Context, Error, Result};
use untorn_os::File;

const FLUSH_ATTRIBUTE: &str = "flush the attribute of";

impl Checkpoint<'_> {
    /// Writes one data file and flushes it. With `failures` ([`Part::to_write`]), a flush of the file system follows
    /// instead.
    pub(super) fn apply_file(&self, part: &Part, failures: Option<u64>, after: After) -> Result<Applied> {
        let Part { file, overlay, names_changed, .. } = part;
        let engine = self.engine;
        let (data, path) = match self.data_file(file) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(Applied::Gone),
            Err(e @ Error::Io { action: FLUSH_ATTRIBUTE, .. }) => return Err(e),
            Err(e) => return Ok(Applied::Not(e)),
        };
        if engine.is_durable() && !overlay.is_empty() && file.read().attribute_unsynced {
            // A crash must not leave a file with contents but without its attribute, which would look like a foreign
            // file.
            data.sync_all(sync_point::ATTRIBUTE).context(FLUSH_ATTRIBUTE, &path)?;
            file.write().attribute_unsynced = false;
        }
        let writing = file.writing.lock();
        let Some(ToWrite { overlay: to_write, again, first, newest }) = part.to_write(&data, failures)? else {
            drop(writing);
            return Err(engine.journal.lock().journal.failure().unwrap_or(Error::Closed));
        };
        // A portion may have the length that the file has after later commits of those that the opening left unapplied.
        let of_portion = if self.is_portion { engine.opening.last_lsn } else { 0 };
        let to = self.target.checkpoint_lsn.max(newest).max(of_portion);
        if let Err(e) = engine.keep_contents(&*data, &to_write, to, &path) {
            return Ok(Applied::Not(e));
        }
        if again && engine.is_durable() {
            data.forget_cached().context("drop the cache of", &path)?;
        }
        let least = engine.clone_bytes_least();
        let mut throttle = Throttle::new(engine, &*data, &path);
        let applied = apply_overlay_in_steps(&*data, &to_write, &path, least, &mut |bytes| throttle.wrote(bytes));
        let restored = applied.is_ok().then(|| file.read().restore_mode(&*engine.storage, &*data));
        // Even a write that failed half-way has changed the file, and the change is this process's own.
        let meta = data.meta();
        {
            let content = &mut file.write().content;
            content.last_stat = meta.as_ref().ok().copied();
            content.base_size = meta.as_ref().map_or(content.base_size, |meta| meta.size);
        }
        drop(writing);
        if let Some(Err(e)) = restored {
            // The mode is refused now, though it was not at the commit: the file waits, and does not hold up others.
            return Ok(Applied::Not(e));
        }
        let contents_only = after != After::More && !names_changed;
        let applied = applied.and(meta.map(drop).context("look at", &path)).and_then(|()| match contents_only {
            true => Ok(()),
            false => set_checkpoint_lsn(&*data, self.target.durable_lsn, &path).map_err(|e| Error::attribute(&path, e)),
        });
        if let Err(e) = applied {
            if e.is_failed_flush() {
                return Err(e);
            }
            // Even if a part was written, everything is written again.
            return Ok(Applied::Not(e));
        }
        if (failures.is_none() || first) && engine.is_durable() {
            // After a failure the kernel may report success for the next flush, so the overlay stays, and is written
            // again as a whole.
            let flushed = match after {
                After::Closed => data.write_out(sync_point::CONTENTS_OUT),
                _ if contents_only => data.sync_data(sync_point::CHECKPOINT_DATA),
                _ => data.sync_all(sync_point::CHECKPOINT_DATA),
            };
            flushed.context("flush", &path)?;
        } else if engine.is_durable() && engine.options.checkpoint_threads > 1 {
            // The device begins while other files are being written.
            data.begin_write_out(0, 0);
        }
        Ok(Applied::Done)
    }

    /// The data file, if no other program changed it, and its name; `None` if the file is gone.
    fn data_file(&self, file: &Arc<SharedFile>) -> Result<Option<(Arc<dyn File>, PathBuf)>> {
        loop {
            {
                let _names = self.engine.steady_names();
                let state = file.read();
                if state.life == Life::Gone {
                    return Ok(None);
                }
                if let Some(data) = &state.content.data {
                    return match state.changed_outside(&*self.engine.storage, |meta| self.engine.own_links(meta))? {
                        Some(changed) => {
                            self.disown(file.id, &state)?;
                            Err(changed)
                        }
                        None => Ok(Some((data.clone(), state.path().to_owned()))),
                    };
                }
            }
            // Needed also if the file was closed just now to free a descriptor.
            self.engine.reopen(file)?;
        }
    }

    /// Gives a file that another program edited in place an identity that no journal knows, so that recovery does not
    /// overwrite the edit. If this fails, this owner still reports the conflict. A file that was only moved, or given a
    /// second name, keeps its identity, so that it is recognised when that is undone.
    fn disown(&self, id: u64, state: &FileState) -> Result<()> {
        let (Some(data), Some(last)) = (&state.content.data, state.content.last_stat) else { return Ok(()) };
        if data.meta().is_ok_and(|now| edited(&now, &last))
            && let Ok(value) = data.attribute()
            && let AttributeFound::Valid(a) = Attribute::decode(value.as_deref())
            && a.file == id
            && data.set_attribute(&Attribute { file: !id, ..a }.encode()).is_ok()
        {
            data.sync_all(sync_point::ATTRIBUTE).context(FLUSH_ATTRIBUTE, state.path())?;
        }
        Ok(())
    }
}
