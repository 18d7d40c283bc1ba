//! Commits that are appended to a segment, whose flush also makes all earlier metadata changes durable.

use super::{Committed, Journal, outcome_of_write};
use crate::commits::record::Record;
use crate::error::{Outcome, Result, is_no_space};
use crate::format::{BLOCK_BYTES, RECORD_ALIGN_BYTES, encode_length};
use crate::invariant;
use crate::sync_point;
use untorn_os::holds;

/// Limit for appended bytes, because space that was appended to a segment is not reused before the store is closed.
const APPENDED_BYTES_MAX: u64 = 4 << 20;

impl Journal {
    /// Commits like [`Self::commit`], on storage that keeps order, and makes attributes that the caller has set durable
    /// with the records. The records lengthen a segment, and its new length enters the file system's log behind those
    /// attributes. Returns `None`, and does nothing, if there is no room for that.
    pub fn commit_appended(&mut self, records: &[Record]) -> Result<Option<Committed>> {
        if !holds(invariant::FIRST_COMMIT_APPENDED) {
            return self.commit(records).map(Some);
        }
        self.assert_sound(records);
        let align = RECORD_ALIGN_BYTES as u64;
        let needed: u64 = records.iter().map(|record| self.room_for(record).next_multiple_of(align)).sum();
        let needed = needed.next_multiple_of(BLOCK_BYTES as u64);
        let segment = &self.segments[self.current];
        let (from, is_ours) = (segment.bytes + segment.appended, self.position < segment.bytes);
        // A due header comes before the first record, and reserved space stays in place.
        if !self.options.durable
            || self.failed.is_some()
            || self.list_due
            || self.reserved > 0
            || !is_ours
            || segment.appended + needed > APPENDED_BYTES_MAX
            || from + needed > self.options.segment_bytes_max().min(self.storage.file_size_limit())
            || self.allocated_bytes() + needed > self.options.journal_bytes
        {
            return Ok(None);
        }
        self.name_spills(records)?;
        let (first_lsn, previous_crc) = (self.next_lsn, self.previous_crc);
        let position = std::mem::replace(&mut self.position, from);
        let encoded = self.encode_group(records, needed);
        self.position = position;
        let appended = encoded.and_then(|n| match n == records.len() {
            true => {
                self.keep_spills(records, first_lsn);
                self.append_group(from)
            }
            false => Ok(false),
        });
        if !matches!(appended, Ok(true)) {
            (self.next_lsn, self.previous_crc) = (first_lsn, previous_crc);
            self.bodies.clear();
            self.unflushed_spills.clear();
            return appended.map(|_| None);
        }
        self.on_written.iter().for_each(|call| call());
        self.flush(sync_point::COMMIT)?;
        let committed = self.finish_commit(first_lsn, records.len());
        debug_assert_eq!(self.position, position, "an appended group moved the position of the others");
        self.note_length();
        Ok(Some(committed))
    }

    /// Sets the attribute with the segment's length, now that the length is on the disk. The next commit flushes the
    /// attribute.
    fn note_length(&mut self) {
        let segment = &mut self.segments[self.current];
        if holds(invariant::APPENDED_LENGTH_NOTED) {
            let length = encode_length(segment.index, segment.bytes + segment.appended);
            segment.length_due |= segment.file.set_attribute(&length).is_ok();
        }
    }

    /// Writes the group at the end of the segment. Returns false if the disk has no room; the segment is then as
    /// before.
    fn append_group(&mut self, from: u64) -> Result<bool> {
        self.buf.pad_to_block();
        let segment = &mut self.segments[self.current];
        debug_assert_eq!(from, segment.bytes + segment.appended, "a group behind the end of its segment");
        match segment.append(&self.buf) {
            Ok(()) => {
                segment.appended += self.buf.len() as u64;
                debug_assert!(segment.appended <= APPENDED_BYTES_MAX, "{} bytes are appended", segment.appended);
                self.note_written();
                self.write_index();
                Ok(true)
            }
            // Its first records may be whole on the disk. They must be durably gone before they are written elsewhere.
            Err(e) if is_no_space(&e) => {
                let cut = segment.file.set_len(from).and_then(|()| segment.file.sync_data(sync_point::COMMIT));
                cut.map(|()| false).map_err(|e| self.fail(Outcome::UnknownUntilReopened, e))
            }
            Err(e) => Err(self.fail(outcome_of_write(&e), e)),
        }
    }
}
