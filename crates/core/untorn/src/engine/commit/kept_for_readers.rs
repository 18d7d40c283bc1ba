//! Data that a change overwrites, and that readers of older commits still need, is kept before the change.

use crate::engine::Engine;
use std::path::Path;
use untorn_journal::commits::final_state::FinalState;
use untorn_journal::commits::overlay::Overlay;
use untorn_journal::undo::keep::Undo;
use untorn_journal::undo::kept_links::KeptLinks;
use untorn_journal::{Error, Result};
use untorn_os::{File, Meta};

impl Engine {
    /// Keeps the contents that this overlay is about to overwrite, for readers of commits before `to`.
    pub(crate) fn keep_contents(&self, data: &dyn File, overlay: &Overlay, to: u64, path: &Path) -> Result<()> {
        self.undo.as_ref().map_or(Ok(()), |undo| undo.keep_contents(data, overlay, to, path))
    }

    /// Keeps the files and directories to which the names of this commit led, before the names change on the disk.
    pub(crate) fn keep_names(&self, names: &FinalState, lsn: u64) {
        let Some(undo) = &self.undo else { return };
        let Err(e) = undo.keep_names(names, lsn) else { return };
        tracing::error!(
            id = "untorn.snapshot.all_ended",
            store = %self.path.display(), error = %e, "all snapshots end: old names cannot be kept"
        );
        // The commit is durable, so its names change all the same.
        if let Err(e) = self.end_readers() {
            tracing::error!(
                id = "untorn.readers.not_told",
                store = %self.path.display(), error = %e, "readers were not told"
            );
        }
    }

    /// Ends all snapshots, because later changes are not shown to readers.
    pub(crate) fn end_readers(&self) -> Result<()> {
        self.undo.as_ref().map_or(Ok(()), |_| Undo::end(&*self.storage, &self.store_dir))
    }

    /// Notes that the names of commits up to this one are on the disk.
    pub(crate) fn tell_named(&self, lsn: u64) {
        if let Some(undo) = &self.undo {
            undo.tell_named(lsn);
        }
    }

    /// Names of files in the undo directory.
    pub(crate) fn kept_links(&self) -> KeptLinks {
        self.undo.as_ref().map(|undo| undo.links()).unwrap_or_default()
    }

    /// How many names a file has, without those that are kept for readers.
    pub(crate) fn own_links(&self, meta: &Meta) -> u64 {
        if meta.links <= 1 {
            return meta.links;
        }
        self.kept_links().own_links(meta)
    }

    /// Frees kept data that no reader needs any more. Returns whether something is left.
    pub(crate) fn free_kept(&self) -> bool {
        let Some(undo) = &self.undo else { return false };
        let freed = || -> Result<bool> {
            let state = &mut *self.journal.lock();
            let is_left = undo.free()?;
            state.journal.free_kept_log()?;
            Ok(is_left || state.journal.kept_bytes() > 0)
        };
        freed().unwrap_or_else(|e: Error| {
            tracing::warn!(
                id = "untorn.readers.kept_data_stays",
                store = %self.path.display(), error = %e, "data that was kept for readers stays"
            );
            true
        })
    }
}
