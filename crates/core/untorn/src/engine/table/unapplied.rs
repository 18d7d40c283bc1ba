//! Files that have commits in the journal when a store is opened: they enter the table before anybody can open them.
//!
//! Each is in the same state as after its last commit: known by the identity in its attribute, with its commits in an
//! overlay, and without a descriptor until one is needed. Checkpoints apply them, in portions.

use crate::engine::Engine;
use crate::engine::files::file_state::{FileState, Life, SharedFile};
use std::sync::Arc;
use untorn_journal::recovery::unapplied::Unapplied;

impl Engine {
    /// Takes over commits that are not applied. Nobody uses the store yet.
    pub(crate) fn take_over(&self, unapplied: Unapplied) {
        let mut journal = self.journal.lock();
        let mut table = self.files.lock();
        let last_lsn = journal.journal.last_lsn();
        debug_assert!(
            table.len() == 0 && journal.dirty.is_empty(),
            "{} files are in use, {} wait",
            table.len(),
            journal.dirty.len()
        );
        debug_assert!(
            unapplied.portions.iter().is_sorted_by(|one, next| one < next)
                && unapplied.portions.back().is_none_or(|end| *end < last_lsn),
            "portions {:?} of commits to {last_lsn}",
            unapplied.portions
        );
        journal.dirs.extend(unapplied.dirs);
        journal.portions = unapplied.portions;
        for file in unapplied.files {
            let (last, meta) = (file.state, file.meta);
            let path = last.name.clone().expect("an unapplied file has a name");
            let mut state = FileState::new(path.clone(), Life::Named);
            state.names_changed = last.names.len() > 1 || last.mode.is_some() || last.created.is_some();
            state.mode_set = last.final_mode();
            state.attribute_set = true;
            state.attribute_unsynced = last.created.is_some();
            state.last_lsn = last.last_lsn;
            state.applied_lsn = last.previous_lsn;
            debug_assert!(
                last.first_lsn <= last.last_lsn && last.last_lsn <= last_lsn,
                "{path:?} has commits {} to {}, and the log ends with {last_lsn}",
                last.first_lsn,
                last.last_lsn
            );
            state.unapplied = Some(last.first_lsn..=last.last_lsn);
            state.writable = file.writable;
            // The same state as after a failed checkpoint: the previous owner may have had one, and the page cache may
            // show bytes that the disk never got.
            state.content.applying = (!last.overlay.is_empty()).then(|| Arc::new(last.overlay));
            state.content.base_size = meta.size;
            state.content.last_stat = Some(meta);
            let shared = SharedFile::new(last.id, state);
            table.insert(path, shared.clone());
            table.note_idle(&shared);
            journal.dirty.insert(last.id, shared);
        }
        debug_assert_eq!(journal.dirty.len(), table.len(), "two unapplied files have one name or identity");
    }
}
