//! Publishes figures of the store for programs that watch it.

use crate::engine::Engine;
use crate::engine::files::file_state::SharedFile;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use untorn_journal::statistics::figures::Figure;
use untorn_journal::undo::keep::Undo;

/// Commits that readers hold, of which so many are counted.
const HELD_MAX: usize = 256;

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
            let numbers = self.numbers(undo);
            let figures = self.statistics.figures(|figures| {
                let publication = figures.number(Figure::Publication) + 1;
                figures.set(Figure::Publication, publication);
                numbers.iter().for_each(|(figure, number)| figures.set(*figure, *number));
            });
            if let Err(e) = undo.page().publish(&figures) {
                tracing::debug!(id = "untorn.figures.failed", error = %e, "figures could not be published");
            }
        }
        is_watched
    }

    /// All numbers but that of the publication. Commits wait for moments only.
    fn numbers(&self, undo: &Undo) -> [(Figure, u64); Figure::ALL.len() - 1] {
        let written = self.storage.counters();
        let (counted, lsn, allocated, pending, has_failed, dirty) = {
            let state = self.journal.lock();
            let journal = &state.journal;
            let dirty: Vec<Arc<SharedFile>> = state.dirty.values().cloned().collect();
            let (allocated, pending) = (journal.allocated_bytes(), journal.pending_bytes());
            (journal.counters(), journal.last_commit_lsn(), allocated, pending, journal.failure().is_some(), dirty)
        };
        let open_files = self.files.lock().len() as u64;
        let (mut memory, mut quarantined) = (0, self.opening.quarantined.len() as u64);
        for file in dirty {
            let state = file.read();
            memory += state.content.memory_bytes();
            quarantined += u64::from(state.quarantine.is_some());
        }
        [
            (Figure::Pid, std::process::id().into()),
            (Figure::Epoch, self.epoch),
            (Figure::OpenNs, u64::try_from(self.statistics.open_for().as_nanos()).unwrap_or(u64::MAX)),
            (Figure::Commits, counted.commits),
            (Figure::Groups, counted.groups),
            (Figure::Waited, self.commits.waited.load(Relaxed)),
            (Figure::Checkpoints, self.checkpoints.count.load(Relaxed)),
            (Figure::Syncs, written.syncs),
            (Figure::BytesWritten, written.bytes_written),
            (Figure::JournalBytesWritten, counted.bytes_written),
            (Figure::Lsn, lsn),
            (Figure::JournalBytesMax, self.options.journal.journal_bytes),
            (Figure::JournalBytesAllocated, allocated),
            (Figure::JournalBytesPending, pending),
            (Figure::OpenFiles, open_files),
            (Figure::MemoryBytes, memory),
            (Figure::Quarantined, quarantined),
            (Figure::Held, undo.page().held(HELD_MAX) as u64),
            (Figure::KeptBytes, undo.bytes()),
            (Figure::Failed, has_failed.into()),
        ]
    }
}
