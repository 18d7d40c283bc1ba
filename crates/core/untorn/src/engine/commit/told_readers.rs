//! Announcements to readers before names or data files change, and files that are kept for readers of older commits.

use crate::engine::Engine;
use crate::invariant;
use std::sync::atomic::Ordering::SeqCst;
use untorn_journal::Result;
use untorn_journal::directories::store_dir::remove_tree;
use untorn_journal::readers::readers_page::Cell;
use untorn_os::holds;

impl Engine {
    /// Announces that data files are about to hold parts of commits up to this one. First waits for readers that hold
    /// an older commit.
    pub(crate) fn tell_applying(&self, lsn: u64) -> Result<()> {
        self.page.as_ref().map_or(Ok(()), |page| page.raise_applying(lsn))
    }

    /// Announces that names are about to change as commits up to this one say. Returns whether removed files must be
    /// parked, because a reader holds an older commit.
    pub(crate) fn tell_names(&self, lsn: u64) -> bool {
        let Some(page) = self.page.as_ref().filter(|_| holds(invariant::NAMES_TOLD_FIRST)) else { return false };
        let before = (!holds(invariant::PARKED_AFTER_NAMES)).then(|| self.parks(lsn));
        if let Err(e) = page.raise(Cell::NamesTo, lsn) {
            // If the disk accepts neither this write nor the end of the page, it accepts no name change either.
            tracing::error!(store = %self.path.display(), error = %e, "readers were not told of new names");
        }
        before.unwrap_or_else(|| self.parks(lsn))
    }

    /// Whether removed files must be parked when names change up to this commit. A reader that takes a lease from now
    /// on sees that names have changed.
    fn parks(&self, lsn: u64) -> bool {
        let parks = self.page.as_ref().is_some_and(|page| page.is_held_before(lsn));
        if parks {
            self.parked_to.fetch_max(lsn, SeqCst);
        }
        parks
    }

    /// Decides like [`Engine::tell_names`], for names that were announced before.
    pub(crate) fn parks_waiting(&self) -> bool {
        let told = self.page.as_ref().and_then(|page| page.told(Cell::NamesTo));
        told.is_some_and(|lsn| self.parks(lsn))
    }

    /// Removes the parked files if they were parked for commits up to this one only. No commit is on its way meanwhile.
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

    /// Removes the parked files once no reader holds a commit that has them. Returns whether some are left.
    pub(crate) fn remove_unheld(&self) -> bool {
        let _no_commit = self.journal.lock();
        let parked_to = self.parked_to.load(SeqCst);
        if parked_to == 0 || !self.page.as_ref().is_some_and(|page| page.is_held_before(parked_to)) {
            self.remove_parked(u64::MAX);
        }
        self.parked_to.load(SeqCst) != 0
    }
}
