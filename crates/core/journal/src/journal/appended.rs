//! Commits that are appended to a segment, and by whose flush everything becomes durable that was set before.

use super::{Committed, Journal, outcome_of_write};
use crate::commits::record::Record;
use crate::error::{Outcome, Result, is_no_space};
use crate::format::{BLOCK_BYTES, RECORD_ALIGN_BYTES, encode_length};
use crate::invariant;
use crate::sync_point;
use untorn_os::{holds, write_all_at};

/// What is appended to a segment is not used again before the store is closed: no more than this.
const APPENDED_BYTES_MAX: u64 = 4 << 20;

impl Journal {
    /// As [`Self::commit`], where the storage keeps order: what the caller has set of attributes is durable with the
    /// records. They make a segment longer, and its new length is an entry of the file system's log behind those
    /// attributes. None: there is no room for that, and nothing happened.
    pub fn commit_appended(&mut self, records: &[Record]) -> Result<Option<Committed>> {
        if !holds(invariant::FIRST_COMMIT_APPENDED) {
            return self.commit(records).map(Some);
        }
        let align = RECORD_ALIGN_BYTES as u64;
        let needed: u64 = records.iter().map(|record| self.room_for(record).next_multiple_of(align)).sum();
        let needed = needed.next_multiple_of(BLOCK_BYTES as u64);
        let segment = &self.segments[self.current];
        let (from, is_ours) = (segment.bytes + segment.appended, self.position < segment.bytes);
        // The header that is due comes before the first record, and what is reserved stays where it is.
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
        self.flush_spills(records)?;
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
            return appended.map(|_| None);
        }
        let committed = self.finish_commit(first_lsn, records.len())?;
        self.note_length();
        Ok(Some(committed))
    }

    /// The segment says how long it is, now that its length is on the disk. The next commit flushes that.
    fn note_length(&mut self) {
        let segment = &mut self.segments[self.current];
        if holds(invariant::APPENDED_LENGTH_NOTED) {
            let length = encode_length(segment.index, segment.bytes + segment.appended);
            segment.length_due |= segment.file.set_attribute(&length).is_ok();
        }
    }

    /// Writes the group at the end of the segment. False: the disk has no room, and the segment is as before.
    fn append_group(&mut self, from: u64) -> Result<bool> {
        self.buf.pad_to_block();
        let segment = &mut self.segments[self.current];
        match write_all_at(&*segment.file, &self.buf, from) {
            Ok(()) => {
                segment.appended += self.buf.len() as u64;
                self.group_at = from;
                self.note_written();
                Ok(true)
            }
            // The first records of it may be there whole: they must be gone for good before they are written elsewhere.
            Err(e) if is_no_space(&e) => {
                let cut = segment.file.set_len(from).and_then(|()| segment.file.sync_data(sync_point::COMMIT));
                cut.map(|()| false).map_err(|e| self.fail(Outcome::UnknownUntilReopened, e))
            }
            Err(e) => Err(self.fail(outcome_of_write(&e), e)),
        }
    }
}
