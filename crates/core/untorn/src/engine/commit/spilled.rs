//! Contents of large commits go to spill files before the commit is queued.

use crate::engine::Engine;
use crate::engine::content::SpillSink;
use crate::engine::files::file_state::FileState;
use std::ops::DerefMut;
use untorn_journal::Result;

impl Engine {
    /// Moves large contents of a commit to spill files: large ranges to the one that commits share, if data files can
    /// share its blocks, and everything if the record would be too large.
    pub(super) fn spill_large<S: DerefMut<Target = FileState>>(&self, states: &mut [S]) -> Result<()> {
        let mut inline: u64 = states.iter().map(|state| state.content.write_set.memory_bytes()).sum();
        if inline >= self.options.journal.shared_bytes_least && self.may_spill_to_share(inline) {
            for state in states.iter_mut() {
                let least_bytes = self.options.journal.shared_bytes_least;
                self.shared_spill.spill(&mut state.content.write_set, least_bytes, &|| self.create_spill());
            }
            inline = states.iter().map(|state| state.content.write_set.memory_bytes()).sum();
        }
        if inline > self.inline_bytes_max() {
            inline = states.iter().map(|state| state.content.write_set.inline_bytes()).sum();
        }
        if inline > self.inline_bytes_max() {
            // The record of a large commit refers to a spill file.
            let mut shared = self.create_spill_space()?;
            let mut with_bytes = states.iter_mut().filter(|state| state.content.write_set.inline_bytes() > 0);
            with_bytes.try_for_each(|state| state.content.spill_write_set(&mut shared))?;
            debug_assert!(
                states.iter().all(|state| state.content.write_set.inline_bytes() == 0),
                "a commit of {inline} bytes keeps some of them in memory"
            );
        }
        Ok(())
    }

    /// Whether large ranges of a commit of this many bytes may go to a spill file, and data files share its blocks. On a
    /// disk that is almost full, they go to the journal, which has its space.
    fn may_spill_to_share(&self, bytes: u64) -> bool {
        let has_room = || {
            let room = bytes.saturating_add(self.options.journal.journal_bytes);
            self.storage.space().is_ok_and(|space| space.available_bytes >= room)
        };
        self.is_durable() && self.shared_spill.is_possible() && has_room()
    }
}
