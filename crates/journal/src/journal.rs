//! The journal of an open store: commits go in at one end, checkpoints give space back at the other.
//!
//! ```text
//! segment:   free ──commit──▶ current ──no room left──▶ full ──retire──▶ free
//! ```
//!
//! A commit group is one run of records, starting on a fresh block: one write, one flush. No byte
//! that was acknowledged is ever rewritten before the header that gives it up is durable.

use crate::care::{Care, kept};
use crate::error::{Context, Error, Outcome, Result};
use crate::extent::{Extent, append_summed};
use crate::format::{
    BLOCK_BYTES, HEADER_SLOTS, Header, RECORD_ALIGN_BYTES, RECORD_HEAD_BYTES, RecordHead, RecordKind, StoreId, crc64,
};
use crate::home::{create_segment, segment_name};
use crate::layer::Source;
use crate::record::{Op, Record};
use crate::scan::ScannedSegment;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_os::{AlignedBuf, File, Open, Step, Storage, write_all_at};

/// Sizes and promises of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Flush commits (class `power`), or let the page cache be enough (class `process`).
    pub durable: bool,
    /// Most bytes of segments.
    pub journal_bytes: u64,
    /// Bytes of the first segment, so that small stores stay small.
    pub segment_bytes_first: u64,
    /// A commit with more bytes than this goes by reference.
    pub inline_bytes_max: u64,
}

impl Options {
    /// Largest segment, and so the largest record.
    pub fn segment_bytes_max(&self) -> u64 {
        let quarter = self.journal_bytes / 4;
        (quarter - quarter % BLOCK_BYTES as u64).max(self.segment_bytes_first)
    }
}

struct Segment {
    index: u32,
    bytes: u64,
    file: Arc<dyn File>,
    /// The last record in it; 0: none that counts.
    last: u64,
    /// Checksum of its first block, if known.
    first_block_crc: Option<u64>,
}

/// An extent that records in the journal refer to.
struct LiveExtent {
    extent: Arc<Extent>,
    last: u64,
}

/// Totals since the journal was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalCounters {
    /// Commits.
    pub commits: u64,
    /// Groups of commits that shared a flush.
    pub groups: u64,
    /// Bytes written to segments and extents.
    pub bytes_written: u64,
}

/// How far a checkpoint reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The last commit that it covers.
    pub through: u64,
    /// The same for the attributes of data files, which must not run ahead of the disk: a mark behind
    /// the last commit may still be lost.
    pub durable_through: u64,
    crc: u64,
}

/// A header on its way to the disk. Written without holding up commits.
pub struct HeaderWrite {
    header: Header,
    file: Arc<dyn File>,
    path: PathBuf,
    sync: Option<Step>,
}

impl HeaderWrite {
    /// Writes the slot that the last header does not use, and makes it durable.
    pub fn write(&self) -> Result<()> {
        let at = BLOCK_BYTES as u64 * (self.header.generation % HEADER_SLOTS);
        write_all_at(&*self.file, &self.header.encode(), at).context("write", &self.path)?;
        match self.sync {
            Some(step) => self.file.sync_data(step).context("flush", &self.path),
            None => Ok(()),
        }
    }
}

/// How a group of commits went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    /// The first `n` records are committed; their numbers start here.
    Records {
        /// Number of the first.
        first: u64,
        /// How many.
        n: usize,
    },
    /// There is no room for the first record until a checkpoint makes some.
    Full,
}

/// The journal of an open store.
pub struct Journal {
    storage: Arc<dyn Storage>,
    dir: PathBuf,
    options: Options,
    session: u64,
    header: Header,
    header_file: Arc<dyn File>,
    segments: Vec<Segment>,
    current: usize,
    position: u64,
    next: u64,
    previous_crc: u64,
    durable_through: u64,
    /// Generation of the newest header that was flushed.
    durable_generation: u64,
    /// The header on the disk may name a boot though the one here does not.
    boot_unsure: bool,
    extents: Vec<LiveExtent>,
    /// Bodies by reference of records that are sealed, but not written.
    bodies: Vec<(Arc<Extent>, u64)>,
    failed: Option<(Outcome, Arc<io::Error>)>,
    buf: AlignedBuf,
    /// Segments with records, or a mark, that were not flushed yet.
    unflushed: Vec<usize>,
    /// A mark is due: the last record is a commit that no later record calls durable.
    unmarked: bool,
    counters: JournalCounters,
}

impl Journal {
    /// Continues behind a clean header; every segment is free.
    pub fn new(
        storage: Arc<dyn Storage>,
        dir: PathBuf,
        options: Options,
        header: Header,
        segments: Vec<ScannedSegment>,
    ) -> Result<Journal> {
        let path = dir.join("header");
        let header_file = storage.open(&path, Open::WRITE).context("open", &path)?;
        let mut session = [0; 8];
        storage.random(&mut session).context("draw a session number for", &dir)?;
        let start = header.start_segment;
        let mut journal = Journal {
            session: u64::from_le_bytes(session).max(1),
            next: header.through + 1,
            previous_crc: header.through_crc,
            durable_through: header.through,
            durable_generation: header.generation,
            boot_unsure: false,
            header,
            header_file,
            segments: Vec::new(),
            current: 0,
            position: 0,
            extents: Vec::new(),
            bodies: Vec::new(),
            failed: None,
            buf: AlignedBuf::default(),
            unflushed: Vec::new(),
            unmarked: false,
            counters: JournalCounters::default(),
            storage,
            dir,
            options,
        };
        for s in segments {
            // How a segment is opened follows the class of this session, not of the scan.
            let path = journal.dir.join(segment_name(s.index));
            let how = if options.durable { Open::WRITE.direct() } else { Open::WRITE };
            let file = journal.storage.open(&path, how).context("open", &path)?;
            let first_block_crc = (s.first_block_crc != 0).then_some(s.first_block_crc);
            journal.segments.push(Segment { index: s.index, bytes: s.bytes, file, last: 0, first_block_crc });
        }
        match journal.segments.iter().position(|s| s.index == start && s.bytes > 0) {
            Some(at) => journal.current = at,
            None => journal.current = journal.add_segment(options.segment_bytes_first)?,
        }
        Ok(journal)
    }

    /// The store.
    pub fn store(&self) -> StoreId {
        self.header.store
    }

    /// This opening of the store.
    pub fn session(&self) -> u64 {
        self.session
    }

    /// The newest durable header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Number of the last commit.
    pub fn last(&self) -> u64 {
        self.next - 1
    }

    /// Totals.
    pub fn counters(&self) -> JournalCounters {
        self.counters
    }

    /// Bytes of all segments.
    pub fn allocated_bytes(&self) -> u64 {
        self.segments.iter().map(|s| s.bytes).sum()
    }

    /// Bytes of segments that a checkpoint would free.
    pub fn pending_bytes(&self) -> u64 {
        let full: u64 = self.segments.iter().filter(|s| s.last > self.header.through).map(|s| s.bytes).sum();
        let current = &self.segments[self.current];
        if current.last > self.header.through { full - current.bytes + self.position } else { full }
    }

    /// Extent files that a checkpoint would free.
    pub fn pending_extents(&self) -> usize {
        self.extents.len()
    }

    /// Whether commits bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.segments[self.current].file.is_direct()
    }

    /// Directory of the journal, for new extents.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The sticky failure.
    pub fn failure(&self) -> Option<Error> {
        self.failed.as_ref().map(|(outcome, source)| Error::SyncFailed { outcome: *outcome, source: source.clone() })
    }

    /// A failed sync is never believed to have been mended by a later one.
    fn fail(&mut self, outcome: Outcome, e: io::Error) -> Error {
        let source = Arc::new(e);
        // Later commits did not happen, whatever became of this one.
        self.failed = kept(Care::StickyError).then(|| (Outcome::NotCommitted, source.clone()));
        Error::SyncFailed { outcome, source }
    }

    /// Commits records: stage, seal, flush. All of them, or as many as there is room for.
    pub fn commit(&mut self, records: &[Record]) -> Result<Committed> {
        if let Some(e) = self.failure() {
            return Err(e);
        }
        self.flush_extents(records)?;
        let first = self.next;
        let mut done = 0;
        while done < records.len() {
            match self.write_some(&records[done..]) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if done == 0 => return Err(e),
                // What is written already is committed; the next call meets this error again.
                Err(_) if self.failed.is_none() => break,
                // What is written already may be found again.
                Err(Error::SyncFailed { source, .. }) => {
                    return Err(Error::SyncFailed { outcome: Outcome::UnknownUntilReopened, source });
                }
                Err(e) => return Err(e),
            }
        }
        if done == 0 {
            return Ok(Committed::Full);
        }
        self.flush()?;
        self.unmarked = true;
        self.counters.commits += done as u64;
        self.counters.groups += 1;
        Ok(Committed::Records { first, n: done })
    }

    /// Writes as many records as fit into one segment; 0: there is no room for the first.
    fn write_some(&mut self, records: &[Record]) -> Result<usize> {
        loop {
            let (next, previous_crc) = (self.next, self.previous_crc);
            match self.seal(records) {
                Ok(0) => {}
                Ok(n) => {
                    self.keep_extents(&records[..n], next);
                    return self.write_group().map(|()| n);
                }
                Err(e) => {
                    // Sealed in memory only: the numbers are free again.
                    (self.next, self.previous_crc) = (next, previous_crc);
                    self.bodies.clear();
                    return Err(e);
                }
            }
            if !self.advance(self.room_for(&records[0]))? {
                return Ok(0);
            }
        }
    }

    /// Extents are durable, names included, before a record refers to them.
    fn flush_extents(&mut self, records: &[Record]) -> Result<()> {
        let mut any = false;
        for op in records.iter().flat_map(|r| &r.ops) {
            let Op::Put { source: Source::Extent { extent, .. }, .. } = op else { continue };
            if !self.options.durable {
                continue;
            }
            match extent.sync() {
                Ok(synced) => any |= synced,
                // Whatever the reason, no space included: a second flush would not tell the truth.
                Err(e) => return Err(self.fail(Outcome::NotCommitted, e)),
            }
        }
        if any && let Err(e) = self.storage.sync_dir(&self.dir, Step::ExtentName) {
            return Err(self.fail(Outcome::NotCommitted, e));
        }
        Ok(())
    }

    /// Bytes that a record takes, at most.
    fn room_for(&self, record: &Record) -> u64 {
        let body = record.body_bytes();
        let inline = RECORD_HEAD_BYTES as u64 + body;
        let most = self.options.segment_bytes_max();
        // The operation list itself goes by reference if it fits nowhere.
        if inline > most { RECORD_HEAD_BYTES as u64 + 24 } else { inline }
    }

    /// Puts as many records as fit behind the current position into the buffer, linked and sealed.
    fn seal(&mut self, records: &[Record]) -> Result<usize> {
        self.buf.clear();
        let room = self.segments[self.current].bytes - self.position;
        let mut sealed = 0;
        for record in records {
            let at = self.buf.len().next_multiple_of(RECORD_ALIGN_BYTES);
            let needed = self.room_for(record);
            if at as u64 + needed > room {
                break;
            }
            self.buf.resize(at + RECORD_HEAD_BYTES);
            let by_reference = record.body_bytes() + RECORD_HEAD_BYTES as u64 > self.options.segment_bytes_max();
            if by_reference {
                let place = self.body_to_extent(record)?;
                self.buf.extend(&place);
            } else {
                record.encode(&mut self.buf)?;
            }
            self.seal_one(at, RecordKind::Commit, by_reference);
            sealed += 1;
        }
        Ok(sealed)
    }

    /// The record that starts at `at` of the buffer is complete: head, checksum, chain.
    fn seal_one(&mut self, at: usize, kind: RecordKind, body_by_reference: bool) {
        let head = RecordHead {
            kind,
            body_by_reference,
            len: (self.buf.len() - at) as u64,
            sequence: self.next,
            session: self.session,
            generation: self.header.generation,
            position: self.position + at as u64,
            previous_crc: self.previous_crc,
            durable_through: self.durable_through,
        };
        self.previous_crc = head.seal(&mut self.buf[at..]);
        self.next += 1;
    }

    fn body_to_extent(&mut self, record: &Record) -> Result<[u8; 24]> {
        let extent = Extent::create(&self.storage, &self.dir)?;
        let mut body = Vec::new();
        record.encode(&mut body)?;
        let (_, crc) = append_summed(&extent, &body)?;
        self.counters.bytes_written += body.len() as u64;
        if self.options.durable {
            let named = extent.sync().and_then(|_| self.storage.sync_dir(&self.dir, Step::ExtentName));
            named.map_err(|e| self.fail(Outcome::NotCommitted, e))?;
        }
        let mut place = [0; 24];
        place[..8].copy_from_slice(&extent.id.to_le_bytes());
        place[8..16].copy_from_slice(&(body.len() as u64).to_le_bytes());
        place[16..].copy_from_slice(&crc.to_le_bytes());
        self.bodies.push((extent, self.next));
        Ok(place)
    }

    /// Records that are about to be written refer to extents, which stay until those are given up.
    fn keep_extents(&mut self, records: &[Record], first: u64) {
        let mut kept = std::mem::take(&mut self.bodies);
        for (record, sequence) in records.iter().zip(first..) {
            for op in &record.ops {
                if let Op::Put { source: Source::Extent { extent, .. }, .. } = op {
                    kept.push((extent.clone(), sequence));
                }
            }
        }
        for (extent, last) in kept {
            extent.keep();
            match self.extents.iter_mut().find(|e| e.extent.id == extent.id) {
                Some(known) => known.last = last,
                None => self.extents.push(LiveExtent { extent, last }),
            }
        }
    }

    /// Writes the buffer at the current position and moves on to the next block.
    fn write_group(&mut self) -> Result<()> {
        self.buf.pad_to_block();
        let last = self.next - 1;
        let segment = &mut self.segments[self.current];
        if self.position == 0 {
            segment.first_block_crc = Some(crc64(&self.buf[..BLOCK_BYTES]));
        }
        let written = write_all_at(&*segment.file, &self.buf, self.position);
        segment.last = last;
        self.position += self.buf.len() as u64;
        self.counters.bytes_written += self.buf.len() as u64;
        if !self.unflushed.contains(&self.current) {
            self.unflushed.push(self.current);
        }
        written.map_err(|e| self.fail(Outcome::UnknownUntilReopened, e))
    }

    /// The one flush of a commit; a second one if the group began in another segment, or a mark did.
    fn flush(&mut self) -> Result<()> {
        for at in std::mem::take(&mut self.unflushed) {
            if self.options.durable
                && let Err(e) = self.segments[at].file.sync_data(Step::Commit)
            {
                return Err(self.fail(Outcome::UnknownUntilReopened, e));
            }
        }
        self.durable_through = self.next - 1;
        Ok(())
    }

    /// Goes on in a free segment with that much room, making one if the journal may grow.
    fn advance(&mut self, bytes: u64) -> Result<bool> {
        // Only before the first record: later there may be a checkpoint with a header of its own on the way.
        if self.header.clean && self.position == 0 && self.last() == self.header.through {
            // The header says that there is no news without a change in this segment. Not any more.
            let write = self.header_write(self.next_header(), Step::HeaderUnclean);
            write.write()?;
            self.retired(write);
        }
        let through = self.header.through;
        let current = self.current;
        if self.position > 0 && self.segments[current].last <= through && self.segments[current].bytes >= bytes {
            self.position = 0;
            return Ok(true);
        }
        let free = (0..self.segments.len())
            .filter(|at| *at != current)
            .find(|at| self.segments[*at].last <= through && self.segments[*at].bytes >= bytes);
        if let Some(at) = free {
            self.current = at;
            self.position = 0;
            return Ok(true);
        }
        let allocated = self.allocated_bytes();
        // Growing fourfold keeps the flushes that growth costs few.
        let wanted =
            (3 * allocated).min(self.options.segment_bytes_max()).max(bytes.next_multiple_of(BLOCK_BYTES as u64));
        let left = self.options.journal_bytes.saturating_sub(allocated);
        let size = wanted.min(left - left % BLOCK_BYTES as u64);
        if size < bytes {
            return self.replace_small_segments(bytes);
        }
        match self.add_segment(size) {
            Ok(at) => {
                self.current = at;
                self.position = 0;
                Ok(true)
            }
            // Something to checkpoint may free a segment; without it, this is the caller's answer.
            Err(Error::NoSpace { .. }) if self.pending_bytes() > 0 => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// A journal at its limit may consist of segments that are all too small for this record: free
    /// ones make room for one that is large enough.
    fn replace_small_segments(&mut self, bytes: u64) -> Result<bool> {
        let through = self.header.through;
        if self.segments.iter().any(|s| s.bytes >= bytes) || bytes > self.options.segment_bytes_max() {
            return Ok(false);
        }
        if self.segments.iter().any(|s| s.last > through) {
            return Ok(false);
        }
        let at = self.add_segment(bytes.next_multiple_of(BLOCK_BYTES as u64))?;
        self.current = at;
        self.position = 0;
        Ok(true)
    }

    fn add_segment(&mut self, bytes: u64) -> Result<usize> {
        let index = self.segments.iter().map(|s| s.index + 1).max().unwrap_or(0);
        let durable = self.options.durable;
        let file = create_segment(&*self.storage, &self.dir, index, bytes, durable, Step::SegmentContents)?;
        if durable && let Err(e) = self.storage.sync_dir(&self.dir, Step::SegmentName) {
            // The next try makes it under the same name.
            let _ = self.storage.unlink(&self.dir.join(segment_name(index)));
            return Err(Error::io("flush", &self.dir, e));
        }
        let first_block_crc = Some(crc64(&[0; BLOCK_BYTES]));
        self.segments.push(Segment { index, bytes, file, last: 0, first_block_crc });
        Ok(self.segments.len() - 1)
    }

    /// Writes a mark if the last commit still lacks one: it says that everything before it was
    /// flushed, so that later damage to the last group is told from a torn end. Not flushed itself.
    pub fn mark(&mut self) -> Result<bool> {
        if !self.unmarked || self.failed.is_some() || !self.options.durable {
            return Ok(false);
        }
        if self.segments[self.current].bytes - self.position < BLOCK_BYTES as u64 {
            return Ok(false);
        }
        self.buf.clear();
        self.buf.resize(RECORD_HEAD_BYTES);
        self.seal_one(0, RecordKind::Mark, false);
        self.write_group()?;
        self.unmarked = false;
        Ok(true)
    }

    /// Everything committed so far, for a checkpoint.
    pub fn cut(&self) -> Cut {
        Cut { through: self.next - 1, durable_through: self.durable_through, crc: self.previous_crc }
    }

    /// Begins to give up every record up to the cut. The data files were flushed before. The caller
    /// writes the header and then calls [`Journal::retired`].
    pub fn retire(&self, cut: Cut) -> HeaderWrite {
        let mut header = self.next_header();
        header.through = cut.through;
        header.through_crc = cut.crc;
        self.header_write(header, Step::Header)
    }

    fn next_header(&self) -> Header {
        let mut header = self.header.clone();
        header.generation += if kept(Care::OtherSlot) { 1 } else { HEADER_SLOTS };
        header.session = self.session;
        header.clean = false;
        header
    }

    fn header_write(&self, header: Header, step: Step) -> HeaderWrite {
        self.header_write_with(header, self.options.durable.then_some(step))
    }

    /// A header that is not flushed never goes over the newest durable one: a power cut must not bring
    /// back the one before, which knows nothing of this boot.
    fn header_write_with(&self, mut header: Header, sync: Option<Step>) -> HeaderWrite {
        let over_durable = header.generation % HEADER_SLOTS == self.durable_generation % HEADER_SLOTS;
        if sync.is_none() && over_durable && kept(Care::DurableHeader) {
            header.generation += 1;
        }
        HeaderWrite { header, file: self.header_file.clone(), path: self.dir.join("header"), sync }
    }

    /// The header is durable: segments and extents before it are free.
    pub fn retired(&mut self, written: HeaderWrite) {
        if written.sync.is_some() {
            self.durable_generation = written.header.generation;
        }
        self.header = written.header;
        let through = self.header.through;
        let given_up = self.extents.extract_if(.., |e| e.last <= through || !kept(Care::KeptExtents));
        given_up.for_each(|e| e.extent.give_up());
    }

    /// Names the boot durably, before the first commit of class `process`.
    pub fn record_boot(&mut self, boot: [u8; 16]) -> Result<()> {
        if self.header.boot == Some(boot) {
            return Ok(());
        }
        let mut header = self.next_header();
        header.clean = self.header.clean;
        header.boot = Some(boot);
        let write = self.header_write_with(header, Some(Step::HeaderBoot));
        // A failed write may be on the disk all the same: closing has to take the boot back.
        self.boot_unsure = true;
        write.write()?;
        self.boot_unsure = false;
        self.retired(write);
        Ok(())
    }

    /// Writes the header of an empty journal: everything is in the data files. If they were not
    /// flushed, the boot stays named.
    pub fn empty(&mut self, flushed: bool) -> Result<()> {
        let cut = self.cut();
        let mut header = self.next_header();
        header.through = cut.through;
        header.through_crc = cut.crc;
        if flushed {
            header.boot = None;
        }
        let current = &self.segments[self.current];
        header.start_segment = current.index;
        header.start_crc = current.first_block_crc.unwrap_or(0);
        header.clean = current.first_block_crc.is_some();
        // Also in class `process`: a header without a boot says that all was flushed.
        let write = self.header_write_with(header, flushed.then_some(Step::Header));
        write.write()?;
        self.retired(write);
        Ok(())
    }

    /// Whether there is anything that the header does not say yet: closing has work to do.
    pub fn is_dirty(&self) -> bool {
        self.next - 1 > self.header.through || self.header.boot.is_some() || self.boot_unsure || !self.header.clean
    }
}
