//! Quarantined journals: redoing those of their commits that are possible now, and quarantining the current journal.

use super::{Opening, Quarantined};
use crate::directories::quarantine::PendingFiles;
use crate::directories::store_dir::remove_tree;
use crate::error::{Context, Error, Result};
use crate::scanning::scan::{read_readable_header, scan_quarantined};
use crate::sync_point;
use std::path::Path;

impl Opening<'_> {
    pub(super) fn recover_quarantined(&mut self) -> Result<()> {
        let quarantined = self.store_dir.quarantined_journals(self.storage())?;
        if quarantined.is_empty() {
            return Ok(());
        }
        let store = match read_readable_header(self.storage(), &self.store_dir.journal()) {
            Ok((header, _)) => Some(header.store),
            Err(e) if self.can_salvage(&e) => None,
            Err(e) => return Err(e),
        };
        for dir in quarantined {
            let Some(mut pending) = PendingFiles::read(self.storage(), &dir)? else {
                // No file waits for this journal any more: a crash interrupted its removal. A killed process may have
                // removed the list in the page cache only; the list must not come back without the rest, so flush
                // first.
                self.storage().sync_dir(&dir, sync_point::QUARANTINE_CONTENTS).context("flush", &dir)?;
                remove_tree(self.storage(), &dir)?;
                continue;
            };
            let mut scanned = match scan_quarantined(self.storage, &dir, pending.last_lsn, self.options.progress) {
                Err(e) if self.can_salvage(&e) => {
                    self.archive(&dir, pending.epoch, &e, &[])?;
                    continue;
                }
                done => done?,
            };
            let damage = scanned.corrupt.take();
            if let Some(e) = damage.as_ref().filter(|e| !self.can_salvage(e)) {
                return Err(e.clone());
            }
            if store.is_some_and(|store| store != scanned.header.store) {
                return Err(Error::Foreign { path: dir, detail: "this journal belongs to another store".into() });
            }
            let store = scanned.header.store;
            let before = self.quarantined.len();
            let redone = self.redo(&dir, &scanned, Some(&pending), true, false)?;
            let not_redone = redone.not_redone();
            if redone.is_whole() && damage.is_none() {
                self.clear_pending_of(&redone, store, true)?;
                PendingFiles::remove(self.storage(), &dir)?;
                remove_tree(self.storage(), &dir)?;
            } else if self.options.salvage {
                let why = damage.unwrap_or_else(|| self.quarantined[before].reason.clone());
                let kept = self.keep_contents(&redone, &dir)?;
                // From here on, these contents are the only copy of the commits.
                self.storage().sync_file_system(sync_point::RECOVER_DATA).context("flush", &dir)?;
                self.detach_files(&redone);
                self.quarantined.truncate(before);
                self.archive(&dir, pending.epoch, &why, &kept)?;
            } else if not_redone != pending.files || redone.dirs_left != pending.dirs {
                let before = std::mem::replace(&mut pending.files, not_redone);
                let dirs_before = std::mem::replace(&mut pending.dirs, redone.dirs_left.clone());
                self.clear_pending_of(&redone, store, true)?;
                match pending.write(self.storage(), &dir) {
                    Err(e @ Error::NoSpace { .. }) => {
                        // The list still names files and directories that were redone just now. The next opening would
                        // redo them over later commits, so they are quarantined.
                        let redone_now = before.keys().filter(|id| !pending.files.contains_key(id));
                        let dirs_now = dirs_before.keys().filter(|dir| !pending.dirs.contains_key(*dir));
                        let files = redone_now.filter_map(|id| redone.state.files.get(id));
                        let files = files.map(|file| (file.display_name().to_owned(), file.id));
                        let all = files.chain(dirs_now.map(|dir| (dir.clone(), 0)));
                        self.quarantined.extend(all.map(|(path, id)| Quarantined { path, id, reason: e.clone() }));
                    }
                    done => done?,
                }
                self.set_list_apart(&dir);
            }
        }
        Ok(())
    }

    /// Quarantines the current journal: renames it to a name with its epoch.
    pub(super) fn quarantine_journal(&self, pending: &PendingFiles) -> Result<()> {
        let (journal, quarantined) = (self.store_dir.journal(), self.store_dir.quarantined_journal(pending.epoch));
        self.storage().rename(&journal, &quarantined, false).context("rename to", &quarantined)?;
        self.storage().sync_dir(&self.store_dir.dir, sync_point::QUARANTINE_NAME).context("flush", &self.store_dir.dir)
    }

    /// Reserves space for the next list of a quarantined journal, if the disk has any.
    pub(super) fn set_list_apart(&self, quarantined: &Path) {
        if self.options.journal.spare {
            let _ = PendingFiles::set_apart(self.storage(), quarantined);
        }
    }
}
