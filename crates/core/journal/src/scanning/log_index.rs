//! Reads the index of the log: the records, without reading the segments.

use crate::commits::log_reader::LogSegment;
use crate::commits::record::{Decoder, Record, SpillCache, body_by_reference};
use crate::directories::store_dir::{log_index_name, segment_name};
use crate::error::Result;
use crate::format::{Key, RECORD_HEAD_BYTES, RecordHead, RecordKind, u32_at, u64_at};
use crate::scanning::segment_reader::{ReadRecords, ScannedSegment, ValidRecord};
use std::path::Path;
use std::sync::Arc;
use untorn_os::{Open, Storage, read_full_at};

/// Bytes of an entry before its record: checksum, and length of the body.
pub(crate) const ENTRY_HEAD_BYTES: usize = 16;

/// Calls `found` for each entry of an index: the head of its record, the record's checksum, and the body without
/// contents. Bytes behind the entries are left from an earlier use of the segment, or are of an entry that is not whole.
pub(crate) fn each_entry(index: &[u8], key: Key, mut found: impl FnMut(RecordHead, u64, &[u8])) {
    let mut rest = index;
    while rest.len() >= ENTRY_HEAD_BYTES + RECORD_HEAD_BYTES {
        let end = ENTRY_HEAD_BYTES + RECORD_HEAD_BYTES + u32_at(rest, 8) as usize;
        if end > rest.len() || u64_at(rest, 0) != key.crc64(&[&rest[8..end]]) {
            return;
        }
        let (head, body) = rest[ENTRY_HEAD_BYTES..end].split_at(RECORD_HEAD_BYTES);
        let position = RecordHead::position_of(head);
        let Some((head, crc)) = RecordHead::decode_head(head, position, u64::MAX, key) else { return };
        found(head, crc, body);
        rest = &rest[end..];
    }
}

/// The index of a segment of this length.
pub(crate) fn read_index(storage: &dyn Storage, journal: &Path, segment: u32, bytes: u64) -> Option<Vec<u8>> {
    let file = storage.open(&journal.join(log_index_name(segment)), Open::READ).ok()?;
    // An index that is longer than this has been tampered with.
    let mut index = vec![0; file.meta().ok()?.size.min(2 * bytes) as usize];
    let n = read_full_at(&*file, &mut index, 0).ok()?;
    index.truncate(n);
    Some(index)
}

/// The record of a commit in the index of this segment.
pub(crate) fn decode(head: &RecordHead, body: &[u8], log: &Arc<LogSegment>, spills: &mut SpillCache) -> Result<Record> {
    match head.body_by_reference {
        true => body_by_reference(body, spills).and_then(|body| Decoder::decode(&body, spills)),
        false => Decoder::decode_indexed(body, log, spills),
    }
}

/// The records behind this LSN in the indexes of these segments. An index that is missing or has a gap shows fewer.
pub(crate) fn read(
    storage: &dyn Storage,
    journal: &Path,
    segments: &[ScannedSegment],
    key: Key,
    after: u64,
    spills: &mut SpillCache,
) -> (Vec<ValidRecord>, ReadRecords) {
    let (mut valid, mut found) = (Vec::new(), ReadRecords::new());
    spills.verify = false;
    for (at, segment) in segments.iter().enumerate() {
        let Some(index) = read_index(storage, journal, segment.index, segment.bytes) else { continue };
        let Ok(log) = LogSegment::open(storage, &journal.join(segment_name(segment.index))) else { continue };
        each_entry(&index, key, |head, crc, body| {
            if head.lsn <= after {
                return;
            }
            valid.push(ValidRecord { head, crc, segment: at, is_whole: true });
            if head.kind == RecordKind::Commit {
                let record = decode(&head, body, &log, spills);
                found.insert((at, head.position), record.map(|record| (record, spills.take_used())));
            }
        });
    }
    spills.verify = true;
    (valid, found)
}
