//! Follows the log of a running owner, behind a commit that was read before.
//!
//! The next record lies directly behind the last one, on the next block, or at the beginning of another segment. If it
//! is not found, the whole log must be scanned.
//!
//! The log is read past the page cache, as it is written: pages that a reader left in the cache would slow down each
//! write of the owner.

use crate::commits::record::{CheckSpills, SpillCache};
use crate::directories::store_dir::segment_name;
use crate::format::{BLOCK_BYTES, RECORD_ALIGN_BYTES, RECORD_HEAD_BYTES, RecordHead, RecordKind};
use crate::scanning::log_end::LogEnd;
use crate::scanning::scan::{AcceptedRecord, Scan, decode_body};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use untorn_os::{AlignedBuf, File, Open, Storage, read_full_at};

/// Bytes that are read at once, unless the record is larger.
const READ_BYTES: usize = 16 << 10;

/// The end of a record, behind which the log continues.
pub struct LogTail {
    end: LogEnd,
    segment: Arc<dyn File>,
    /// Blocks of the segment that were read last, and their offset: they may have the next records, too.
    known: (u64, AlignedBuf),
}

impl LogTail {
    /// The end of the record with this LSN, or `None` if that record was not accepted.
    pub fn behind(scan: &Scan, lsn: u64, storage: &dyn Storage, journal: &Path) -> Option<LogTail> {
        let end = LogEnd::behind(scan, lsn)?;
        let segment = storage.open(&journal.join(segment_name(end.segment)), Open::READ.direct()).ok()?;
        Some(LogTail { end, segment, known: (0, AlignedBuf::zeroed(0)) })
    }

    /// Reads the commits up to this LSN, which is durable. Bytes in spill files are not checked against their checksums
    /// yet. Returns `None` if a commit is not at any place where it would follow.
    pub fn read_to(&mut self, lsn: u64, storage: &Arc<dyn Storage>, journal: &Path) -> Option<Vec<AcceptedRecord>> {
        let mut spills = SpillCache::new(storage.clone(), journal.to_owned());
        spills.check = CheckSpills::Never;
        let mut accepted = Vec::new();
        while self.end.lsn < lsn {
            let (head, body) = self.next(&**storage, journal)?;
            if head.kind == RecordKind::Commit {
                let record = decode_body(&head, body, &mut spills).ok()?;
                accepted.push(AcceptedRecord { lsn: head.lsn, epoch: head.epoch, time: head.time, record });
            }
        }
        Some(accepted)
    }

    /// Returns the next record and its body, and moves the tail behind it.
    fn next(&mut self, storage: &dyn Storage, journal: &Path) -> Option<(RecordHead, Bytes)> {
        let behind = self.end.at.next_multiple_of(RECORD_ALIGN_BYTES as u64);
        let on_block = self.end.at.next_multiple_of(BLOCK_BYTES as u64);
        let (from, blocks) = &self.known;
        let known = [behind, on_block]
            .into_iter()
            .find_map(|at| self.record_in(blocks.get(at.checked_sub(*from)? as usize..)?, at));
        if let Some((head, crc, body)) = known {
            self.end.pass(&head, crc, self.end.segment);
            return Some((head, body));
        }
        let from = behind - behind % BLOCK_BYTES as u64;
        let blocks = read(&*self.segment, from, READ_BYTES)?;
        let found = [behind, on_block].into_iter().find_map(|at| self.record_at(&*self.segment, &blocks, from, at));
        if let Some((head, crc, body)) = found {
            self.known = (from, blocks);
            self.end.pass(&head, crc, self.end.segment);
            return Some((head, body));
        }
        let own = self.end.segment;
        let segments = self.end.segments_in_turn(storage, journal).ok()?;
        for index in segments.into_iter().filter(|index| *index != own) {
            let Ok(segment) = storage.open(&journal.join(segment_name(index)), Open::READ.direct()) else { continue };
            let Some(blocks) = read(&*segment, 0, READ_BYTES) else { continue };
            if let Some((head, crc, body)) = self.record_at(&*segment, &blocks, 0, 0) {
                (self.segment, self.known) = (segment, (0, blocks));
                self.end.pass(&head, crc, index);
                return Some((head, body));
            }
        }
        None
    }

    /// The record at offset `at`, if it is the next one. `blocks` holds the segment from offset `from` on.
    fn record_at(&self, segment: &dyn File, blocks: &[u8], from: u64, at: u64) -> Option<(RecordHead, u64, Bytes)> {
        let within = (at - from) as usize;
        let mut found = blocks.get(within..)?;
        let len = RecordHead::len_of(found)?;
        let more;
        if len > found.len() as u64 {
            // The length is not verified yet, so it is bounded by the end of the segment.
            let left = segment.meta().ok()?.size.saturating_sub(at);
            let wanted = within + usize::try_from(len).ok().filter(|_| len <= left)?;
            more = read(segment, from, wanted.next_multiple_of(BLOCK_BYTES))?;
            found = more.get(within..)?;
        }
        self.record_in(found, at)
    }

    /// The record that begins these bytes, which lie at offset `at` of a segment, if it is the next one, and whole.
    fn record_in(&self, found: &[u8], at: u64) -> Option<(RecordHead, u64, Bytes)> {
        let (head, crc) = RecordHead::decode_at(found, at, self.end.key)?;
        self.end
            .is_before(&head)
            .then(|| (head, crc, Bytes::copy_from_slice(&found[RECORD_HEAD_BYTES..head.len as usize])))
    }
}

/// Reads whole blocks, up to the end of the segment.
fn read(segment: &dyn File, from: u64, bytes: usize) -> Option<AlignedBuf> {
    let mut blocks = AlignedBuf::zeroed(bytes);
    let n = read_full_at(segment, &mut blocks, from).ok()?;
    blocks.resize(n);
    Some(blocks)
}
