//! Reads the index of the log: the records, without reading the segments.
//!
//! ```text
//! segment   │ records in the index, durable │ read: records and remains │ not used │ appended: read │
//!           0                          c of them                   bound      bytes              end
//! ```

use crate::commits::log_reader::LogSegment;
use crate::commits::record::{CheckSpills, Decoder, Record, SpillCache, body_by_reference};
use crate::directories::store_dir::{log_index_name, segment_name};
use crate::error::Result;
use crate::format::{
    BLOCK_BYTES, Header, INDEX_HEAD_BYTES, IndexHead, Key, RECORD_HEAD_BYTES, RecordHead, RecordKind, place_of, u32_at,
    u64_at,
};
use crate::invariant;
use crate::scanning::segment_reader::{FoundRecords, ScannedSegment, Unread, ValidRecord, whole_segment};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use untorn_os::{File, Open, Storage, holds, read_full_at};

/// Offset of the first entry in an index, behind the block with its head.
pub(crate) const ENTRIES_AT: u64 = BLOCK_BYTES as u64;
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

/// The entries of the index of a segment of this length.
pub(crate) fn read_index(storage: &dyn Storage, journal: &Path, segment: u32, bytes: u64) -> Option<Vec<u8>> {
    let file = storage.open(&journal.join(log_index_name(segment)), Open::READ).ok()?;
    read_entries(&*file, bytes)
}

fn read_entries(file: &dyn File, segment_bytes: u64) -> Option<Vec<u8>> {
    // An index that is longer than this has been tampered with.
    let mut entries = vec![0; file.meta().ok()?.size.saturating_sub(ENTRIES_AT).min(2 * segment_bytes) as usize];
    let n = read_full_at(file, &mut entries, ENTRIES_AT).ok()?;
    entries.truncate(n);
    Some(entries)
}

/// Reads the head of an index. `None`: the index has no head, or a damaged one.
pub(crate) fn read_head(file: &dyn File, key: Key) -> Option<IndexHead> {
    let mut head = [0; INDEX_HEAD_BYTES];
    (read_full_at(file, &mut head, 0).ok()? == head.len()).then(|| IndexHead::decode(&head, key))?
}

/// The index of a segment that is bounded.
struct Bounded {
    head: IndexHead,
    bytes: Vec<u8>,
    /// The records of the epoch that uses the segment, with their checksums and the places of their bodies in `bytes`.
    entries: Vec<(RecordHead, u64, Range<usize>)>,
}

impl Bounded {
    fn read(storage: &dyn Storage, journal: &Path, segment: &ScannedSegment, key: Key) -> Option<Bounded> {
        let file = storage.open(&journal.join(log_index_name(segment.index)), Open::READ).ok()?;
        let head = read_head(&*file, key)?;
        let is_here = head.place == place_of(&*file, &file.meta().ok()?) || !holds(invariant::BOUND_IN_PLACE);
        if !is_here || head.bound > head.bytes || head.bytes > segment.bytes {
            return None;
        }
        let bytes = read_entries(&*file, segment.bytes)?;
        let (mut entries, mut next, mut end) = (Vec::new(), head.first_lsn, 0);
        each_entry(&bytes, key, |record, crc, body| {
            let start = end + ENTRY_HEAD_BYTES + RECORD_HEAD_BYTES;
            end = start + body.len();
            // Entries of an earlier use may follow.
            let is_next = record.epoch == head.epoch && record.lsn >= next;
            next = if is_next { record.lsn + 1 } else { u64::MAX };
            if is_next {
                entries.push((record, crc, start..end));
            }
        });
        Some(Bounded { head, bytes, entries })
    }
}

/// Reads the indexes of the segments of more than this many bytes: durable records behind the checkpoint, and of each
/// segment the ranges that must be read.
pub(crate) fn read_bounded(
    storage: &dyn Storage,
    journal: &Path,
    segments: &mut [ScannedSegment],
    bytes_least: u64,
    header: &Header,
    spills: &mut SpillCache,
) -> (FoundRecords, Vec<Unread>) {
    let bounded = |segment: &ScannedSegment| {
        (segment.bytes > bytes_least).then(|| Bounded::read(storage, journal, segment, header.key)).flatten()
    };
    let all: Vec<_> = segments.iter().map(bounded).collect();
    let mut durable = HashMap::<u64, u64>::new();
    for (record, ..) in all.iter().flatten().flat_map(|bounded| &bounded.entries) {
        let durable = durable.entry(record.epoch).or_default();
        *durable = record.durable_lsn.max(*durable);
    }
    let (mut found, mut unread) = (FoundRecords::default(), Vec::new());
    for (at, (segment, bounded)) in segments.iter_mut().zip(all).enumerate() {
        let log = || LogSegment::open(storage, &journal.join(segment_name(segment.index)));
        let (Some(Bounded { head, bytes, entries }), Ok(log)) = (bounded, log()) else {
            unread.push(whole_segment(segment));
            continue;
        };
        let known = header.open_lsn.max(durable.get(&head.epoch).map_or(0, |lsn| lsn + 1));
        let mut end = 0;
        for (record, crc, body) in entries {
            let record_end = record.position.saturating_add(record.len);
            // Appended records are read, and so are those that may not have reached the disk.
            if record_end > head.bound || (record.lsn >= known && holds(invariant::INDEXED_DURABLE)) {
                continue;
            }
            end = record_end.next_multiple_of(BLOCK_BYTES as u64).max(end);
            if record.lsn > header.checkpoint_lsn {
                add(&mut found, at, record, crc, &bytes[body], &log, spills);
            }
        }
        unread.push([end.min(head.bound)..head.bound, head.bytes..segment.bytes]);
        segment.log = Some(log);
    }
    (found, unread)
}

/// Adds the record of an entry in the index of this segment.
fn add(
    (valid, commits): &mut FoundRecords,
    segment: usize,
    head: RecordHead,
    crc: u64,
    body: &[u8],
    log: &Arc<LogSegment>,
    spills: &mut SpillCache,
) {
    valid.push(ValidRecord { head, crc, segment, is_whole: true });
    if head.kind == RecordKind::Commit {
        let record = decode(&head, body, log, spills);
        commits.insert((segment, head.position), record.map(|record| (record, spills.take_used())));
    }
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
) -> FoundRecords {
    let mut found = FoundRecords::default();
    spills.check = CheckSpills::Never;
    for (at, segment) in segments.iter().enumerate() {
        let Some(index) = read_index(storage, journal, segment.index, segment.bytes) else { continue };
        let Ok(log) = LogSegment::open(storage, &journal.join(segment_name(segment.index))) else { continue };
        each_entry(&index, key, |head, crc, body| {
            if head.lsn > after {
                add(&mut found, at, head, crc, body, &log, spills);
            }
        });
    }
    spills.check = CheckSpills::Now;
    found
}
