//! Headers of the journal: each truncates the log, lists epochs, names a boot, or marks the store closed.

use super::spill_files::LiveSpill;
use super::{CheckpointTarget, HeaderWrite, Journal};
use crate::commits::spill::Spill;
use crate::error::{Context, Error, Outcome, Result};
use crate::format::{BLOCK_BYTES, Header, LENGTHS_MAX, UNCLOSED_MAX, VERSION};
use crate::invariant;
use crate::scanning::scan::read_slots;
use crate::sync_point;
use std::sync::Arc;
use untorn_os::{SyncPoint, holds, write_all_at};

impl HeaderWrite {
    /// Writes the slot that the last header does not use, and flushes it if the header has a sync point.
    pub fn write(&self) -> Result<()> {
        if let Some((storage, kept)) = &self.names {
            storage.sync_dir(kept, sync_point::KEPT_NAMES).context("flush", kept)?;
        }
        write_all_at(&*self.file, &self.header.encode(), Header::slot_of(self.header.generation))
            .context("write", &self.path)?;
        match self.sync {
            Some(point) => self.file.sync_data(point).context("flush", &self.path),
            None => Ok(()),
        }
    }

    /// Whether an attribute can express all of this header. Of the epochs that were not closed, an attribute has only
    /// its own; the others must be those of the slot that it belongs to.
    fn is_told_by_attribute(&self, slots: &[u8]) -> bool {
        let at = Header::slot_of(self.header.generation + 1) as usize;
        let Ok(Some(slot)) = Header::decode(&slots[at..at + BLOCK_BYTES], &self.path) else { return false };
        let is_other = |epoch: &&u64| **epoch != self.header.epoch;
        slot.unclosed.iter().filter(is_other).eq(self.header.unclosed.iter().filter(is_other))
    }
}

impl Journal {
    /// Continues behind records that are not applied. The header that lists their epochs is durable before the first
    /// new record, and everything to which they refer stays until the log is truncated behind them. Returns false if
    /// the disk has no room for that header; commits then wait for a checkpoint.
    pub fn go_on(&mut self, spills: Vec<(Arc<Spill>, u64)>) -> Result<bool> {
        debug_assert!(
            self.spills.is_empty() && self.last_lsn() + 1 == self.header.open_lsn,
            "{} spill files and records to {} in an epoch from {}",
            self.spills.len(),
            self.last_lsn(),
            self.header.open_lsn
        );
        debug_assert!(
            spills.iter().all(|(_, last_lsn)| *last_lsn < self.header.open_lsn),
            "a spill file of a commit behind {}: {spills:?}",
            self.header.open_lsn
        );
        self.spills = spills.into_iter().map(|(spill, last_lsn)| LiveSpill { spill, first_lsn: 0, last_lsn }).collect();
        self.last_commit = self.last_lsn();
        self.list_due = true;
        self.list()
    }

    /// Writes the header that lists the unapplied epochs, if it is due. Returns false if there is no room for it.
    pub(super) fn list(&mut self) -> Result<bool> {
        if !self.list_due {
            return Ok(true);
        }
        let write = self.header_write(self.next_header(), sync_point::HEADER_LISTED);
        match write.write() {
            // After a failed flush, the written header may be in the page cache only.
            Err(e @ Error::NoSpace { .. }) if !e.is_failed_flush() => return Ok(false),
            written => written?,
        }
        self.finish_truncate(write);
        Ok(true)
    }

    /// The target of a checkpoint that begins now: everything committed so far.
    pub fn begin_checkpoint(&self) -> CheckpointTarget {
        debug_assert!(
            self.header.checkpoint_lsn < self.next_lsn,
            "checkpoint {} is ahead of the log, which ends before {}",
            self.header.checkpoint_lsn,
            self.next_lsn
        );
        CheckpointTarget { checkpoint_lsn: self.next_lsn - 1, durable_lsn: self.durable_lsn, crc: self.previous_crc }
    }

    /// The target of a checkpoint of commits that precede this opening, up to one of them that is not the last. All of
    /// these are on the disk.
    pub fn begin_portion(&self, lsn: u64) -> CheckpointTarget {
        debug_assert!(
            lsn > self.header.checkpoint_lsn && lsn + 1 < self.header.open_lsn,
            "a portion to {lsn}, between {} and {}",
            self.header.checkpoint_lsn,
            self.header.open_lsn
        );
        let lsn = if holds(invariant::PORTION_END) { lsn } else { self.header.open_lsn - 1 };
        CheckpointTarget { checkpoint_lsn: lsn, durable_lsn: lsn, crc: self.header.link }
    }

    /// Begins to truncate the log behind the target's last record. The data files must have been flushed. The caller
    /// writes the header and then calls [`Journal::finish_truncate`].
    ///
    /// # Errors
    /// Readers cannot be told of the data that is kept for them.
    pub fn begin_truncate(&mut self, target: CheckpointTarget) -> Result<HeaderWrite> {
        self.keep_header()?;
        self.keep_for_slots(target.checkpoint_lsn)?;
        self.doom_segments();
        self.doom_kept(target.checkpoint_lsn);
        Ok(self.header_write(self.truncated_header(target), sync_point::HEADER))
    }

    /// Keeps the present header for readers of older commits.
    fn keep_header(&self) -> Result<()> {
        self.undo.as_ref().map_or(Ok(()), |undo| undo.keep_header(&self.header))
    }

    /// The next header, with the log truncated behind the target's last record.
    fn truncated_header(&self, target: CheckpointTarget) -> Header {
        debug_assert!(
            (self.header.checkpoint_lsn..self.next_lsn).contains(&target.checkpoint_lsn),
            "checkpoint {} goes to {}, and the log to {}",
            self.header.checkpoint_lsn,
            target.checkpoint_lsn,
            self.next_lsn - 1
        );
        let mut header = self.next_header();
        header.checkpoint_lsn = target.checkpoint_lsn;
        header.listed.retain(|listed| listed.last_lsn > target.checkpoint_lsn || !holds(invariant::LIST_CLIPPED));
        if target.checkpoint_lsn + 1 >= header.open_lsn {
            header.open_lsn = target.checkpoint_lsn + 1;
            header.link = target.crc;
        }
        debug_assert!(
            header.open_lsn > header.checkpoint_lsn,
            "the open epoch begins with {}, and checkpoint {} is behind that",
            header.open_lsn,
            header.checkpoint_lsn
        );
        header
    }

    pub(super) fn next_header(&self) -> Header {
        let mut header = self.header.clone();
        header.generation += 1;
        header.version = VERSION;
        header.lengths = self.lengths();
        header.epoch = self.epoch;
        header.clean = false;
        header.by_attribute = false;
        if self.doomed.contains(&header.start_segment) {
            (header.start_segment, header.start_crc, header.start_blocks) = (self.segments[self.current].index, 0, 0);
        }
        header
    }

    /// Lengths of segments, without bytes appended in this epoch, because closing cuts these off again.
    fn lengths(&self) -> Vec<u32> {
        let mut lengths = Vec::new();
        for segment in self.segments.iter().filter(|segment| !self.doomed.contains(&segment.index)) {
            let index = segment.index as usize;
            lengths.resize(lengths.len().max(index + 1).min(LENGTHS_MAX), 0);
            if let Some(length) = lengths.get_mut(index) {
                *length = (segment.durable_bytes.min(segment.bytes) / BLOCK_BYTES as u64) as u32;
            }
        }
        lengths
    }

    pub(super) fn header_write(&self, header: Header, point: SyncPoint) -> HeaderWrite {
        self.header_write_with(header, self.options.durable.then_some(point))
    }

    /// Prepares a write that never overwrites the newest durable header. If the new header is not flushed, a power cut
    /// must not bring back the one before, which does not know this boot; and the newest durable one holds the
    /// journal's key.
    fn header_write_with(&self, mut header: Header, sync: Option<SyncPoint>) -> HeaderWrite {
        let over_durable = Header::slot_of(header.generation) == Header::slot_of(self.durable_generation);
        if over_durable && holds(invariant::DURABLE_HEADER) {
            header.generation += 1;
        }
        let names = self.slots.unflushed().filter(|_| self.options.durable).map(|kept| (self.storage.clone(), kept));
        HeaderWrite { header, file: self.header_file.clone(), path: self.dir.join("header"), sync, names }
    }

    /// Finishes a truncation that [`Journal::begin_truncate`] began: the header is durable, and the segments and spill
    /// files of the records before it are free.
    pub fn finish_truncate(&mut self, written: HeaderWrite) {
        let (before, after) = (&self.header, &written.header);
        debug_assert!(
            after.generation > before.generation && after.epoch == self.epoch && after.store == before.store,
            "header {} of epoch {} follows {} in epoch {}",
            after.generation,
            after.epoch,
            before.generation,
            self.epoch
        );
        debug_assert!(
            after.checkpoint_lsn >= before.checkpoint_lsn && after.open_lsn >= before.open_lsn,
            "checkpoint {} and open epoch {} go back to {} and {}",
            before.checkpoint_lsn,
            before.open_lsn,
            after.checkpoint_lsn,
            after.open_lsn
        );
        let checkpoint_before = before.checkpoint_lsn;
        if written.names.is_some() {
            self.slots.note_flushed();
        }
        let is_durable = written.sync.is_some();
        if is_durable {
            self.durable_generation = written.header.generation;
            self.open_unflushed = false;
        }
        self.header = written.header;
        self.list_due = false;
        let checkpoint_lsn = self.header.checkpoint_lsn;
        let truncated =
            self.spills.extract_if(.., |e| e.last_lsn <= checkpoint_lsn || !holds(invariant::SPILL_FILES_STAY));
        let truncated: Vec<LiveSpill> = truncated.collect();
        self.keep_log(checkpoint_before, truncated);
        if is_durable {
            self.remove_doomed();
        }
        // A durable mark at the end of the truncated log counts, too, now that everything before it is applied.
        self.tell_durable(checkpoint_lsn);
        self.assert_consistent();
    }

    /// Names the boot durably, before the first commit of class `process`.
    pub fn record_boot(&mut self, boot: [u8; 16]) -> Result<()> {
        if self.header.boot == Some(boot) {
            return Ok(());
        }
        let mut header = self.next_header();
        header.clean = self.header.clean;
        header.boot = Some(boot);
        let write = self.header_write_with(header, Some(sync_point::HEADER_BOOT));
        // A failed write may be on the disk all the same, so closing must write a header without the boot.
        self.header_uncertain = true;
        write.write()?;
        self.header_uncertain = false;
        self.finish_truncate(write);
        Ok(())
    }

    /// The header of a clean journal, which is empty because everything is in the data files.
    fn clean_header(&self) -> Header {
        let mut header = self.truncated_header(self.begin_checkpoint());
        let current = &self.segments[self.current];
        debug_assert!(
            header.listed.is_empty() || !holds(invariant::LIST_CLIPPED),
            "a clean header lists {:?} behind checkpoint {}",
            header.listed,
            header.checkpoint_lsn
        );
        header.start_segment = current.index;
        header.start_crc = current.first_block_crc.unwrap_or(0);
        header.start_blocks = (current.bytes / BLOCK_BYTES as u64) as u32;
        header.clean = current.first_block_crc.is_some();
        header
    }

    /// Makes the header say that the store is open, and in which epoch, before the first file is marked and the first
    /// record written. However this owner ends, the next one then knows that it did not close, and looks for marks that
    /// it left. Where the storage keeps order, an attribute that was set before that of a file is on the disk no later,
    /// so nothing is flushed. Returns false if a checkpoint has to write a header first.
    pub fn note_open(&mut self) -> Result<bool> {
        if self.list_due {
            return Ok(!holds(invariant::LISTED_FIRST));
        }
        let is_noted = !self.header.clean && self.header.epoch == self.epoch;
        if is_noted || !holds(invariant::OPEN_NOTED) {
            return Ok(true);
        }
        // Only with an empty log does the header fit into the attribute.
        let is_empty = self.header.listed.is_empty() && self.header.open_lsn == self.header.checkpoint_lsn + 1;
        if is_empty && self.options.durable && self.header.boot.is_none() && self.storage.keeps_order() {
            let mut noted = self.header_write_with(self.next_header(), None);
            (noted.header.by_attribute, noted.names) = (true, None);
            let slots = read_slots(&*noted.file, &noted.path)?;
            if noted.is_told_by_attribute(&slots) {
                self.header_uncertain = true;
                // On a full disk the slot may still be writable.
                if noted.file.set_attribute(&noted.header.encode_closed(&slots)).is_ok() {
                    self.header_uncertain = false;
                    self.open_unflushed = holds(invariant::OPEN_NOTE_FLUSHED);
                    self.finish_truncate(noted);
                    return Ok(true);
                }
            }
        }
        let write = self.header_write(self.next_header(), sync_point::HEADER_OPEN);
        self.header_uncertain = true;
        write.write()?;
        self.header_uncertain = false;
        self.finish_truncate(write);
        Ok(true)
    }

    /// Flushes the note that the store is open, unless the group that is about to be written shows that by itself: a
    /// clean header names the segment in whose first block the next owner sees a change.
    pub(super) fn flush_open_note(&mut self) -> Result<()> {
        let at_start = self.position == 0 && self.segments[self.current].index == self.header.start_segment;
        if self.open_unflushed && !at_start {
            if let Err(e) = self.header_file.sync_all(sync_point::HEADER_OPEN) {
                return Err(self.fail(Outcome::NotCommitted, e));
            }
            self.open_unflushed = false;
        }
        Ok(())
    }

    /// Notes that marks of former owners are cleared, durably as soon as the next header is. The last epochs stay
    /// known.
    pub fn note_marks_cleared(&mut self) {
        self.header.marks_left = false;
        if self.header.unclosed.len() == UNCLOSED_MAX {
            self.header.unclosed.drain(..UNCLOSED_MAX / 2);
        }
    }

    /// Keeps this epoch known because a file keeps its mark of it after the close. The next owner knows the epoch, and
    /// clears the mark.
    pub fn keep_epoch(&mut self) {
        self.header.add_unclosed(self.epoch);
        self.header.marks_left = true;
    }

    /// Notes that some files may keep marks of former owners, such as files that were away when the marks were cleared.
    pub fn note_marks_left(&mut self) {
        self.header.marks_left |= !self.header.unclosed.is_empty();
    }

    /// Writes the header of an empty journal whose store stays open. If the data files were not flushed, the header
    /// still names the boot.
    pub fn write_emptied_header(&mut self, flushed: bool) -> Result<()> {
        self.keep_all_for_slots()?;
        let header = Header { clean: false, ..self.clean_header() };
        self.write_empty(header, flushed)
    }

    /// Writes the header of a closed store.
    pub fn write_clean_header(&mut self) -> Result<()> {
        self.keep_all_for_slots()?;
        self.write_empty(self.clean_header(), true)
    }

    fn write_empty(&mut self, mut header: Header, flushed: bool) -> Result<()> {
        self.keep_header()?;
        if flushed {
            header.boot = None;
        }
        // Flush in class `process`, too: a header without a boot states that everything was flushed.
        let write = self.header_write_with(header, flushed.then_some(sync_point::HEADER));
        write.write()?;
        self.finish_truncate(write);
        debug_assert_eq!(self.pending_bytes(), 0, "records behind checkpoint {}", self.header.checkpoint_lsn);
        if let Some(cut) = self.cut_segments() {
            // Flush the cut before the next epoch appends to the segment.
            cut.sync_all(sync_point::HEADER).context("flush", &self.dir)?;
        }
        Ok(())
    }

    /// Closes a journal whose data files were written out and not flushed, where the storage keeps order: the clean
    /// header is an attribute first. An entry of the file system's log reaches the disk after the entries before it,
    /// and after a flush of the device. If that flush fails, the log takes no more entries, and nobody ever sees this
    /// one.
    ///
    /// Returns false if the attribute cannot be set, or cannot express the header. The caller must then flush the
    /// written data before [`Journal::write_clean_header`].
    pub fn write_closed_header(&mut self) -> Result<bool> {
        self.keep_header()?;
        self.keep_all_for_slots()?;
        if !self.doomed.is_empty() || self.slots.unflushed().is_some() {
            // An attribute cannot say that segments are gone, and is set before anything is flushed.
            return Ok(false);
        }
        let header = Header { boot: None, ..self.clean_header() };
        let copy = self.header_write_with(header, None);
        let slots = read_slots(&*copy.file, &copy.path)?;
        if !copy.is_told_by_attribute(&slots) || copy.file.set_attribute(&copy.header.encode_closed(&slots)).is_err() {
            return Ok(false);
        }
        // The cut follows the header in the file system's log, so that one flush makes both durable. If the segment
        // stays longer, the next opening sees that.
        let last = self.cut_segments().unwrap_or_else(|| copy.file.clone());
        last.sync_all(sync_point::HEADER_CLOSED).context("flush", &copy.path)?;
        // This slot serves copies of the store that lack attributes. It is not flushed.
        let _ = copy.write();
        self.finish_truncate(copy);
        debug_assert_eq!(self.pending_bytes(), 0, "records behind checkpoint {}", self.header.checkpoint_lsn);
        Ok(true)
    }

    /// Whether the header on the disk does not describe the present journal, so that closing has work to do.
    pub fn is_dirty(&self) -> bool {
        self.next_lsn - 1 > self.header.checkpoint_lsn
            || self.header.boot.is_some()
            || self.header_uncertain
            || !self.header.is_closed()
    }
}
