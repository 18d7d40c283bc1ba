//! Reads a journal: its header, every valid record, and which of them are accepted.
//!
//! A record is *valid* by itself: its checksum is right and it stands where it says. It is *accepted*
//! only when it follows its predecessor. The accepted run ends at the first gap. Whether that gap is
//! the torn end of the journal or damage is decided by what lies beyond it.

use crate::care::{Care, kept};
use crate::error::{Context, Error, Result};
use crate::format::{
    BLOCK_BYTES, HEADER_SLOTS, Header, RECORD_ALIGN_BYTES, RECORD_HEAD_BYTES, RecordHead, RecordKind, crc64,
};
use crate::home::segment_index;
use crate::record::{Decoder, ExtentCache, Record, body_by_reference};
use bytes::Bytes;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_os::{AlignedBuf, File, Open, Step, Storage, read_full_at, read_full_past_cache_at};

/// A journal is read whole; one larger than this is not ours.
const SEGMENT_BYTES_MAX: u64 = 4 << 30;

/// How to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMode {
    /// Flush, then read what the disk holds: a killed owner's record may be in the cache only, and
    /// applying it before it is durable tears the store at the next power cut.
    PastCache,
    /// Read what the kernel shows: class `process`, and looking without changing anything.
    Cached,
}

/// A valid record.
#[derive(Clone, Copy, Debug)]
pub struct Valid {
    /// Its head.
    pub head: RecordHead,
    /// Its checksum.
    pub crc: u64,
    /// Position in `Scan::segments`.
    pub segment: usize,
}

/// An accepted commit.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// Its number.
    pub sequence: u64,
    /// What it says.
    pub record: Record,
}

/// A segment as read.
pub struct ScannedSegment {
    /// Its index, which is its name.
    pub index: u32,
    /// Its length.
    pub bytes: u64,
    /// Checksum of its first block.
    pub first_block_crc: u64,
    /// The open file.
    pub file: Arc<dyn File>,
}

/// What a journal holds.
pub struct Scan {
    /// The newest valid header.
    pub header: Header,
    /// Segments, by index.
    pub segments: Vec<ScannedSegment>,
    /// Every valid record after the header's `through`, by number.
    pub valid: Vec<Valid>,
    /// Accepted commits in order (marks are accepted, too, but say nothing).
    pub accepted: Vec<Accepted>,
    /// The accepted records themselves, marks included.
    pub accepted_heads: Vec<Valid>,
    /// Number of the last accepted record, or the header's `through`.
    pub last: u64,
    /// Its checksum.
    pub last_crc: u64,
    /// The session of the accepted records.
    pub session: Option<u64>,
    /// There are remains of records that never became whole.
    pub torn_tail: bool,
    /// The block that a clean header vouches for has changed: something was written after it.
    pub start_changed: bool,
    /// Damage that no crash explains.
    pub corrupt: Option<Error>,
    /// Extent files in the journal's directory.
    pub extents: Vec<u64>,
    /// Names in that directory that mean nothing once every record is applied.
    pub strays: Vec<String>,
    /// The header told that nothing was written since: segments were not read.
    pub untouched: bool,
}

/// Reads the newest valid header slot of a journal.
pub fn read_header(storage: &dyn Storage, journal: &Path) -> Result<Header> {
    let path = journal.join("header");
    let file = storage.open(&path, Open::READ).context("open", &path)?;
    let mut slots = vec![0; BLOCK_BYTES * HEADER_SLOTS as usize];
    read_full_at(&*file, &mut slots, 0).context("read", &path)?;
    let mut best: Option<Header> = None;
    for (at, slot) in slots.chunks(BLOCK_BYTES).enumerate() {
        // A header that stands in the wrong slot was not written there: a torn write left old contents of
        // some other block, which may well be a header of a journal that was removed.
        if let Some(header) = Header::decode(slot, &path)?
            && header.generation % HEADER_SLOTS == at as u64
            && best.as_ref().is_none_or(|b| header.generation > b.generation)
        {
            best = Some(header);
        }
    }
    best.ok_or_else(|| {
        if slots.iter().any(|b| *b != 0)
            && !slots.windows(8).step_by(BLOCK_BYTES).any(|w| w == crate::format::HEADER_MAGIC)
        {
            Error::Foreign { path, detail: "it is not a journal header of Untorn's".into() }
        } else {
            Error::corrupt(path, "neither header slot is valid")
        }
    })
}

/// Makes the header durable as it is in the cache, and the cache as it is on the disk: where a flush
/// failed before, the cache still shows what was lost.
pub fn flush_header(storage: &dyn Storage, journal: &Path) -> Result<()> {
    let path = journal.join("header");
    let file = storage.open(&path, Open::WRITE).context("open", &path)?;
    file.sync_data(Step::RecoverJournal).context("flush", &path)?;
    let mut slots = AlignedBuf::zeroed(BLOCK_BYTES * HEADER_SLOTS as usize);
    read_full_past_cache_at(&*file, &mut slots, 0).context("read", &path).map(drop)
}

/// Reads a journal. With `look_closer`, segments are read even if the header tells that they need not be.
pub fn scan(
    storage: &Arc<dyn Storage>,
    journal: &Path,
    mode: ReadMode,
    look_closer: bool,
    progress: &dyn Fn(u64, u64),
) -> Result<Scan> {
    let header = read_header(&**storage, journal)?;
    let mut scan = Scan {
        last: header.through,
        last_crc: header.through_crc,
        header,
        segments: Vec::new(),
        valid: Vec::new(),
        accepted: Vec::new(),
        accepted_heads: Vec::new(),
        session: None,
        torn_tail: false,
        start_changed: false,
        corrupt: None,
        extents: Vec::new(),
        strays: Vec::new(),
        untouched: false,
    };
    open_segments(&**storage, journal, mode, &mut scan)?;
    if scan.header.clean && !look_closer && start_is_untouched(&mut scan, mode, journal)? {
        scan.untouched = true;
        return Ok(scan);
    }
    let contents = read_segments(&mut scan, mode, journal, progress)?;
    for (segment, bytes) in contents.iter().enumerate() {
        find_valid(bytes, segment, &mut scan);
    }
    scan.valid.sort_by_key(|v| v.head.sequence);
    accept(storage, journal, &contents, &mut scan);
    Ok(scan)
}

fn open_segments(storage: &dyn Storage, journal: &Path, mode: ReadMode, scan: &mut Scan) -> Result<()> {
    for name in storage.list(journal).context("list", journal)? {
        let name = name.to_string_lossy();
        if let Some(id) = crate::extent::extent_id(&name) {
            scan.extents.push(id);
            scan.strays.push(name.to_string());
        } else if name == crate::held::NAME_NEW {
            scan.strays.push(name.to_string());
        }
        let Some(index) = segment_index(&name) else { continue };
        let path = journal.join(&*name);
        let how = match mode {
            ReadMode::PastCache => Open::WRITE.direct(),
            ReadMode::Cached => Open::READ,
        };
        let file = storage.open(&path, how).context("open", &path)?;
        let bytes = file.meta().context("look at", &path)?.size;
        if bytes > SEGMENT_BYTES_MAX {
            return Err(Error::corrupt(path, format!("a segment of {bytes} bytes cannot be ours")));
        }
        let bytes = bytes - bytes % BLOCK_BYTES as u64;
        scan.segments.push(ScannedSegment { index, bytes, first_block_crc: 0, file });
    }
    scan.segments.sort_by_key(|s| s.index);
    Ok(())
}

fn read_blocks(file: &dyn File, mode: ReadMode, buf: &mut AlignedBuf, at: u64) -> std::io::Result<()> {
    let n = match mode {
        ReadMode::PastCache => read_full_past_cache_at(file, buf, at)?,
        ReadMode::Cached => read_full_at(file, buf, at)?,
    };
    // Its length was looked up before: to take the rest for empty would drop commits.
    if n < buf.len() { Err(std::io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

/// Whether the block that a new session writes first is as the header of the clean journal says. A
/// direct read sees what is in the cache as well, so this needs no flush.
fn start_is_untouched(scan: &mut Scan, mode: ReadMode, journal: &Path) -> Result<bool> {
    let (start, crc) = (scan.header.start_segment, scan.header.start_crc);
    let Some(segment) = scan.segments.iter_mut().find(|s| s.index == start) else { return Ok(false) };
    if segment.bytes == 0 || (mode == ReadMode::PastCache && !segment.file.is_direct()) {
        return Ok(false);
    }
    let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
    read_blocks(&*segment.file, mode, &mut block, 0).context("read", journal)?;
    segment.first_block_crc = crc64(&block);
    Ok(segment.first_block_crc == crc)
}

fn read_segments(scan: &mut Scan, mode: ReadMode, journal: &Path, progress: &dyn Fn(u64, u64)) -> Result<Vec<Bytes>> {
    let all = scan.segments.iter().map(|s| s.bytes).sum();
    if mode == ReadMode::PastCache {
        for segment in &scan.segments {
            segment.file.sync_data(Step::RecoverJournal).context("flush", journal)?;
        }
    }
    let mut done = 0;
    let mut contents = Vec::new();
    for segment in &mut scan.segments {
        let mut buf = AlignedBuf::zeroed(segment.bytes as usize);
        read_blocks(&*segment.file, mode, &mut buf, 0).context("read", journal)?;
        segment.first_block_crc = crc64(&buf[..BLOCK_BYTES.min(buf.len())]);
        done += segment.bytes;
        progress(done, all);
        contents.push(Bytes::from_owner(buf));
    }
    let start = scan.segments.iter().find(|s| s.index == scan.header.start_segment);
    scan.start_changed = start.is_none_or(|s| s.first_block_crc != scan.header.start_crc);
    Ok(contents)
}

/// Every valid record of a segment that is newer than the header. A group starts on a block; within
/// it records follow each other.
fn find_valid(bytes: &Bytes, segment: usize, scan: &mut Scan) {
    let mut at = 0;
    while at + RECORD_HEAD_BYTES <= bytes.len() {
        match RecordHead::decode(bytes, at) {
            Some((head, crc)) => {
                if head.sequence > scan.header.through {
                    scan.valid.push(Valid { head, crc, segment });
                }
                at = (at + head.len as usize).next_multiple_of(RECORD_ALIGN_BYTES);
            }
            // Behind the last record of a group, or inside a broken one: the next may start on a block.
            None => at = (at + 1).next_multiple_of(BLOCK_BYTES),
        }
    }
}

/// Follows the chain from the header, then judges what lies beyond its end.
fn accept(storage: &Arc<dyn Storage>, journal: &Path, contents: &[Bytes], scan: &mut Scan) {
    let mut extents = ExtentCache::new(storage.clone(), journal.to_owned());
    let mut by_number: HashMap<u64, Vec<Valid>> = HashMap::new();
    for v in &scan.valid {
        by_number.entry(v.head.sequence).or_default().push(*v);
    }
    loop {
        let next = scan.last + 1;
        let follows = |v: &&Valid| {
            (v.head.previous_crc == scan.last_crc || !kept(Care::Chain))
                && (scan.session.is_none_or(|session| session == v.head.session) || !kept(Care::Session))
        };
        let Some(v) = by_number.get(&next).and_then(|found| found.iter().find(follows)).copied() else { break };
        if v.head.kind == RecordKind::Commit {
            match decode(&v, &contents[v.segment], &mut extents) {
                Ok(record) => scan.accepted.push(Accepted { sequence: next, record }),
                Err(e) => {
                    scan.corrupt = Some(Error::corrupt(place(journal, scan, &v), format!("commit {next}: {e}")));
                    return;
                }
            }
        }
        scan.session = Some(v.head.session);
        scan.last = next;
        scan.last_crc = v.crc;
        scan.accepted_heads.push(v);
    }
    scan.torn_tail = scan.valid.iter().any(|v| v.head.sequence > scan.last);
    judge(journal, scan);
}

fn decode(v: &Valid, segment: &Bytes, extents: &mut ExtentCache) -> Result<Record> {
    let from = v.head.position as usize + RECORD_HEAD_BYTES;
    let body = segment.slice(from..v.head.position as usize + v.head.len as usize);
    let body = if v.head.body_by_reference { body_by_reference(&body, extents)? } else { body };
    Decoder::decode(&body, extents)
}

/// Damage, or a torn end? A missing record that a later one calls durable was damaged; so was the
/// header if a record is newer than it.
fn judge(journal: &Path, scan: &mut Scan) {
    let evidence = scan.valid.iter().find(|v| v.head.durable_through > scan.last);
    if let (Some(v), true) = (evidence, kept(Care::DurableThrough)) {
        let detail = format!(
            "commit {} is missing or damaged, though commit {} in {} was written when it was durable already",
            scan.last + 1,
            v.head.sequence,
            place(journal, scan, v).display()
        );
        scan.corrupt = Some(Error::corrupt(journal, detail));
    } else if kept(Care::NewestHeader)
        && let Some(v) = scan.valid.iter().find(|v| v.head.generation > scan.header.generation)
    {
        let detail = format!(
            "the newest header is lost: commit {} was written under header {}, and the newest valid one is {}",
            v.head.sequence, v.head.generation, scan.header.generation
        );
        scan.corrupt = Some(Error::corrupt(journal.join("header"), detail));
    }
}

fn place(journal: &Path, scan: &Scan, v: &Valid) -> PathBuf {
    journal.join(crate::home::segment_name(scan.segments[v.segment].index))
}
