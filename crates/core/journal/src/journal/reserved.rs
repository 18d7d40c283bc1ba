//! Records that restate unapplied commits, and the space in the segments that is reserved for them.

use super::segment::Segment;
use super::{Committed, Journal};
use crate::commits::record::Record;
use crate::error::{Error, Result};
use crate::format::BLOCK_BYTES;
use crate::sync_point;

impl Journal {
    /// Reserves space for this record, which restates unapplied commits; `None` reserves nothing, because nothing is
    /// unapplied.
    pub fn reserve(&mut self, record: Option<&Record>) {
        debug_assert!(record.is_none_or(Record::restates), "space for a commit is not reserved");
        self.reserved = record.map_or(0, |record| self.room_for(record).next_multiple_of(BLOCK_BYTES as u64));
    }

    /// Commits like [`Self::commit`], for small records, and may use the reserved space. On a disk that is full of
    /// unapplied commits, such a record may be the one that frees space.
    pub fn commit_in_reserved(&mut self, records: &[Record]) -> Result<Committed> {
        if records.iter().any(|record| self.room_for(record) > BLOCK_BYTES as u64) {
            return Ok(Committed::Full);
        }
        let reserved = std::mem::take(&mut self.reserved);
        let done = self.commit(records);
        self.reserved = reserved;
        done
    }

    /// Whether the log holds only restated commits: each commit that is not truncated yet is there because it was
    /// restated.
    pub fn holds_only_restated(&self) -> bool {
        self.last_restated > self.last_commit && self.header.checkpoint_lsn >= self.last_commit
    }

    /// Writes and flushes a record that restates unapplied commits, in the reserved space. Returns its LSN, or `None`
    /// if there is no room. The log may then be truncated behind the records that it restates.
    pub fn restate(&mut self, record: &Record) -> Result<Option<u64>> {
        debug_assert!(record.restates(), "no record that restates: {:?}", record.ops.first());
        self.assert_sound(std::slice::from_ref(record));
        if let Some(e) = self.failure() {
            return Err(e);
        }
        // The list is written here, because the checkpoint that restates has not begun to write its header.
        if !self.list()? {
            return Ok(None);
        }
        let reserved = std::mem::take(&mut self.reserved);
        let written = self.write_restated(record);
        self.reserved = reserved;
        match written {
            Ok(true) => {}
            Ok(false) | Err(Error::NoSpace { .. }) => return Ok(None),
            Err(e) => return Err(e),
        }
        self.flush(sync_point::RESTATED)?;
        self.mark_due = true;
        self.last_restated = self.last_lsn();
        debug_assert!(
            self.last_restated > self.last_commit,
            "record {} restates commits up to {}",
            self.last_restated,
            self.last_commit
        );
        self.reserve(Some(record));
        self.assert_consistent();
        Ok(Some(self.last_restated))
    }

    fn write_restated(&mut self, record: &Record) -> Result<bool> {
        let records = std::slice::from_ref(record);
        if self.write_some(records)? == 1 {
            return Ok(true);
        }
        // The first restating record has no reserved space. The journal may grow beyond its limit for it, if the disk
        // has room.
        let at = self.add_segment(self.room_for(record).next_multiple_of(BLOCK_BYTES as u64))?;
        self.begin_segment(at);
        Ok(self.write_some(records)? == 1)
    }

    /// Bytes that commits must leave free in the current segment; 0 if another segment has that space.
    pub(super) fn reserved_here(&self, current: usize) -> u64 {
        if self.reserved == 0 {
            return 0;
        }
        let checkpoint_lsn = self.header.checkpoint_lsn;
        let free = |(at, s): (usize, &Segment)| {
            at != current && s.is_free(checkpoint_lsn) && self.usable_bytes(at) >= self.reserved
        };
        if self.segments.iter().enumerate().any(free) { 0 } else { self.reserved }
    }

    /// Adds a segment that is large enough for this record, if all segments of a journal at its limit are too small. It
    /// does so as soon as the other segments hold only restated commits.
    pub(super) fn replace_small_segments(&mut self, bytes: u64) -> Result<bool> {
        let checkpoint_lsn = self.header.checkpoint_lsn;
        let is_free = |s: &Segment| s.is_free(checkpoint_lsn);
        let large_is_free = self.segments.iter().any(|s| s.bytes >= bytes && is_free(s));
        if large_is_free || bytes > self.options.segment_bytes_max() {
            return Ok(false);
        }
        // Restated commits take at most one large segment, so with two, one of them is free.
        let large = self.segments.iter().filter(|s| s.bytes >= bytes).count();
        let restated = self.holds_only_restated() && large <= 1;
        // Kept segments are not part of the journal.
        if !self.segments.iter().all(|s| is_free(s) || s.kept.is_some()) && !restated {
            return Ok(false);
        }
        let at = self.add_segment(bytes.next_multiple_of(BLOCK_BYTES as u64))?;
        self.begin_segment(at);
        Ok(true)
    }
}
