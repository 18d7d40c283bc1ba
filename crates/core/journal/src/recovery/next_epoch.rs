//! The epoch that begins after recovery: behind unapplied records, or with an empty journal.

use super::{Opening, Redone};
use crate::commits::spill::spill_name;
use crate::directories::store_dir::segment_name;
use crate::error::{Context, Result};
use crate::format::{EPOCHS_MAX, Header, ListedEpoch, encode_length};
use crate::invariant;
use crate::journal::Journal;
use crate::scanning::scan::Scan;
use crate::scanning::segment_reader::ScannedSegment;
use crate::slots::slot_log::SlotLog;
use crate::sync_point;
use std::ops::Range;
use std::path::{Path, PathBuf};
use untorn_os::{BLOCK_BYTES, Open, holds, write_all_at};

impl Opening<'_> {
    /// Begins a new epoch behind records that are not applied.
    pub(super) fn list_epochs(&mut self, dir: PathBuf, scanned: Scan, mut listed: Vec<ListedEpoch>) -> Result<Journal> {
        listed.drain(..listed.len().saturating_sub(EPOCHS_MAX));
        debug_assert!(
            listed.is_sorted_by(|one, next| one.last_lsn < next.first_lsn),
            "epochs overlap, or are not in order: {listed:?}"
        );
        debug_assert!(
            listed.last().is_some_and(|last| last.last_lsn == scanned.last_lsn),
            "the list {listed:?} does not end with record {}",
            scanned.last_lsn
        );
        let open_lsn = scanned.last_lsn + 1;
        let nothing_new = scanned.header.open_lsn == open_lsn;
        let mut header = Header { listed, open_lsn, link: scanned.last_crc, clean: false, ..scanned.header };
        if holds(invariant::FRESH_START) {
            header.link = self.fresh_link(&dir)?;
        }
        let mut journal = self.new_journal(&dir, header, scanned.segments)?;
        if (holds(invariant::LISTED_ANEW) || !nothing_new) && !journal.go_on(scanned.live_spills.clone())? {
            let note = "no room for the journal's header: files are read from the journal, and commits wait for a \
                        checkpoint; make room on the disk";
            self.recovered.notes.push(note.into());
            // The old header on the disk may need spill files that are orphans for the next one.
            return Ok(journal);
        }
        let is_live = |name: &String| {
            let live = scanned.live_spills.iter().any(|(spill, _)| spill_name(spill.id) == *name);
            live && holds(invariant::LISTED_SPILLS_STAY)
        };
        let orphans: Vec<String> = scanned.orphans.iter().filter(|name| !is_live(name)).cloned().collect();
        self.remove_orphans(&mut journal, &dir, &orphans)?;
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
        let dirty = scanned.last_lsn > scanned.header.checkpoint_lsn
            || !scanned.header.is_closed()
            || scanned.header.boot.is_some();
        let dirty = dirty || scanned.start_changed || scanned.cut_short.is_some();
        for segment in scanned.segments.iter().filter(|segment| segment.said_bytes > segment.bytes) {
            // The journal was closed, so the next owner's commits do not need the lost end of the segment.
            let path = dir.join(segment_name(segment.index));
            let file = self.storage.open(&path, Open::WRITE).context("open", &path)?;
            let said = file.set_attribute(&encode_length(segment.index, segment.bytes));
            said.and_then(|()| file.sync_all(sync_point::RECOVER_LENGTHS)).context("set the length of", &path)?;
        }
        let unreadable = scanned.segments.iter().filter(|s| !s.unreadable.is_empty());
        let unreadable: Vec<(PathBuf, Vec<Range<u64>>)> =
            unreadable.map(|s| (dir.join(segment_name(s.index)), s.unreadable.clone())).collect();
        if !holds(invariant::UNREADABLE_STAYS) {
            self.write_anew(&unreadable);
        }
        if let Some(undo) = &self.undo {
            undo.keep_header(&scanned.header)?;
        }
        self.keep_recovered(&dir, &scanned)?;
        let (checkpoint_lsn, open_lsn) = (scanned.last_lsn, scanned.last_lsn + 1);
        let mut header =
            Header { checkpoint_lsn, open_lsn, link: scanned.last_crc, listed: Vec::new(), ..scanned.header };
        if dirty && holds(invariant::FRESH_START) {
            header.link = self.fresh_link(&dir)?;
        }
        let mut journal = self.new_journal(&dir, header, scanned.segments)?;
        debug_assert_eq!(journal.pending_bytes(), 0, "unapplied records in a new epoch from {open_lsn}");
        self.clear_pending_of(redone, journal.store(), flushed)?;
        if flushed && !unreadable.is_empty() {
            // After a crash before the blocks are written, the next opening sees a clean header and does not read them.
            journal.write_clean_header()?;
        }
        self.write_anew(&unreadable);
        if dirty {
            journal.write_emptied_header(flushed)?;
        }
        self.remove_orphans(&mut journal, &dir, &scanned.orphans)?;
        Ok(journal)
    }

    pub(super) fn new_journal(&mut self, dir: &Path, header: Header, segments: Vec<ScannedSegment>) -> Result<Journal> {
        let (storage, undo) = (self.storage.clone(), self.undo.clone());
        let slots = self.slots.take().expect("the slots were looked at when the log was read");
        Journal::new(storage, dir.to_owned(), self.options.journal, header, segments, undo, slots)
    }

    /// Keeps the recovered commits that slots need, before their records are truncated from the log.
    fn keep_recovered(&mut self, dir: &Path, scanned: &Scan) -> Result<()> {
        let slots = self.slots.as_mut().expect("the slots were looked at when the log was read");
        let Some(after) = slots.needed_behind(scanned.last_lsn)? else { return Ok(()) };
        if after >= scanned.last_lsn || !holds(invariant::KEPT_AT_RECOVERY) {
            return Ok(());
        }
        let kept = keep_scanned(slots, dir, scanned, after);
        match kept {
            Ok(()) => slots.hold_caps(scanned.last_lsn),
            Err(e) => {
                tracing::warn!(id = "untorn.slot.log_not_kept", error = %e, "log that slots need cannot be kept");
                slots.lose(scanned.last_lsn)?;
            }
        }
        Ok(())
    }

    /// A random link, which the first record of an epoch repeats and no earlier record does. A record that was dropped
    /// because a part of it never reached the disk must not become valid when a later commit happens to write that
    /// part.
    fn fresh_link(&self, dir: &Path) -> Result<u64> {
        let mut link = [0; 8];
        self.storage().random(&mut link).context("draw a link for", dir)?;
        Ok(u64::from_le_bytes(link))
    }

    /// Overwrites the unreadable blocks of an empty journal with zeros; the disk then remaps the sectors. Zeros would
    /// state that the blocks hold no records, so this must wait until no record is needed.
    fn write_anew(&mut self, segments: &[(PathBuf, Vec<Range<u64>>)]) {
        for (path, unreadable) in segments {
            let written = self.storage.open(path, Open::WRITE).and_then(|file| {
                for range in unreadable {
                    write_all_at(&*file, &vec![0; (range.end - range.start) as usize], range.start)?;
                }
                // Without a flush, the next opening after a power cut would have to ask again whether the blocks held
                // records.
                file.sync_data(sync_point::UNREADABLE_ANEW)
            });
            if let Err(e) = written {
                let blocks: u64 = unreadable.iter().map(|range| (range.end - range.start) / BLOCK_BYTES as u64).sum();
                let note = format!(
                    "{blocks} blocks of {} can neither be read nor be written anew ({e}); if the disk still cannot \
                     read them after a crash, the store cannot be opened",
                    path.display()
                );
                self.recovered.notes.push(note);
            }
        }
    }
}

/// Keeps the segments and spill files with accepted records behind this commit.
fn keep_scanned(slots: &mut SlotLog, dir: &Path, scanned: &Scan, after: u64) -> std::io::Result<()> {
    for segment in scanned.segments.iter().filter(|segment| segment.last_lsn > after) {
        slots.keep_segment(&dir.join(segment_name(segment.index)), segment.first_lsn)?;
    }
    for (spill, last_lsn) in scanned.live_spills.iter().filter(|(_, last_lsn)| *last_lsn > after) {
        slots.keep_spill(dir, spill.id, *last_lsn)?;
    }
    Ok(())
}
