//! Decodes the body of a record, and checks everything in it, because the journal may be hostile or damaged.

use super::{
    CREATE, DIR_MODE, FILE_BYTES_MAX, FileRef, MKDIR, MODE, Op, RENAME, RESTATE, RMDIR, Record, TRUNCATE, UNLINK,
    WRITE, WRITE_SPILLED, ZERO, check_path,
};
use crate::commits::log_reader::{LogSegment, PIECE_BYTES_MAX};
use crate::commits::overlay::{NO_END, Source};
use crate::commits::spill::{Spill, spill_name, verify};
use crate::error::{Context, Error, Result};
use crate::format::sized_memory;
use crate::format::unreadable::{is_unreadable, touches};
use crate::format::{crc64, u16_at, u32_at, u64_at};
use crate::invariant;
use bytes::Bytes;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_os::{Storage, holds};

/// Decodes a body, and checks everything in it, because the journal may be hostile or damaged.
pub struct Decoder<'a> {
    body: &'a [u8],
    at: usize,
    contents: Contents<'a>,
    spills: &'a mut SpillCache,
    unreadable: Option<&'a UnreadableBody<'a>>,
    /// The error that replaces contents that cannot be read.
    lost: Option<Arc<Error>>,
}

/// Form in which a decoded record keeps contents of its body.
enum Contents<'a> {
    /// Slices of the body.
    InMemory(&'a Bytes),
    /// References to their place in the log.
    InLog(BodyInLog<'a>),
    /// The body is one of an index: it has the places and checksums of contents in this segment.
    Indexed(&'a Arc<LogSegment>),
}

/// A body in a segment, whose contents stay in the log.
#[derive(Clone, Copy)]
pub(crate) struct BodyInLog<'a> {
    /// The segment.
    pub segment: &'a Arc<LogSegment>,
    /// Offset of the body in the segment.
    pub start: u64,
    /// Contents of at most this length are copied, because a reference is no smaller.
    pub in_memory_max: u64,
}

/// Unreadable ranges of a body, which are zeros in memory.
pub(crate) struct UnreadableBody<'a> {
    /// Ranges of the segment.
    pub ranges: &'a [Range<u64>],
    /// Offset of the body in the segment.
    pub start: u64,
}

/// Spill files that records refer to, each opened once.
pub struct SpillCache {
    open: Box<dyn Fn(u64) -> Result<Arc<Spill>>>,
    known: HashMap<u64, Arc<Spill>>,
    /// Spill files that were requested since the last [`SpillCache::take_used`].
    used: Vec<Arc<Spill>>,
    /// When to check the contents of spill files against their checksums.
    pub check: CheckSpills,
    /// Flush a spill file when it is opened, and check its contents as they are on the disk: a killed owner may have left
    /// them in the page cache only.
    pub past_cache: bool,
}

/// When contents of spill files are checked against their checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckSpills {
    /// While a record is decoded.
    Now,
    /// When a piece is used first.
    WhenUsed,
    /// Not at all: they were checked before, or their commit was published.
    Never,
}

impl SpillCache {
    /// Spill files in a journal's directory.
    pub fn new(storage: Arc<dyn Storage>, journal: PathBuf) -> SpillCache {
        SpillCache::with(move |id| Spill::open(&storage, &journal, id))
    }

    /// Spill files that this function opens.
    pub(crate) fn with(open: impl Fn(u64) -> Result<Arc<Spill>> + 'static) -> SpillCache {
        SpillCache {
            open: Box::new(open),
            known: HashMap::new(),
            used: Vec::new(),
            check: CheckSpills::Now,
            past_cache: false,
        }
    }

    /// A cache without spill files, for tests and fuzzing of the decoder alone.
    pub fn none() -> SpillCache {
        SpillCache::with(|_| Err(Error::invalid("there are no spills here")))
    }

    /// The spill file with this id.
    pub fn get(&mut self, id: u64) -> Result<Arc<Spill>> {
        let spill = match self.known.get(&id) {
            Some(spill) => spill.clone(),
            None => {
                let spill = (self.open)(id)?;
                if self.past_cache {
                    spill.flush_found().context("flush", spill_name(id))?;
                }
                if self.check == CheckSpills::WhenUsed {
                    spill.check_when_used();
                }
                spill
            }
        };
        self.known.insert(id, spill.clone());
        if self.used.last().is_none_or(|last| last.id != id) {
            self.used.push(spill.clone());
        }
        Ok(spill)
    }

    /// The spill files that were requested since the last call.
    pub(crate) fn take_used(&mut self) -> Vec<Arc<Spill>> {
        std::mem::take(&mut self.used)
    }
}

impl<'a> Decoder<'a> {
    /// Decodes the whole body of a commit.
    pub fn decode(body: &'a Bytes, spills: &'a mut SpillCache) -> Result<Record> {
        Decoder::new(body, Contents::InMemory(body), spills).record()
    }

    /// Decodes like [`Decoder::decode`], from a buffer that is reused, so that contents stay in the log.
    pub(crate) fn decode_in_log(
        body: &'a [u8],
        place: BodyInLog<'a>,
        spills: &'a mut SpillCache,
        lost: Option<Arc<Error>>,
    ) -> Result<Record> {
        Decoder { lost, ..Decoder::new(body, Contents::InLog(place), spills) }.record()
    }

    /// Decodes a body of an index, whose contents are in this segment.
    pub(crate) fn decode_indexed(
        body: &'a [u8],
        segment: &'a Arc<LogSegment>,
        spills: &'a mut SpillCache,
    ) -> Result<Record> {
        Decoder::new(body, Contents::Indexed(segment), spills).record()
    }

    fn new(body: &'a [u8], contents: Contents<'a>, spills: &'a mut SpillCache) -> Decoder<'a> {
        Decoder { body, at: 0, contents, spills, unreadable: None, lost: None }
    }

    /// Decodes like [`Decoder::decode`], and marks as unreadable the contents of spill files that the disk cannot read,
    /// and with `unreadable` all contents in the body.
    pub(crate) fn decode_around(
        body: &'a Bytes,
        spills: &'a mut SpillCache,
        unreadable: Option<&'a UnreadableBody<'a>>,
        lost: Arc<Error>,
    ) -> Result<Record> {
        let decoder = Decoder::new(body, Contents::InMemory(body), spills);
        Decoder { unreadable, lost: Some(lost), ..decoder }.record()
    }

    fn record(mut self) -> Result<Record> {
        let d = &mut self;
        let body = d.body;
        let files = d.u32()? as usize;
        let ops = d.u32()? as usize;
        // Counts are bounded by the length of the body before memory is allocated for them.
        if files > body.len() / 18 || ops > body.len() / 5 {
            return Err(d.bad("it lists more files or operations than it has room for"));
        }
        let mut record = Record { files: Vec::with_capacity(files), ops: Vec::with_capacity(ops) };
        for _ in 0..files {
            record.files.push(FileRef { id: d.u64()?, previous_lsn: d.u64()?, path: d.path()? });
        }
        for _ in 0..ops {
            d.op(files as u32, &mut record.ops)?;
        }
        if d.at != body.len() {
            return Err(d.bad("bytes follow its last operation"));
        }
        Ok(record)
    }

    fn bad(&self, what: &str) -> Error {
        Error::corrupt("the body of a record", format!("byte {}: {what}", self.at))
    }

    fn next_bytes(&mut self, n: usize) -> Result<Range<usize>> {
        let range = self.next_contents(n)?;
        if let Some(unreadable) = self.unreadable
            && touches(unreadable.ranges, &(unreadable.start + range.start as u64..unreadable.start + range.end as u64))
        {
            return Err(Error::unreadable("the body of a record", format!("byte {}", range.start)));
        }
        Ok(range)
    }

    /// Skips bytes that may be unreadable.
    fn next_contents(&mut self, n: usize) -> Result<Range<usize>> {
        let end =
            self.at.checked_add(n).filter(|end| *end <= self.body.len()).ok_or_else(|| self.bad("it ends early"))?;
        let range = self.at..end;
        self.at = end;
        Ok(range)
    }

    fn u16(&mut self) -> Result<u16> {
        self.next_bytes(2).map(|r| u16_at(self.body, r.start))
    }

    fn u32(&mut self) -> Result<u32> {
        self.next_bytes(4).map(|r| u32_at(self.body, r.start))
    }

    fn u64(&mut self) -> Result<u64> {
        self.next_bytes(8).map(|r| u64_at(self.body, r.start))
    }

    fn path(&mut self) -> Result<PathBuf> {
        let len = self.u16()? as usize;
        let bytes = self.next_bytes(len)?;
        let path = Path::new(OsStr::from_bytes(&self.body[bytes]));
        check_path(path).map_err(|why| self.bad(&format!("path {path:?}: {why}")))?;
        Ok(path.to_owned())
    }

    fn mode(&mut self) -> Result<u32> {
        let mode = self.u32()?;
        if mode > 0o7777 { Err(self.bad("a mode has invalid bits")) } else { Ok(mode) }
    }

    fn file(&mut self, files: u32) -> Result<u32> {
        let file = self.u32()?;
        if file >= files { Err(self.bad("an operation names a file that is not listed")) } else { Ok(file) }
    }

    fn op(&mut self, files: u32, ops: &mut Vec<Op>) -> Result<()> {
        let code = self.next_bytes(1)?;
        ops.push(match self.body[code.start] {
            WRITE | ZERO | WRITE_SPILLED => {
                let code = self.body[self.at - 1];
                let file = self.file(files)?;
                let (offset, len) = (self.u64()?, self.u64()?);
                let end = offset.checked_add(len).filter(|end| len > 0 && (*end <= FILE_BYTES_MAX || *end == NO_END));
                let end = end.ok_or_else(|| self.bad("a range beyond the largest file"))?;
                if end == NO_END && code != ZERO {
                    return Err(self.bad("a write without end"));
                }
                if let (WRITE, Contents::Indexed(segment)) = (code, &self.contents) {
                    let segment = *segment;
                    return self.push_indexed(file, offset..end, segment, ops);
                }
                let source = match code {
                    ZERO => Source::Zero,
                    WRITE => {
                        let bytes = self.next_contents(usize::try_from(len).unwrap_or(usize::MAX))?;
                        // Without the record's checksum, all contents in its body are unknown.
                        match self.lost.as_ref().filter(|_| self.unreadable.is_some()) {
                            Some(e) if holds(invariant::UNREADABLE_UNKNOWN) => Source::Unreadable(e.clone()),
                            _ => {
                                self.push_contents(file, offset, bytes, ops);
                                return Ok(());
                            }
                        }
                    }
                    _ => {
                        let (id, at, crc) = (self.u64()?, self.u64()?, self.u64()?);
                        let spill = self.spills.get(id)?;
                        let verified = match self.spills.check {
                            CheckSpills::Now => verify(&spill, at, len, crc, self.spills.past_cache),
                            CheckSpills::WhenUsed | CheckSpills::Never => Ok(()),
                        };
                        match (verified, &self.lost) {
                            (Err(e), Some(lost)) if is_unreadable(&e) => Source::Unreadable(lost.clone()),
                            (Err(e), _) => return Err(e),
                            (Ok(()), _) => Source::Spill { spill, at, origin: offset, len, crc },
                        }
                    }
                };
                Op::Write { file, range: offset..end, source }
            }
            TRUNCATE => {
                let (file, size) = (self.file(files)?, self.u64()?);
                if size > FILE_BYTES_MAX {
                    return Err(self.bad("a size beyond the largest file"));
                }
                Op::Truncate { file, size }
            }
            CREATE => Op::Create { file: self.file(files)?, mode: self.mode()? },
            MODE => Op::Mode { file: self.file(files)?, mode: self.mode()? },
            RENAME => Op::Rename { file: self.file(files)?, to: self.path()? },
            UNLINK => Op::Unlink { file: self.file(files)? },
            MKDIR => Op::Mkdir { path: self.path()?, mode: self.mode()? },
            DIR_MODE => Op::DirMode { path: self.path()?, mode: self.mode()? },
            RMDIR => Op::Rmdir { path: self.path()? },
            RESTATE if ops.is_empty() => Op::Restate,
            RESTATE => return Err(self.bad("an operation that is valid only as the first one")),
            other => return Err(self.bad(&format!("unknown operation {other}"))),
        });
        Ok(())
    }

    /// Adds the write of contents that are a part of the body.
    fn push_contents(&self, file: u32, offset: u64, part: Range<usize>, ops: &mut Vec<Op>) {
        let len = part.len() as u64;
        let bytes = match &self.contents {
            Contents::InMemory(body) => body.slice(part),
            Contents::InLog(place) if len > place.in_memory_max => {
                return self.push_places(file, offset, part, place, ops);
            }
            Contents::InLog(_) | Contents::Indexed(_) => Bytes::copy_from_slice(&self.body[part]),
        };
        ops.push(Op::Write { file, range: offset..offset + len, source: Source::Bytes { bytes, origin: offset } });
    }

    /// Adds the write of contents in the log, whose place and checksums follow.
    fn push_indexed(
        &mut self,
        file: u32,
        range: Range<u64>,
        segment: &Arc<LogSegment>,
        ops: &mut Vec<Op>,
    ) -> Result<()> {
        let mut at = self.u64()?;
        let mut origin = range.start;
        while origin < range.end {
            let (len, crc) = (PIECE_BYTES_MAX.min(range.end - origin), self.u64()?);
            let source = Source::Log { segment: segment.clone(), at, origin, len, crc };
            ops.push(Op::Write { file, range: origin..origin + len, source });
            (origin, at) = (origin + len, at + len);
        }
        Ok(())
    }

    /// Adds the write of contents that stay in the log, piece by piece.
    fn push_places(&self, file: u32, offset: u64, part: Range<usize>, place: &BodyInLog<'_>, ops: &mut Vec<Op>) {
        let (mut origin, mut at) = (offset, place.start + part.start as u64);
        for piece in self.body[part].chunks(PIECE_BYTES_MAX as usize) {
            let len = piece.len() as u64;
            let source = Source::Log { segment: place.segment.clone(), at, origin, len, crc: crc64(piece) };
            ops.push(Op::Write { file, range: origin..origin + len, source });
            (origin, at) = (origin + len, at + len);
        }
        debug_assert!(
            at <= place.start + self.body.len() as u64,
            "the pieces end at {at}, and the body at {}",
            place.start + self.body.len() as u64
        );
    }
}

/// Reads a body from a spill file.
pub fn body_by_reference(reference: &[u8], spills: &mut SpillCache) -> Result<Bytes> {
    if reference.len() != 24 {
        return Err(Error::corrupt("a record", "the reference to its body has the wrong length"));
    }
    let (id, len, crc) = (u64_at(reference, 0), u64_at(reference, 8), u64_at(reference, 16));
    let spill = spills.get(id)?;
    verify(&spill, 0, len, crc, spills.past_cache)?;
    let mut body = sized_memory::zeros(len, spill.path())?;
    spill.read(&mut body, 0)?;
    Ok(body.into())
}
