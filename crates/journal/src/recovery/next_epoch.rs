//! The epoch that begins behind what was recovered: behind records that are not applied, or with an empty journal.

use super::{Opening, Redone};
use crate::error::{Context, Result};
use crate::format::{EPOCHS_MAX, Header, ListedEpoch};
use crate::invariant;
use crate::journal::Journal;
use crate::scan::Scan;
use crate::spill::spill_name;
use std::path::{Path, PathBuf};
use untorn_os::holds;

impl Opening<'_> {
    /// Begins a new epoch behind records that are not applied.
    pub(super) fn list_epochs(&mut self, dir: PathBuf, scanned: Scan, mut listed: Vec<ListedEpoch>) -> Result<Journal> {
        listed.drain(..listed.len().saturating_sub(EPOCHS_MAX));
        let open_lsn = scanned.last_lsn + 1;
        let nothing_new = scanned.header.open_lsn == open_lsn;
        let mut header = Header { listed, open_lsn, link: scanned.last_crc, clean: false, ..scanned.header };
        if holds(invariant::FRESH_START) {
            header.link = self.fresh_link(&dir)?;
        }
        let mut journal =
            Journal::new(self.storage.clone(), dir.clone(), self.options.journal, header, scanned.segments)?;
        if (holds(invariant::LISTED_ANEW) || !nothing_new) && !journal.go_on(scanned.live_spills.clone())? {
            let note = "no room for the journal's header: files are read from the journal, and commits wait for a \
                        checkpoint; make room on the disk";
            self.recovered.notes.push(note.into());
            // The header on the disk may need what is an orphan to the next one.
            return Ok(journal);
        }
        let is_live = |name: &String| {
            let live = scanned.live_spills.iter().any(|(spill, _)| spill_name(spill.id) == *name);
            live && holds(invariant::LISTED_SPILLS_STAY)
        };
        let orphans: Vec<String> = scanned.orphans.iter().filter(|name| !is_live(name)).cloned().collect();
        self.remove_orphans(&dir, &orphans);
        Ok(journal)
    }

    /// Begins a new epoch after everything was redone: the journal is empty.
    pub(super) fn begin_epoch(
        &mut self,
        dir: PathBuf,
        scanned: Scan,
        redone: &Redone,
        flushed: bool,
    ) -> Result<Journal> {
        let dirty =
            scanned.last_lsn > scanned.header.checkpoint_lsn || !scanned.header.clean || scanned.header.boot.is_some();
        let dirty = dirty || scanned.start_changed;
        let (checkpoint_lsn, open_lsn) = (scanned.last_lsn, scanned.last_lsn + 1);
        let mut header =
            Header { checkpoint_lsn, open_lsn, link: scanned.last_crc, listed: Vec::new(), ..scanned.header };
        if dirty && holds(invariant::FRESH_START) {
            header.link = self.fresh_link(&dir)?;
        }
        let mut journal =
            Journal::new(self.storage.clone(), dir.clone(), self.options.journal, header, scanned.segments)?;
        self.clear_pending_of(redone, journal.store(), flushed)?;
        if dirty {
            journal.write_clean_header(flushed)?;
        }
        self.remove_orphans(&dir, &scanned.orphans);
        Ok(journal)
    }

    /// What the first record of an epoch repeats, and no record before it does. A record that was dropped because a
    /// part of it never reached the disk must not come back to life when a later commit happens to write that part.
    fn fresh_link(&self, dir: &Path) -> Result<u64> {
        let mut link = [0; 8];
        self.storage().random(&mut link).context("draw a link for", dir)?;
        Ok(u64::from_le_bytes(link))
    }
}
