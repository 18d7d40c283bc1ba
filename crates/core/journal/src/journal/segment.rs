//! A segment of an open journal.

use super::medium::{Medium, stored_bytes};
use super::segment_index::SegmentIndex;
use crate::invariant;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use untorn_os::{File, SyncPoint, holds, write_all_at};

/// A segment of an open journal.
pub(super) struct Segment {
    pub(super) index: u32,
    pub(super) bytes: u64,
    /// Bytes that were appended to the segment in this epoch, in whole groups, behind `bytes`.
    pub(super) appended: u64,
    pub(super) file: Arc<dyn File>,
    pub(super) medium: Medium,
    /// Calls have written records to it since its last flush: a fence does not make them durable.
    pub(super) called: bool,
    /// LSN of the first record in it since it was used last; 0 if that is not known.
    pub(super) first_lsn: u64,
    /// An earlier owner wrote to it: older records may precede the first one, and readers may need them.
    pub(super) former: bool,
    /// LSN of the last record in it; 0 if none is live.
    pub(super) last_lsn: u64,
    /// It has a second name, under which slots need it: it is not written again, except behind its last record.
    pub(super) linked: bool,
    /// It is not live any more, and readers that hold one of these commits need it.
    pub(super) kept: Option<Range<u64>>,
    /// Checksum of its first block, if known.
    pub(super) first_block_crc: Option<u64>,
    /// Its index.
    pub(super) log_index: SegmentIndex,
    /// Its attribute states its length, and is not flushed yet.
    pub(super) length_due: bool,
    /// The length that is certainly on the disk: a failed flush may have lost the rest, though the page cache still
    /// shows it.
    pub(super) durable_bytes: u64,
}

/// Whether a file has a second name.
pub(super) fn is_linked(file: &dyn File) -> bool {
    file.meta().is_ok_and(|meta| meta.links > 1) && holds(invariant::KEPT_NOT_REUSED)
}

impl Segment {
    /// A segment without records.
    pub(super) fn new(index: u32, bytes: u64, file: Arc<dyn File>) -> Segment {
        Segment {
            index,
            bytes,
            appended: 0,
            file,
            medium: Medium::Unknown,
            called: false,
            first_lsn: 0,
            former: false,
            last_lsn: 0,
            linked: false,
            kept: None,
            first_block_crc: None,
            log_index: SegmentIndex::default(),
            length_due: false,
            durable_bytes: bytes,
        }
    }

    /// Writes a group, padded to whole blocks, whose records end at `records_end`. It is not durable before a flush.
    pub(super) fn write(&mut self, group: &[u8], records_end: usize, at: u64) -> io::Result<()> {
        match self.medium.lines(&*self.file, self.bytes) {
            Some(lines) => lines.store(&group[..stored_bytes(group.len(), records_end, at)], at),
            None => {
                self.called = true;
                write_all_at(&*self.file, group, at)
            }
        }
    }

    /// Writes a group behind the segment's end, by a call on any medium: it makes the file longer.
    pub(super) fn append(&mut self, group: &[u8]) -> io::Result<()> {
        self.called = true;
        write_all_at(&*self.file, group, self.bytes + self.appended)
    }

    /// Makes the written groups durable, and with them the length if it is due.
    pub(super) fn flush(&mut self, point: SyncPoint) -> io::Result<()> {
        self.fence(point)?;
        match (self.length_due, self.called) {
            (true, _) => self.file.sync_all(point)?,
            (false, true) => self.file.sync_data(point)?,
            (false, false) => {}
        }
        (self.length_due, self.called) = (false, false);
        Ok(())
    }

    pub(super) fn is_in_memory(&self) -> bool {
        matches!(self.medium, Medium::Memory(_))
    }

    /// Makes durable the groups that this thread has written, if the segment is in memory.
    pub(super) fn fence(&self, point: SyncPoint) -> io::Result<()> {
        match &self.medium {
            Medium::Memory(lines) if holds(invariant::MEMORY_FENCE) => lines.fence(point),
            _ => Ok(()),
        }
    }

    /// The commits whose readers need it if the log is truncated now: up to the one that is durable.
    pub(super) fn readers_commits(&self, durable: u64) -> Range<u64> {
        if self.former { 0..durable + 1 } else { self.first_lsn..durable + 1 }
    }

    /// Whether commits may overwrite it, with the log truncated behind this checkpoint.
    pub(super) fn is_free(&self, checkpoint_lsn: u64) -> bool {
        self.is_done(checkpoint_lsn) && !self.linked
    }

    /// Whether neither recovery nor readers need it, with the log truncated behind this checkpoint.
    pub(super) fn is_done(&self, checkpoint_lsn: u64) -> bool {
        self.last_lsn <= checkpoint_lsn && self.kept.is_none()
    }
}
