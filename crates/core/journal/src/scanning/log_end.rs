//! The end of a part of the log that was read, behind which the next record is recognised.
//!
//! The next record repeats the checksum of the last one, so nothing else that is written meanwhile can be mistaken for
//! it.

use crate::directories::store_dir::segment_index;
use crate::format::{Key, RecordHead};
use crate::invariant;
use crate::scanning::scan::Scan;
use std::io;
use std::path::Path;
use untorn_os::{Storage, holds};

/// The last record of the part that was read.
#[derive(Clone)]
pub(crate) struct LogEnd {
    pub key: Key,
    /// Only records of this epoch may follow. `None` if the next record opens the open epoch, and so determines it.
    epoch: Option<u64>,
    pub lsn: u64,
    /// The checksum that the next record repeats.
    crc: u64,
    /// Index of its segment.
    pub segment: u32,
    /// Offset in the segment behind the record.
    pub at: u64,
}

impl LogEnd {
    /// The end of the record with this LSN, or `None` if that record was not accepted.
    pub fn behind(scan: &Scan, lsn: u64) -> Option<LogEnd> {
        let last = scan.accepted_heads.iter().rev().find(|v| v.head.lsn == lsn)?;
        // The first record of an epoch repeats the link in the header, not the checksum of the record accepted before
        // it.
        let is_first = lsn + 1 == scan.header.open_lsn && holds(invariant::OPEN_LINK);
        Some(LogEnd {
            key: scan.header.key,
            epoch: (!is_first).then_some(last.head.epoch),
            lsn,
            crc: if is_first { scan.header.link } else { last.crc },
            segment: scan.segments[last.segment].index,
            at: last.head.position + last.head.len,
        })
    }

    /// Whether a valid record is the next one.
    pub fn is_before(&self, head: &RecordHead) -> bool {
        let is_next = head.lsn == self.lsn + 1 && head.previous_crc == self.crc;
        is_next && self.epoch.is_none_or(|epoch| epoch == head.epoch)
    }

    /// Goes behind the next record, which has this checksum and lies in this segment.
    pub fn pass(&mut self, head: &RecordHead, crc: u64, segment: u32) {
        debug_assert!(self.is_before(head), "record {} does not follow record {}", head.lsn, self.lsn);
        (self.lsn, self.crc, self.at) = (head.lsn, crc, head.position + head.len);
        (self.epoch, self.segment) = (Some(head.epoch), segment);
    }

    /// The indexes of all segments, in the order in which the owner uses them, from the segment of this end on.
    pub fn segments_in_turn(&self, storage: &dyn Storage, journal: &Path) -> io::Result<Vec<u32>> {
        let names = storage.list(journal)?;
        let mut segments: Vec<u32> = names.iter().filter_map(|name| segment_index(name.to_str()?)).collect();
        segments.sort_by_key(|index| index.wrapping_sub(self.segment));
        Ok(segments)
    }
}
