//! Publishes figures of the store for programs that watch it.

use crate::engine::Engine;
use crate::engine::lifecycle::status::Status;
use std::sync::Arc;
use untorn_journal::statistics::figures::{Figure, Figures};

impl Engine {
    /// Looks for watchers, and publishes figures for them. Returns whether somebody watches.
    pub(crate) fn tell_watchers(&self) -> bool {
        let Some(undo) = &self.undo else { return false };
        if !self.statistics.is_due() {
            return self.statistics.is_watched();
        }
        let is_watched = undo.page().is_watched();
        if self.statistics.set_watched(is_watched) != is_watched {
            let statistics = self.statistics.clone();
            let note = move || statistics.note_written();
            self.journal.lock().journal.call_when_written(is_watched.then(|| Arc::new(note) as _));
        }
        if is_watched {
            let status = Status::of(self);
            let figures = self.statistics.figures(|figures| self.complete(figures, &status));
            if let Err(e) = undo.page().publish(&figures) {
                tracing::debug!(id = "untorn.figures.failed", error = %e, "figures could not be published");
            }
        }
        is_watched
    }

    fn complete(&self, figures: &mut Figures, status: &Status) {
        let publication = figures.number(Figure::Publication) + 1;
        for figure in Figure::ALL {
            let number = match figure {
                Figure::Publication => publication,
                Figure::Pid => std::process::id().into(),
                Figure::Epoch => self.epoch,
                Figure::OpenNs => u64::try_from(self.statistics.open_for().as_nanos()).unwrap_or(u64::MAX),
                Figure::Commits => status.commits,
                Figure::Groups => status.commit_groups,
                Figure::Waited => status.commits_waited,
                Figure::Checkpoints => status.checkpoints,
                Figure::Syncs => status.syncs,
                Figure::BytesWritten => status.bytes_written,
                Figure::JournalBytesWritten => status.journal_bytes_written,
                Figure::Lsn => status.lsn,
                Figure::JournalBytesMax => status.journal_bytes_max,
                Figure::JournalBytesAllocated => status.journal_bytes_allocated,
                Figure::JournalBytesPending => status.journal_bytes_pending,
                Figure::OpenFiles => status.open_files,
                Figure::MemoryBytes => status.memory_bytes,
                Figure::Quarantined => status.quarantined.len() as u64,
                Figure::Held => status.held.len() as u64,
                Figure::KeptBytes => status.kept_bytes,
                Figure::Failed => status.failed.is_some().into(),
            };
            figures.set(figure, number);
        }
    }
}
