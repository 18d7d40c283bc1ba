//! The journal of an open store: commits are appended at one end, and checkpoints truncate the other.
//!
//! ```text
//! segment:   free ──commit──▶ current ──no room left──▶ full ──truncate──▶ free
//! ```
//!
//! A commit group is one run of records that starts on a fresh block: one write, one flush. No acknowledged byte is
//! overwritten before the header that truncates the log behind it is durable.

mod appended;
mod consistency;
mod encoding;
mod flushing;
mod for_slots;
mod headers;
mod held_back;
mod index_entries;
mod indexing;
mod kept_log;
mod medium;
mod reserved;
mod room;
mod segment;
mod segment_index;
mod segments;
mod spill_files;
mod spills;

use crate::commits::record::Record;
use crate::commits::spill::Spill;
use crate::directories::store_dir::segment_name;
use crate::error::{Context, Error, Outcome, Result};
use crate::format::{BLOCK_BYTES, Header, RECORD_HEAD_BYTES, RecordHead, RecordKind, StoreId, crc64};
use crate::invariant;
use crate::journal::held_back::HeldBack;
use crate::journal::index_entries::NewEntries;
use crate::journal::medium::Medium;
use crate::journal::segment::{Segment, is_linked};
use crate::journal::segment_index::SegmentIndex;
use crate::journal::spill_files::{KeptSpill, LiveSpill};
use crate::scanning::segment_reader::ScannedSegment;
use crate::slots::epochs::EpochStart;
use crate::slots::slot_log::SlotLog;
use crate::sync_point;
use crate::undo::keep::UndoHandle;
use crate::undo::page::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_os::{AlignedBuf, File, Open, Storage, SyncPoint, holds, is_closed_by_program, value_if_holds};

/// Sizes and guarantees of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Flush commits (class `power`), or let the page cache be enough (class `process`).
    pub durable: bool,
    /// Limit for the bytes of all segments together.
    pub journal_bytes: u64,
    /// Bytes of the first segment, so that small stores stay small.
    pub segment_bytes_first: u64,
    /// A commit with more bytes than this is spilled.
    pub inline_bytes_max: u64,
    /// Where the file system shares blocks, a range of a commit with at least this many bytes is spilled.
    pub shared_bytes_least: u64,
    /// Data files share blocks with spill files where at least this many bytes of consecutive whole blocks match.
    pub clone_bytes_least: u64,
    /// Ranges of records that are not applied stay in memory if they have at most this many bytes.
    pub in_memory_max: u64,
    /// Bytes of a segment that are read at once, in whole blocks, when the journal is opened.
    pub window_bytes: usize,
    /// Store groups to the segments without calls, where their file system gives byte-addressable memory.
    pub memory: bool,
    /// Reserve space for quarantining the journal on a full disk.
    pub spare: bool,
    /// Segments of at most this many bytes are read as a whole after a crash, and spill files that have so many together.
    /// The index of a larger segment shows its durable records, and bounds the rest.
    pub index_bytes_least: u64,
    /// Keep a page for readers, in class `power`.
    pub readers: bool,
    /// Limit for the bytes that are kept for readers of older commits; `None`: 1 GiB, or a tenth of the free space.
    pub readers_space: Option<u64>,
    /// Permission bits of the directory of a new store, which decide on read access.
    pub dir_mode: u32,
}

impl Options {
    /// Largest segment, and so the largest record.
    pub fn segment_bytes_max(&self) -> u64 {
        let quarter = self.journal_bytes / 4;
        (quarter - quarter % BLOCK_BYTES as u64).max(self.segment_bytes_first)
    }
}

/// The outcome of a failed write of records. If the program closed the descriptor, nothing was written: the descriptor
/// is checked before each write.
fn outcome_of_write(e: &io::Error) -> Outcome {
    if is_closed_by_program(e) { Outcome::NotCommitted } else { Outcome::UnknownUntilReopened }
}

/// Totals since the journal was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalCounters {
    /// Commits.
    pub commits: u64,
    /// Groups of commits that shared a flush.
    pub groups: u64,
    /// Bytes written to segments and spill files.
    pub bytes_written: u64,
}

/// How far a checkpoint goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointTarget {
    /// LSN of the last commit that it covers.
    pub checkpoint_lsn: u64,
    /// LSN for the attributes of data files. They must not run ahead of the disk, and a durable mark behind the last
    /// commit may still be lost.
    pub durable_lsn: u64,
    crc: u64,
}

/// A header that is about to be written, without holding up commits.
pub struct HeaderWrite {
    header: Header,
    file: Arc<dyn File>,
    path: PathBuf,
    sync: Option<SyncPoint>,
    /// A directory whose names are flushed first.
    names: Option<(Arc<dyn Storage>, PathBuf)>,
}

/// How a group of commits went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    /// The first `n` records are committed, under consecutive LSNs.
    Records {
        /// LSN of the first.
        first_lsn: u64,
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
    epoch: u64,
    header: Header,
    header_file: Arc<dyn File>,
    segments: Vec<Segment>,
    current: usize,
    position: u64,
    next_lsn: u64,
    previous_crc: u64,
    durable_lsn: u64,
    /// Generation of the newest header that was flushed.
    durable_generation: u64,
    /// The header on the disk may differ from the one in memory.
    header_uncertain: bool,
    /// The store is noted as open in an attribute that no flush has brought to the disk for certain. A clean header may
    /// come back, and with it nobody looks beyond the first block of its start segment.
    open_unflushed: bool,
    /// The header that lists the unapplied epochs could not be written. A header of any kind must be written before the
    /// first record.
    list_due: bool,
    spills: Vec<LiveSpill>,
    /// Spilled bodies of records that are sealed but not yet written.
    bodies: Vec<(Arc<Spill>, u64)>,
    failed: Option<(Outcome, Arc<io::Error>)>,
    buf: AlignedBuf,
    /// Entries of the index for the records in the buffer.
    entries: NewEntries,
    /// Segments with records that are not flushed yet.
    unflushed: Vec<usize>,
    /// Spill files that such records refer to, each with the end of the bytes that they refer to.
    unflushed_spills: Vec<(Arc<Spill>, u64)>,
    /// A durable mark is due: the last record is a commit, and no later record states that it is durable.
    mark_due: bool,
    /// Bytes that commits leave free in the segments for a record that restates unapplied commits.
    reserved: u64,
    /// LSN of the last commit, and of the last restating record.
    last_commit: u64,
    last_restated: u64,
    counters: JournalCounters,
    undo: Option<UndoHandle>,
    slots: SlotLog,
    /// Spill files of truncated records, which readers need.
    kept_spills: Vec<KeptSpill>,
    /// Segments that are about to be removed, because the journal has more than it may have.
    doomed: Vec<u32>,
    held_back: Option<HeldBack>,
    /// Bytes of the current segment for which the data files had room when it was begun.
    limit: u64,
    /// Called when the records of a group are written, before their flush.
    on_written: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl Journal {
    /// Continues behind a header: in the segment that a clean one names, or in any that is free.
    pub fn new(
        storage: Arc<dyn Storage>,
        dir: PathBuf,
        options: Options,
        header: Header,
        segments: Vec<ScannedSegment>,
        undo: Option<UndoHandle>,
        slots: SlotLog,
    ) -> Result<Journal> {
        let path = dir.join("header");
        let header_file = storage.open(&path, Open::WRITE).context("open", &path)?;
        let mut epoch = [0; 8];
        storage.random(&mut epoch).context("draw an epoch number for", &dir)?;
        let start = header.start_segment;
        let open_lsn = header.open_lsn;
        let mut journal = Journal {
            epoch: u64::from_le_bytes(epoch).max(1),
            next_lsn: open_lsn,
            previous_crc: header.link,
            durable_lsn: open_lsn - 1,
            durable_generation: header.generation - u64::from(header.by_attribute),
            header_uncertain: false,
            open_unflushed: false,
            list_due: false,
            header,
            header_file,
            segments: Vec::new(),
            current: 0,
            position: 0,
            spills: Vec::new(),
            bodies: Vec::new(),
            failed: None,
            buf: AlignedBuf::default(),
            entries: NewEntries::default(),
            unflushed: Vec::new(),
            unflushed_spills: Vec::new(),
            mark_due: false,
            reserved: 0,
            last_commit: open_lsn - 1,
            last_restated: 0,
            counters: JournalCounters::default(),
            undo,
            slots,
            kept_spills: Vec::new(),
            doomed: Vec::new(),
            held_back: None,
            limit: u64::MAX,
            on_written: None,
            storage,
            dir,
            options,
        };
        for s in segments {
            // The failure class of this epoch, not that of the scan, decides how a segment is opened. In class `power`, the
            // scan reads past the cache, and opens it for writing.
            let file = match options.durable && s.file.is_direct() {
                true => s.file,
                false => {
                    let path = journal.dir.join(segment_name(s.index));
                    let how = if options.durable { Open::WRITE.direct() } else { Open::WRITE };
                    journal.storage.open(&path, how).context("open", &path)?
                }
            };
            let last_lsn = value_if_holds(invariant::LISTED_SEGMENTS_STAY, s.last_lsn);
            let listed = journal.header.lengths.get(s.index as usize).map_or(0, |blocks| u64::from(*blocks));
            let log_index = match options.durable && s.bytes > options.index_bytes_least {
                true => {
                    let killed = !journal.header.is_closed();
                    SegmentIndex::found(&*journal.storage, &journal.dir, s.index, journal.header.key, killed)
                }
                false => SegmentIndex::default(),
            };
            let durable_bytes = s.said_bytes.max(listed * BLOCK_BYTES as u64).min(s.bytes);
            journal.segments.push(Segment {
                // Of an applied segment, commits are written from the beginning.
                first_lsn: if last_lsn > journal.header.checkpoint_lsn { s.first_lsn } else { 0 },
                former: last_lsn > journal.header.checkpoint_lsn && holds(invariant::FORMER_RECORDS_KEPT),
                last_lsn,
                linked: is_linked(&*file),
                first_block_crc: (s.first_block_crc != 0).then_some(s.first_block_crc),
                durable_bytes,
                log_index,
                medium: Medium::allowed(options.memory),
                ..Segment::new(s.index, s.bytes, file)
            });
        }
        journal.slots.begin(EpochStart { epoch: journal.epoch, first_lsn: open_lsn })?;
        journal.keep_former_log()?;
        let checkpoint_lsn = journal.header.checkpoint_lsn;
        let is_free = |s: &Segment| s.bytes > 0 && s.is_free(checkpoint_lsn);
        if let Some(at) = journal.segments.iter().position(|s| s.index == start && is_free(s)) {
            journal.current = at;
        } else if let Some(at) = journal.segments.iter().position(is_free) {
            journal.current = at;
        } else if journal.header.listed.is_empty() {
            journal.current = journal.add_first_segment()?;
        } else {
            // Full: commits add a segment or wait for a checkpoint. Reads need neither.
            journal.position = journal.segments[0].bytes;
        }
        journal.assert_consistent();
        Ok(journal)
    }

    /// The store.
    pub fn store(&self) -> StoreId {
        self.header.store
    }

    /// The epoch, that is, this opening of the store.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Has this called when the records of a group are written, before their flush.
    pub fn call_when_written(&mut self, call: Option<Arc<dyn Fn() + Send + Sync>>) {
        self.on_written = call;
    }

    /// The newest durable header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// LSN of the last record.
    pub fn last_lsn(&self) -> u64 {
        self.next_lsn - 1
    }

    /// LSN of the last flushed record; in class `process`, of the last written record.
    pub fn durable_lsn(&self) -> u64 {
        self.durable_lsn
    }

    /// LSN of the last commit, which is as durable as this failure class makes it. Durable marks may follow it.
    pub fn last_commit_lsn(&self) -> u64 {
        self.last_commit
    }

    /// The largest file of the file system, in bytes.
    pub fn file_bytes_max(&self) -> Result<u64> {
        self.header_file.size_max().context("look at", &self.dir)
    }

    /// Totals since the journal was opened.
    pub fn counters(&self) -> JournalCounters {
        self.counters
    }

    /// Bytes of all segments.
    pub fn allocated_bytes(&self) -> u64 {
        let own = (0..self.segments.len()).filter(|at| self.is_part(*at)).map(|at| &self.segments[at]);
        own.map(|s| s.bytes + s.appended).sum()
    }

    /// Bytes of segments that a checkpoint would free.
    pub fn pending_bytes(&self) -> u64 {
        let pending = self.segments.iter().filter(|s| s.last_lsn > self.header.checkpoint_lsn);
        let full: u64 = pending.map(|s| s.bytes + s.appended).sum();
        let current = &self.segments[self.current];
        if current.last_lsn > self.header.checkpoint_lsn { full - current.bytes + self.position } else { full }
    }

    /// Spill files that a checkpoint would free.
    pub fn pending_spills(&self) -> usize {
        self.spills.len()
    }

    /// Bytes of spill files that a checkpoint would free.
    pub fn pending_spill_bytes(&self) -> u64 {
        self.spills.iter().map(|live| live.spill.len()).sum()
    }

    /// Whether commits bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.segments[self.current].file.is_direct()
    }

    /// Whether commits are stored to byte-addressable memory, without calls. Known from the first one on.
    pub fn is_in_memory(&self) -> bool {
        self.segments[self.current].is_in_memory()
    }

    /// The data kept for readers of older commits; `None` if the store does not serve readers.
    pub fn undo(&self) -> Option<&UndoHandle> {
        self.undo.as_ref()
    }

    /// Publishes to readers that commits are durable, before a checkpoint of them. A durable mark behind the last
    /// commit counts, too.
    pub fn publish(&self, lsn: u64) -> Result<()> {
        match &self.undo {
            Some(undo) if holds(invariant::CHECKPOINT_PUBLISHED) => undo.page().raise(Cell::Durable, lsn),
            _ => Ok(()),
        }
    }

    /// Publishes to readers that commits are durable. If that fails, no commit is less durable; a checkpoint of them
    /// tries again.
    fn tell_durable(&self, lsn: u64) {
        if let Some(undo) = &self.undo {
            let _ = undo.page().raise(Cell::Durable, lsn);
            undo.page().wake_followers(&*self.storage);
        }
    }

    /// Directory of the journal, for new spill files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The sticky failure.
    pub fn failure(&self) -> Option<Error> {
        self.failed.as_ref().map(|(outcome, source)| Error::SyncFailed { outcome: *outcome, source: source.clone() })
    }

    /// Records a failed write or flush. A later success does not repair it.
    fn fail(&mut self, outcome: Outcome, e: io::Error) -> Error {
        let source = Arc::new(e);
        // Later commits did not happen, regardless of the outcome of this one.
        self.failed = holds(invariant::STICKY_ERROR).then(|| (Outcome::NotCommitted, source.clone()));
        Error::SyncFailed { outcome, source }
    }

    /// Ends commits, because a commit was interrupted at an unknown place.
    pub fn abandon(&mut self, why: &'static str) {
        self.fail(Outcome::UnknownUntilReopened, io::Error::other(why));
    }

    /// Commits records: names spill files, encodes and writes the records, and flushes both. Commits all records, or as
    /// many as fit.
    pub fn commit(&mut self, records: &[Record]) -> Result<Committed> {
        debug_assert!(!records.is_empty(), "a commit of no records behind {}", self.last_lsn());
        self.assert_sound(records);
        if let Some(e) = self.failure() {
            return Err(e);
        }
        if !self.note_open()? {
            return Ok(Committed::Full);
        }
        self.name_spills(records)?;
        let first_lsn = self.next_lsn;
        match self.write_and_flush(records)? {
            0 => Ok(Committed::Full),
            n => Ok(self.finish_commit(first_lsn, n)),
        }
    }

    /// Counts this many flushed records as committed.
    fn finish_commit(&mut self, first_lsn: u64, n: usize) -> Committed {
        debug_assert!(
            n > 0 && first_lsn + n as u64 == self.next_lsn,
            "{n} records from {first_lsn}, next {}",
            self.next_lsn
        );
        self.mark_due = true;
        self.last_commit = self.last_lsn();
        self.counters.commits += n as u64;
        self.counters.groups += 1;
        let (commits, groups) = (self.counters.commits, self.counters.groups);
        debug_assert!(groups <= commits, "{commits} commits shared {groups} flushes");
        self.assert_consistent();
        Committed::Records { first_lsn, n }
    }

    /// Writes as many records as fit into one segment, and returns their number; 0 if there is no room for the first.
    fn write_some(&mut self, records: &[Record]) -> Result<usize> {
        loop {
            let most = self.most_bytes_here();
            self.check_file_size_limit(self.room_for(&records[0]), most)?;
            let (next_lsn, previous_crc) = (self.next_lsn, self.previous_crc);
            let taken = self.position + self.reserved_here(self.current);
            match self.encode_group(records, self.limited_bytes(most).saturating_sub(taken)) {
                Ok(0) => {}
                Ok(n) => {
                    self.keep_spills(&records[..n], next_lsn);
                    return self.write_group().map(|()| n);
                }
                Err(e) => {
                    // The records were sealed in memory only, so their LSNs are free again.
                    (self.next_lsn, self.previous_crc) = (next_lsn, previous_crc);
                    self.bodies.clear();
                    return Err(e);
                }
            }
            self.check_file_size_limit(self.room_for(&records[0]), self.segment_bytes_here())?;
            if !self.switch_segment(self.room_for(&records[0]))? {
                return Ok(0);
            }
            let current = &self.segments[self.current];
            debug_assert!(
                self.position == 0 && current.bytes >= self.room_for(&records[0]),
                "position {} in a segment of {} bytes, for a record of {}",
                self.position,
                current.bytes,
                self.room_for(&records[0])
            );
            debug_assert!(
                current.is_free(self.header.checkpoint_lsn),
                "segment {} is reused, and record {} in it is behind checkpoint {}",
                current.index,
                current.last_lsn,
                self.header.checkpoint_lsn
            );
        }
    }

    /// Writes the buffer at the current position and moves on to the next block.
    fn write_group(&mut self) -> Result<()> {
        self.flush_open_note()?;
        let records_end = self.buf.len();
        self.buf.pad_to_block();
        let segment = &mut self.segments[self.current];
        // Appended records lie behind the position.
        debug_assert!(
            self.position > 0 || segment.appended > 0 || segment.last_lsn <= self.header.checkpoint_lsn,
            "record {} would be overwritten, and everything to {} is applied",
            segment.last_lsn,
            self.header.checkpoint_lsn
        );
        debug_assert!(
            self.position + self.buf.len() as u64 <= segment.bytes,
            "{} bytes at {} in a segment of {}",
            self.buf.len(),
            self.position,
            segment.bytes
        );
        if self.position == 0 {
            segment.first_block_crc = Some(crc64(&self.buf[..BLOCK_BYTES]));
        }
        self.raise_bound(self.position + self.buf.len() as u64)?;
        let written = self.write_buffer(records_end);
        self.position += self.buf.len() as u64;
        self.note_written();
        if written.is_ok() {
            self.write_index();
        }
        written.map_err(|e| self.fail(outcome_of_write(&e), e))
    }

    /// Notes that the buffer, or a part of it, was written to the current segment.
    fn note_written(&mut self) {
        debug_assert!(
            self.segments[self.current].last_lsn < self.next_lsn - 1,
            "record {} follows {} in its segment",
            self.next_lsn - 1,
            self.segments[self.current].last_lsn
        );
        let segment = &mut self.segments[self.current];
        segment.last_lsn = self.next_lsn - 1;
        if segment.first_lsn == 0 {
            segment.first_lsn = RecordHead::lsn_of(&self.buf);
        }
        // A segment that is kept for readers is written only behind the records that they need.
        segment.kept = None;
        self.counters.bytes_written += self.buf.len() as u64;
        if !self.unflushed.contains(&self.current) {
            self.unflushed.push(self.current);
        }
        self.assert_consistent();
    }

    /// Writes a durable mark if the last commit still lacks one: a record that states that everything before it was
    /// flushed, so that later damage to the last group can be told from a torn end. The mark itself is not flushed.
    pub fn write_durable_mark(&mut self) -> Result<bool> {
        if !self.mark_due || self.failed.is_some() || !self.options.durable {
            return Ok(false);
        }
        let left = self.usable_bytes(self.current).saturating_sub(self.position);
        if left < BLOCK_BYTES as u64 + self.reserved_here(self.current) {
            return Ok(false);
        }
        // The mark says that every record before it is durable.
        debug_assert_eq!(self.durable_lsn, self.last_lsn(), "an unflushed record before a durable mark");
        debug_assert!(!self.list_due, "a mark before the header that lists the epochs before {}", self.next_lsn);
        self.buf.clear();
        self.entries.clear();
        self.buf.resize(RECORD_HEAD_BYTES);
        self.entries.begin();
        self.seal_record(0, RecordKind::DurableMark, false);
        self.write_group()?;
        // The next commit's flush may be another thread's, whose fence would not be for this one.
        let fenced = self.segments[self.current].fence(sync_point::COMMIT);
        fenced.map_err(|e| self.fail(Outcome::NotCommitted, e))?;
        self.mark_due = false;
        Ok(true)
    }
}
