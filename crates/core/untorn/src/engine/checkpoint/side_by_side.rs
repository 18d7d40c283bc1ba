//! Applies the files of a checkpoint side by side.
//!
//! The order among files is free: the log stays until all of them are flushed, and a crash before that applies all of
//! them again. Within a file, the attribute comes first and the flush last.

use super::{After, Applied, Checkpoint, Part};
use std::collections::BTreeMap;
use untorn_journal::{Error, Result};
use untorn_os::Threads;

impl Checkpoint<'_> {
    /// Applies all files, also after an error. Returns the results in the order of the files. `failures`: as for
    /// [`Self::apply_file`]; `reasons`: why the names of files could not be applied.
    pub(super) fn apply_files(
        &self,
        failures: Option<u64>,
        after: After,
        reasons: &BTreeMap<u64, Error>,
    ) -> Vec<Result<Applied>> {
        let threads = Threads::of(&*self.engine.storage, self.engine.options.checkpoint_threads);
        threads.each(self.files.len(), |number| self.apply_part(&self.files[number], failures, after, reasons))
    }

    /// Applies one file, and notes why it waits.
    fn apply_part(
        &self,
        part: &Part,
        failures: Option<u64>,
        after: After,
        reasons: &BTreeMap<u64, Error>,
    ) -> Result<Applied> {
        let applied = match self.apply_file(part, failures, after) {
            // That the file does not exist is no useful reason; the reason why its creation could not be applied is.
            Ok(Applied::Not(e)) => Ok(Applied::Not(reasons.get(&part.file.id).cloned().unwrap_or(e))),
            applied => applied,
        };
        let mut state = part.file.write();
        state.quarantine = match &applied {
            Ok(Applied::Done | Applied::Gone) => None,
            Ok(Applied::Not(e)) | Err(e) => Some(e.clone()),
        };
        if let Some(e) = &state.quarantine {
            tracing::warn!(
                id = "untorn.checkpoint.waits",
                file = %state.path().display(), error = %e, "a committed change waits"
            );
        }
        applied
    }
}
