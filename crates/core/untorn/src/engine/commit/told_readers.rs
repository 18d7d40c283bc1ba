//! What the owner tells readers before it changes names or data files, and what it keeps for those that hold a commit.

use crate::engine::Engine;
use crate::invariant;
use std::sync::atomic::Ordering::SeqCst;
use untorn_journal::Result;
use untorn_journal::directories::store_dir::remove_tree;
use untorn_journal::readers::readers_page::Cell;
use untorn_os::holds;

impl Engine {
    /// Readers learn that data files are about to hold parts of commits up to this one. Waits for those that hold an older
    /// one.
    pub(crate) fn tell_applying(&self, lsn: u64) -> Result<()> {
        self.page.as_ref().map_or(Ok(()), |page| page.raise_applying(lsn))
    }

    /// Readers learn that names are about to be as commits up to this one say. Returns whether files that go are to be
    /// parked, as somebody holds an older commit.
    pub(crate) fn tell_names(&self, lsn: u64) -> bool {
        let Some(page) = self.page.as_ref().filter(|_| holds(invariant::NAMES_TOLD_FIRST)) else { return false };
        let before = (!holds(invariant::PARKED_AFTER_NAMES)).then(|| self.parks(lsn));
        if let Err(e) = page.raise(Cell::NamesTo, lsn) {
            // A disk that takes neither this nor the end of the page takes no change of a name either.
            tracing::error!(store = %self.path.display(), error = %e, "readers were not told of new names");
        }
        before.unwrap_or_else(|| self.parks(lsn))
    }

    /// Whether files that go are to be parked, as names become as commits up to this one say. Whoever takes a lease from now
    /// on sees that names have changed.
    fn parks(&self, lsn: u64) -> bool {
        let parks = self.page.as_ref().is_some_and(|page| page.is_held_before(lsn));
        if parks {
            self.parked_to.fetch_max(lsn, SeqCst);
        }
        parks
    }

    /// As [`Engine::tell_names`], of names that were told before.
    pub(crate) fn parks_waiting(&self) -> bool {
        let told = self.page.as_ref().and_then(|page| page.told(Cell::NamesTo));
        told.is_some_and(|lsn| self.parks(lsn))
    }

    /// Removes the files that are parked, if all of that was for commits up to this one. No commit is on its way meanwhile.
    pub(crate) fn remove_parked(&self, lsn: u64) {
        let parked_to = self.parked_to.load(SeqCst);
        if parked_to == 0 || parked_to > lsn {
            return;
        }
        match remove_tree(&*self.storage, &self.store_dir.parked()) {
            Ok(()) => self.parked_to.store(0, SeqCst),
            Err(e) => tracing::warn!(error = %e, "files that readers held are left"),
        }
    }

    /// Removes the files that are parked once nobody holds a commit any more that has them. Whether some are left.
    pub(crate) fn remove_unheld(&self) -> bool {
        let _no_commit = self.journal.lock();
        let parked_to = self.parked_to.load(SeqCst);
        if parked_to == 0 || !self.page.as_ref().is_some_and(|page| page.is_held_before(parked_to)) {
            self.remove_parked(u64::MAX);
        }
        self.parked_to.load(SeqCst) != 0
    }
}
