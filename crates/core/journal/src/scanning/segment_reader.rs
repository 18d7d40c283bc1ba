//! Reads the segments of a journal, and finds the valid records in them.
//!
//! There are two ways. For inspection, and around unreadable blocks, everything that is read stays in memory. Otherwise
//! the memory is reused for the next part: each record is decoded when it is found, and its contents stay in the log.

use crate::commits::log_reader::LogSegment;
use crate::commits::record::{BodyInLog, Decoder, Record, SpillCache, body_by_reference};
use crate::commits::spill::Spill;
use crate::directories::store_dir::{segment_index, segment_name};
use crate::error::{Context, Error, Result};
use crate::format::unreadable::{contents_of, each_record_around, is_media_error, is_unreadable, read_around};
use crate::format::{
    BLOCK_BYTES, Header, Key, RECORD_ALIGN_BYTES, RECORD_HEAD_BYTES, RecordHead, RecordKind, crc64, decode_length,
};
use crate::invariant;
use crate::sync_point;
use bytes::Bytes;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use untorn_os::{AlignedBuf, File, Open, PageMemory, Storage, holds, read_full_at, read_full_past_cache_at};

/// A larger segment was not written by Untorn.
const SEGMENT_BYTES_MAX: u64 = 4 << 30;

/// In a shorter segment, finding the records takes less time than starting a thread.
const READ_ALONGSIDE_MIN: u64 = 1 << 20;

/// Memory for this many windows, unless a record needs more.
const WINDOWS: usize = 4;

/// How to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMode {
    /// Flush, then read from the disk: the last record of a killed process may be in the page cache only. Applying it
    /// before it is durable would tear the store at the next power cut.
    PastCache,
    /// Read like [`ReadMode::PastCache`], through read-only descriptors: for a reader of a closed store.
    PastCacheReadOnly,
    /// Read through the page cache: for class `process`, and for inspection without any change.
    Cached,
}

impl ReadMode {
    pub(crate) fn is_past_cache(self) -> bool {
        self != ReadMode::Cached
    }
}

/// Amount of scanned data that stays in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Everything.
    Contents,
    /// Everything except contents of more than `in_memory_max` bytes, which stay in the log. Everything, if the disk
    /// returns errors.
    Places {
        /// Contents of at most this length stay in memory.
        in_memory_max: u64,
        /// Bytes that are read at once, in whole blocks.
        window_bytes: usize,
        /// Segments of more than this many bytes are read as far as their indexes do not tell of them.
        index_bytes_least: u64,
    },
}

/// A valid record.
#[derive(Clone, Copy, Debug)]
pub struct ValidRecord {
    /// Its head.
    pub head: RecordHead,
    /// Its checksum.
    pub crc: u64,
    /// Index among the scanned segments.
    pub segment: usize,
    /// False if the disk returned errors for a part of its body, so that only the head's own checksum is verified.
    pub is_whole: bool,
}

/// A segment after reading.
pub struct ScannedSegment {
    /// Its index, from which its name is made.
    pub index: u32,
    /// Its length.
    pub bytes: u64,
    /// The length that it once had, by its attribute; 0 if the attribute does not say.
    pub said_bytes: u64,
    /// Checksum of its first block.
    pub first_block_crc: u64,
    /// The open file.
    pub file: Arc<dyn File>,
    /// LSN of the first accepted record in it; 0: there is none.
    pub first_lsn: u64,
    /// LSN of the last accepted record in it; 0: there is none.
    pub last_lsn: u64,
    /// The bytes that were read; empty if nothing stayed in memory.
    pub contents: Bytes,
    /// Ranges for which the disk returned errors; zeros in `contents`.
    pub unreadable: Vec<Range<u64>>,
    /// Reads contents that stay in the segment.
    pub log: Option<Arc<LogSegment>>,
}

/// A commit that was decoded when it was found, and the spill files that it refers to.
pub(crate) type ReadRecord = Result<(Record, Vec<Arc<Spill>>)>;

/// Commits by segment and position.
pub(crate) type ReadRecords = HashMap<(usize, u64), ReadRecord>;

/// Valid records, and the commits among them.
pub(crate) type FoundRecords = (Vec<ValidRecord>, ReadRecords);

/// Opens the segments among these names, in order.
pub(crate) fn open_segments<'a>(
    storage: &dyn Storage,
    journal: &Path,
    names: impl Iterator<Item = &'a OsStr>,
    mode: ReadMode,
) -> Result<Vec<ScannedSegment>> {
    let mut segments = Vec::new();
    for index in names.filter_map(|name| segment_index(&name.to_string_lossy())) {
        let path = journal.join(segment_name(index));
        let how = match mode {
            ReadMode::PastCache => Open::WRITE.direct(),
            ReadMode::PastCacheReadOnly => Open::READ.direct(),
            ReadMode::Cached => Open::READ,
        };
        let file = match storage.open(&path, how) {
            // The owner has just removed a segment that no reader needs.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && mode == ReadMode::Cached => continue,
            done => done.context("open", &path)?,
        };
        let said = || file.attribute().context("read the attribute of", &path);
        let mut said_bytes = decode_length(index, said()?.as_deref());
        let bytes = file.meta().context("stat", &path)?.size;
        if said_bytes > bytes {
            // A process that cuts the segment sets the attribute first, so read the attribute again.
            said_bytes = decode_length(index, said()?.as_deref());
        }
        if bytes > SEGMENT_BYTES_MAX {
            return Err(Error::corrupt(path, format!("a segment of {bytes} bytes was not written by Untorn")));
        }
        segments.push(ScannedSegment {
            index,
            bytes: bytes - bytes % BLOCK_BYTES as u64,
            said_bytes,
            first_block_crc: 0,
            file,
            first_lsn: 0,
            last_lsn: 0,
            contents: Bytes::new(),
            unreadable: Vec::new(),
            log: None,
        });
    }
    segments.sort_unstable_by_key(|s| s.index);
    Ok(segments)
}

/// The error of the first segment that is missing, or shorter than it was. The lost records may have been the last of
/// the log, and nothing else would reveal the loss.
pub(crate) fn cut_short(header: &Header, segments: &[ScannedSegment], journal: &Path) -> Option<Error> {
    if !holds(invariant::SEGMENTS_KEEP_LENGTH) {
        return None;
    }
    let known = header.lengths.iter().zip(0..).map(|(blocks, index)| (index, u64::from(*blocks) * BLOCK_BYTES as u64));
    let said = segments.iter().map(|segment| (segment.index, segment.said_bytes));
    known.chain(said).find_map(|(index, bytes)| {
        let segment = segments.iter().find(|segment| segment.index == index);
        let detail = match segment {
            _ if bytes == 0 => return None,
            Some(segment) if segment.bytes >= bytes => return None,
            Some(segment) => format!("it has {} bytes, and had {bytes}: commits at its end are lost", segment.bytes),
            None => format!("it is missing, and had {bytes} bytes: commits in it are lost"),
        };
        Some(Error::corrupt(journal.join(segment_name(index)), detail))
    })
}

fn read_blocks(file: &dyn File, mode: ReadMode, buf: &mut [u8], at: u64) -> std::io::Result<()> {
    let n = match mode.is_past_cache() {
        true => read_full_past_cache_at(file, buf, at)?,
        false => read_full_at(file, buf, at)?,
    };
    // The file was this long before. Treating the rest as empty would drop commits.
    if n < buf.len() { Err(std::io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

/// Whether the block that a new epoch writes first still has the checksum in the clean header. A direct read also sees
/// the page cache's contents, so this needs no flush.
pub(crate) fn start_block_is_unchanged(
    segments: &mut [ScannedSegment],
    header: &Header,
    mode: ReadMode,
    journal: &Path,
) -> Result<bool> {
    let Some(segment) = segments.iter_mut().find(|s| s.index == header.start_segment) else { return Ok(false) };
    let other_length = segment.bytes != header.start_bytes() && holds(invariant::START_LENGTH);
    if segment.bytes == 0 || other_length || (mode.is_past_cache() && !segment.file.is_direct()) {
        return Ok(false);
    }
    let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
    match read_blocks(&*segment.file, mode, &mut block, 0) {
        // The log is scanned, as far as it can be read.
        Err(e) if is_media_error(&e) => return Ok(false),
        read => read.context("read", journal)?,
    }
    segment.first_block_crc = crc64(&block);
    Ok(segment.first_block_crc == header.start_crc)
}

/// The ranges of a segment that must be read, in whole blocks.
pub(crate) type Unread = [Range<u64>; 2];

/// All of a segment.
pub(crate) fn whole_segment(segment: &ScannedSegment) -> Unread {
    [0..segment.bytes, segment.bytes..segment.bytes]
}

/// Reads segments and finds records in them.
pub(crate) struct SegmentReader<'a> {
    pub storage: &'a dyn Storage,
    pub journal: &'a Path,
    pub mode: ReadMode,
    pub key: Key,
    /// LSN behind which records are searched.
    pub after: u64,
    /// Called with the bytes read so far, and the total.
    pub progress: &'a dyn Fn(u64, u64),
}

impl SegmentReader<'_> {
    /// Flushes the segments that are to be read past the page cache.
    pub(crate) fn flush(&self, segments: &[ScannedSegment]) -> Result<()> {
        let point = match self.mode {
            ReadMode::Cached => return Ok(()),
            ReadMode::PastCacheReadOnly => sync_point::READER_LOG,
            ReadMode::PastCache => sync_point::RECOVER_JOURNAL,
        };
        segments.iter().try_for_each(|segment| segment.file.sync_data(point)).context("flush", self.journal)
    }

    /// Reads all segments into memory, and searches each for records while the next one is read.
    pub(crate) fn read_all(&self, segments: &mut [ScannedSegment]) -> Result<Vec<ValidRecord>> {
        // Nothing is read from the log later.
        segments.iter_mut().for_each(|segment| segment.log = None);
        let all = segments.iter().map(|s| s.bytes).sum();
        let (mut valid, mut done) = (Vec::new(), 0);
        for next in 0..=segments.len() {
            let (before, behind) = segments.split_at_mut(next);
            let mut look = || {
                let Some(last) = before.last() else { return };
                self.find_records(last, next - 1, &mut valid);
            };
            let Some(segment) = behind.first_mut() else {
                look();
                break;
            };
            let (mut read, (mode, journal)) = (Ok(()), (self.mode, self.journal));
            self.alongside(segment.bytes, &mut || read = read_segment(segment, mode, journal), &mut look);
            read?;
            done += segment.bytes;
            (self.progress)(done, all);
        }
        Ok(valid)
    }

    fn alongside(&self, segment_bytes: u64, read: &mut (dyn FnMut() + Send), look: &mut dyn FnMut()) {
        match segment_bytes < READ_ALONGSIDE_MIN {
            true => {
                read();
                look();
            }
            false => self.storage.at_once(read, look),
        }
    }

    /// Finds every valid record of a segment with an LSN above `after`. A group starts on a block; within it, records
    /// follow each other.
    fn find_records(&self, read: &ScannedSegment, segment: usize, valid: &mut Vec<ValidRecord>) {
        let mut found = |head: RecordHead, crc, is_whole| {
            if head.lsn > self.after {
                valid.push(ValidRecord { head, crc, segment, is_whole });
            }
        };
        each_record(&read.contents, self.key, |head, crc| found(head, crc, true));
        each_record_around(&read.contents, &read.unreadable, self.key, found);
    }

    /// Reads these ranges of the segments in parts of this many bytes, into memory that is reused, and decodes records as
    /// they are found, while the next part is read. Records do not cross the ends of ranges.
    /// Returns `None` if the disk returned an error for a part.
    pub(crate) fn read_in_parts(
        &self,
        segments: &mut [ScannedSegment],
        unread: &[Unread],
        window_bytes: usize,
        in_memory_max: u64,
        spills: &mut SpillCache,
    ) -> Result<Option<FoundRecords>> {
        let lengths = || unread.iter().flatten().map(|range| range.end - range.start);
        let all: u64 = lengths().sum();
        let most = lengths().max().unwrap_or(0).min((WINDOWS * window_bytes) as u64);
        let mut window = Window::new(most as usize).context("find memory to read", self.journal)?;
        let (mut valid, mut records, mut done) = (Vec::new(), ReadRecords::new(), 0);
        for (at, (segment, ranges)) in segments.iter_mut().zip(unread).enumerate() {
            let log = match segment.log.take() {
                // Contents that the index tells of are read through the same one.
                Some(log) => log,
                None => LogSegment::open(self.storage, &self.journal.join(segment_name(segment.index)))?,
            };
            let mut found = |head: RecordHead, crc, body: &[u8]| {
                if head.lsn <= self.after {
                    return;
                }
                valid.push(ValidRecord { head, crc, segment: at, is_whole: true });
                if head.kind == RecordKind::Commit {
                    let place =
                        BodyInLog { segment: &log, start: head.position + RECORD_HEAD_BYTES as u64, in_memory_max };
                    records.insert((at, head.position), self.decode(&head, body, place, spills));
                }
            };
            if ranges[0].start > 0 {
                let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
                match read_blocks(&*segment.file, self.mode, &mut block, 0) {
                    Err(e) if is_media_error(&e) => return Ok(None),
                    read => read.context("read", self.journal)?,
                }
                segment.first_block_crc = crc64(&block);
            }
            for range in ranges {
                window.begin(range.start);
                while window.end() < range.end {
                    let len = (range.end - window.end()).min(window_bytes as u64) as usize;
                    window.make_room(len).context("find memory to read", self.journal)?;
                    let (end, mut read) = (window.end(), Ok(()));
                    let (known, next, look) = window.split(len);
                    let (file, mode) = (&*segment.file, self.mode);
                    let mut look = || look.each_record(known, range.end, self.key, &mut found);
                    self.alongside(range.end, &mut || read = read_blocks(file, mode, next, end), &mut look);
                    match read {
                        Err(e) if is_media_error(&e) => return Ok(None),
                        read => read.context("read", self.journal)?,
                    }
                    if end == 0 {
                        segment.first_block_crc = crc64(&next[..BLOCK_BYTES]);
                    }
                    window.filled += len;
                    done += len as u64;
                    (self.progress)(done, all);
                }
                let (known, _, look) = window.split(0);
                look.each_record(known, range.end, self.key, &mut found);
            }
            segment.log = Some(log);
        }
        debug_assert_eq!(done, all, "bytes of the segments were not read");
        debug_assert!(records.len() <= valid.len(), "{} commits of {} records", records.len(), valid.len());
        Ok(Some((valid, records)))
    }

    fn decode(&self, head: &RecordHead, body: &[u8], place: BodyInLog<'_>, spills: &mut SpillCache) -> ReadRecord {
        // Discard the spill files of an earlier record that failed to decode.
        spills.take_used();
        let lost = || contents_of(head.lsn, place.segment.path());
        let record = match head.body_by_reference {
            true => Decoder::decode_around(&body_by_reference(body, spills)?, spills, None, lost()),
            false => match Decoder::decode_in_log(body, place, spills, None) {
                Err(e) if is_unreadable(&e) => Decoder::decode_in_log(body, place, spills, Some(lost())),
                done => done,
            },
        };
        Ok((record?, spills.take_used()))
    }
}

fn read_segment(segment: &mut ScannedSegment, mode: ReadMode, journal: &Path) -> Result<()> {
    let mut buf = PageMemory::new(segment.bytes as usize).context("find memory to read", journal)?;
    let read = |piece: &mut [u8], at| read_blocks(&*segment.file, mode, piece, at);
    segment.unreadable = read_around(&mut buf, read).context("read", journal)?;
    segment.first_block_crc = crc64(&buf[..BLOCK_BYTES.min(buf.len())]);
    segment.contents = Bytes::from_owner(buf);
    Ok(())
}

/// Calls `found` for each valid record of a segment that is in memory.
pub(crate) fn each_record(bytes: &[u8], key: Key, mut found: impl FnMut(RecordHead, u64)) {
    let mut look = Look { start: 0, at: 0 };
    look.each_record(bytes, bytes.len() as u64, key, &mut |head, crc, _| found(head, crc));
}

/// A part of a segment, in memory.
struct Window {
    memory: PageMemory,
    filled: usize,
    look: Look,
}

/// How far a segment was searched.
struct Look {
    /// Offset in the segment of the part in memory.
    start: u64,
    /// Offset in the segment at which the next record may begin.
    at: u64,
}

impl Window {
    fn new(len: usize) -> std::io::Result<Window> {
        Ok(Window { memory: PageMemory::new(len)?, filled: 0, look: Look { start: 0, at: 0 } })
    }

    /// Starts with another range, from this offset of its segment on.
    fn begin(&mut self, start: u64) {
        (self.filled, self.look) = (0, Look { start, at: start });
    }

    /// Offset in the segment of the end of the part.
    fn end(&self) -> u64 {
        self.look.start + self.filled as u64
    }

    /// Makes room behind the part, and keeps the bytes that were not searched yet, from the beginning of their block
    /// on.
    fn make_room(&mut self, len: usize) -> std::io::Result<()> {
        if self.filled + len <= self.memory.len() {
            return Ok(());
        }
        let passed = (self.look.at.min(self.end()) - self.look.start) as usize;
        let passed = passed - passed % BLOCK_BYTES;
        let kept = passed..self.filled;
        // Leave as much room behind the kept bytes as they take, so that a long record is not moved for each of its
        // parts.
        let least = 2 * kept.len().max(len);
        if least > self.memory.len() {
            let mut larger = PageMemory::new(least)?;
            larger[..kept.len()].copy_from_slice(&self.memory[kept.clone()]);
            self.memory = larger;
        } else {
            self.memory.copy_within(kept.clone(), 0);
        }
        self.filled = kept.len();
        self.look.start += passed as u64;
        debug_assert!(
            self.filled + len <= self.memory.len() && self.look.start.is_multiple_of(BLOCK_BYTES as u64),
            "{} bytes from {} on, and room for {len} more in {}",
            self.filled,
            self.look.start,
            self.memory.len()
        );
        Ok(())
    }

    /// The bytes in memory, the memory for `len` more behind them, and the state of the search.
    fn split(&mut self, len: usize) -> (&[u8], &mut [u8], &mut Look) {
        let (known, behind) = self.memory.split_at_mut(self.filled);
        (known, &mut behind[..len], &mut self.look)
    }
}

impl Look {
    /// Calls `found` for each valid record and its body, up to the first record that continues behind the bytes in
    /// memory. The segment ends at `end`.
    fn each_record(&mut self, bytes: &[u8], end: u64, key: Key, found: &mut impl FnMut(RecordHead, u64, &[u8])) {
        let known = self.start + bytes.len() as u64;
        debug_assert!(self.start <= self.at && known <= end, "{} to {known} of {end}, from {} on", self.start, self.at);
        while self.at + RECORD_HEAD_BYTES as u64 <= known {
            let rest = &bytes[(self.at - self.start) as usize..];
            let head = RecordHead::decode_head(rest, self.at, end - self.at, key);
            if head.is_some_and(|(head, _)| head.len > rest.len() as u64) {
                return;
            }
            if let Some((head, crc)) = RecordHead::decode_at(rest, self.at, key) {
                found(head, crc, &rest[RECORD_HEAD_BYTES..head.len as usize]);
                self.at = (self.at + head.len).next_multiple_of(RECORD_ALIGN_BYTES as u64);
                continue;
            }
            // Behind the last record of a group, or inside a broken record, the next one may start on a block.
            self.at = (self.at + 1).next_multiple_of(BLOCK_BYTES as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commits::overlay::Source;
    use crate::commits::record::{FileRef, Op};
    use untorn_os::{Linux, write_all_at};

    const BODY_BYTES_MAX: usize = 40_000;

    fn record(rng: &mut fastrand::Rng, lsn: u64, position: u64, key: Key) -> Vec<u8> {
        let files = vec![FileRef { id: 7, previous_lsn: lsn - 1, path: "a".into() }];
        let mut ops = Vec::new();
        for _ in 0..rng.usize(1..4) {
            let bytes = Bytes::from(vec![rng.u8(..); rng.usize(1..BODY_BYTES_MAX / 4)]);
            let (origin, len) = (rng.u64(..1 << 30), bytes.len() as u64);
            ops.push(Op::Write { file: 0, range: origin..origin + len, source: Source::Bytes { bytes, origin } });
        }
        let mut record = vec![0; RECORD_HEAD_BYTES];
        Record { files, ops }.encode(&mut record).unwrap();
        let (kind, len) = (RecordKind::Commit, record.len() as u64);
        let (epoch, generation, previous_crc, durable_lsn) = (1, 1, 0, 0);
        let body_by_reference = false;
        let head = RecordHead {
            kind,
            body_by_reference,
            len,
            lsn,
            epoch,
            generation,
            position,
            previous_crc,
            durable_lsn,
            time: None,
        };
        head.seal(&mut record, key);
        record
    }

    /// Makes groups of records, with remains of older ones, and beginnings of records without an end.
    fn segment(rng: &mut fastrand::Rng, key: Key) -> Vec<u8> {
        let mut bytes = Vec::new();
        for lsn in 1..rng.u64(2..30) {
            if rng.u8(..3) == 0 {
                bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
            }
            if rng.u8(..6) == 0 {
                let mut torn = record(rng, lsn, bytes.len() as u64, key);
                torn.truncate(rng.usize(RECORD_HEAD_BYTES..=torn.len()));
                if torn.len() > RECORD_HEAD_BYTES {
                    *torn.last_mut().unwrap() ^= 1;
                }
                bytes.extend(torn);
                bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
            }
            bytes.extend(record(rng, lsn, bytes.len() as u64, key));
            bytes.resize(bytes.len().next_multiple_of(RECORD_ALIGN_BYTES), 0);
        }
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        bytes
    }

    /// The bytes that a record writes, with their offsets.
    fn written(record: &Record) -> Vec<(u64, u8)> {
        let mut all = Vec::new();
        for op in &record.ops {
            let Op::Write { range, source, .. } = op else { continue };
            let mut bytes = vec![0; (range.end - range.start) as usize];
            source.copy_to(&mut bytes, range.start).unwrap();
            all.extend(range.clone().zip(bytes));
        }
        all
    }

    #[test]
    fn records_are_found_in_parts_as_in_the_whole_segment() {
        let dir = tempfile::tempdir().unwrap();
        let storage: Arc<dyn Storage> = Linux::open(dir.path()).unwrap();
        let key = Key(77);
        for seed in 0..60 {
            let rng = &mut fastrand::Rng::with_seed(seed);
            let names: Vec<String> = (0..rng.u32(1..5)).map(segment_name).collect();
            for name in &names {
                let bytes = if rng.u8(..5) == 0 { Vec::new() } else { segment(rng, key) };
                write_all_at(&*storage.open(Path::new(name), Open::create(0o600)).unwrap(), &bytes, 0).unwrap();
            }
            let (journal, mode) = (Path::new(""), ReadMode::Cached);
            let reader = SegmentReader { storage: &*storage, journal, mode, key, after: 2, progress: &|_, _| {} };
            let open = || open_segments(&*storage, journal, names.iter().map(OsStr::new), mode).unwrap();
            let (mut whole, mut parts) = (open(), open());
            let valid = reader.read_all(&mut whole).unwrap();
            let spills = &mut SpillCache::none();
            let window = BLOCK_BYTES * rng.usize(1..8);
            let all: Vec<Unread> = parts.iter().map(whole_segment).collect();
            let (in_parts, found) = reader.read_in_parts(&mut parts, &all, window, 64, spills).unwrap().unwrap();
            let heads =
                |valid: &[ValidRecord]| valid.iter().map(|v| (v.segment, v.head.position, v.crc)).collect::<Vec<_>>();
            assert_eq!(heads(&in_parts), heads(&valid), "seed {seed}, parts of {window} bytes");
            let first_blocks = |segments: &[ScannedSegment]| {
                segments.iter().map(|segment| segment.first_block_crc).collect::<Vec<_>>()
            };
            assert_eq!(first_blocks(&parts), first_blocks(&whole), "seed {seed}");
            for v in valid {
                let from = v.head.position as usize;
                let body = from + RECORD_HEAD_BYTES..from + v.head.len as usize;
                let expected = Decoder::decode(&whole[v.segment].contents.slice(body), spills).unwrap();
                let (decoded, _) = found[&(v.segment, v.head.position)].as_ref().unwrap();
                assert!(written(decoded) == written(&expected), "seed {seed}, commit {}", v.head.lsn);
            }
            names.iter().for_each(|name| storage.unlink(Path::new(name)).unwrap());
        }
    }
}
