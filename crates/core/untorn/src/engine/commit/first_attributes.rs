//! The attributes that files get before their first commit in an epoch: they tie a file to its store and its journal.

use crate::engine::Engine;
use crate::engine::files::file_state::{Life, SharedFile};
use crate::sync_point;
use std::path::PathBuf;
use std::sync::Arc;
use untorn_journal::format::{Attribute, VERSION};
use untorn_journal::recovery::flush_one_by_one;
use untorn_journal::statistics::figures::Stage;
use untorn_journal::{Context, Error, Result};
use untorn_os::File;

/// A file whose attribute is set but not flushed.
pub(super) struct Marked {
    pub file: Arc<SharedFile>,
    data: Option<Arc<dyn File>>,
    path: PathBuf,
}

impl Engine {
    /// Gives files their attributes, before the record of their first commit in this epoch. Returns those whose
    /// attribute must be flushed before that record, or with it.
    pub(super) fn set_attributes(&self, files: &[Arc<SharedFile>], checkpoint_lsn: u64) -> Result<Vec<Marked>> {
        let mut set = Vec::new();
        for file in files {
            let mut state = self.changeable(file)?;
            // Only a commit takes a name away, and the caller holds the journal's lock.
            debug_assert_eq!(state.life, Life::Named, "an attribute for {:?}", state.path());
            let Some(data) = state.content.data.clone() else { continue };
            let path = state.path().to_owned();
            if let Some(changed) = state.changed_outside(&*self.storage, |meta| self.own_links(meta))? {
                return Err(changed);
            }
            let attribute = Attribute {
                version: VERSION,
                store: self.store_id,
                file: file.id,
                epoch: self.epoch,
                checkpoint_lsn,
                path_crc: Attribute::path_crc_of(&path),
                pending: true,
            };
            data.set_attribute(&attribute.encode()).map_err(|e| Error::attribute(&path, e))?;
            state.last_lsn = checkpoint_lsn;
            state.applied_lsn = checkpoint_lsn;
            (state.attribute_set, state.attribute_due) = (true, self.is_durable());
            if self.is_durable() {
                // A flush of the whole file system needs no descriptors.
                let data = flush_one_by_one(&*self.storage, files.len()).then_some(data);
                set.push(Marked { file: file.clone(), data, path });
            }
        }
        Ok(set)
    }

    /// Flushes attributes that were all set before: on most file systems, the first flush makes the others durable,
    /// too.
    pub(super) fn flush_attributes(&self, files: Vec<Marked>) -> Result<()> {
        let begun = if files.is_empty() { None } else { self.statistics.begin() };
        if files.iter().any(|marked| marked.data.is_none()) {
            self.sync_file_system(sync_point::ATTRIBUTE_MANY)?;
        }
        for Marked { file, data, path } in files {
            if let Some(data) = data {
                data.sync_all(sync_point::ATTRIBUTE).context("flush the attribute of", &path)?;
            }
            file.write().attribute_due = false;
        }
        self.statistics.note(Stage::Attributes, begun.as_ref());
        Ok(())
    }
}
