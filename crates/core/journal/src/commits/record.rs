//! The contents of a commit: files and operations, in memory and as the body of a record.

use crate::commits::log_reader::{LogSegment, PIECE_BYTES_MAX};
use crate::commits::overlay::{NO_END, Overlay, Source};
use crate::commits::spill::{Spill, verify};
use crate::error::{Error, Result};
use crate::format::sized_memory;
use crate::format::unreadable::{is_unreadable, touches};
use crate::format::{crc64, u16_at, u32_at, u64_at};
use crate::invariant;
use bytes::Bytes;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use untorn_os::{Storage, holds};

/// Longest path in a record, in bytes.
pub const PATH_BYTES_MAX: usize = 4095;
/// Largest file size of the kernel, in bytes.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// A file that a commit touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRef {
    /// The identity that the file's attribute carries.
    pub id: u64,
    /// LSN of the last commit that the file held or had pending before this one.
    pub previous_lsn: u64,
    /// The file's name before this commit, relative to the store.
    pub path: PathBuf,
}

#[allow(missing_docs)] // the names of the fields are enough
/// One operation. `file` is an index into the record's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// The bytes of a range, in any kind of source. `Source::Zero` with an end of [`NO_END`] is the tail that a
    /// truncation cuts.
    Write { file: u32, range: Range<u64>, source: Source },
    /// The file's size; contents beyond it are cut.
    Truncate { file: u32, size: u64 },
    /// Creates the file, which did not exist before, with this mode.
    Create { file: u32, mode: u32 },
    /// Renames the file; an earlier operation unlinks a file that had the new name.
    Rename { file: u32, to: PathBuf },
    /// The file loses its name.
    Unlink { file: u32 },
    /// The file's permission bits.
    Mode { file: u32, mode: u32 },
    /// A new directory.
    Mkdir { path: PathBuf, mode: u32 },
    /// Removes an empty directory.
    Rmdir { path: PathBuf },
    /// A directory's permission bits.
    DirMode { path: PathBuf, mode: u32 },
    /// The first operation of a record that restates unapplied changes of earlier records.
    Restate,
}

impl Op {
    /// The index of the operation's file.
    pub(crate) fn file(&self) -> Option<u32> {
        match self {
            Op::Write { file, .. }
            | Op::Truncate { file, .. }
            | Op::Create { file, .. }
            | Op::Rename { file, .. }
            | Op::Unlink { file }
            | Op::Mode { file, .. } => Some(*file),
            Op::Mkdir { .. } | Op::Rmdir { .. } | Op::DirMode { .. } | Op::Restate => None,
        }
    }

    /// Whether the operation changes a directory.
    pub fn names_a_directory(&self) -> bool {
        matches!(self, Op::Mkdir { .. } | Op::Rmdir { .. } | Op::DirMode { .. })
    }
}

/// A commit, or a restatement of changes of earlier commits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The files, each once.
    pub files: Vec<FileRef>,
    /// The operations, in order.
    pub ops: Vec<Op>,
}

impl Record {
    /// Whether the record restates changes of records before it.
    pub fn restates(&self) -> bool {
        matches!(self.ops.first(), Some(Op::Restate))
    }

    /// Adds a file's contents: the ranges and size of an overlay.
    pub fn push_overlay(&mut self, file: u32, overlay: &Overlay) {
        debug_assert!((file as usize) < self.files.len(), "file {file} of {}", self.files.len());
        for (range, source) in overlay.ranges() {
            self.ops.push(Op::Write { file, range: range.clone(), source: source.clone() });
        }
        if let Some(size) = overlay.size {
            self.ops.push(Op::Truncate { file, size });
        }
    }

    /// Bytes of the body with all data in memory written inline.
    pub fn body_bytes(&self) -> u64 {
        let files: usize = self.files.iter().map(|f| 18 + f.path.as_os_str().len()).sum();
        let ops: u64 = self
            .ops
            .iter()
            .map(|op| match op {
                Op::Write { range, source: Source::Bytes { .. } | Source::Log { .. }, .. } => {
                    21 + (range.end - range.start)
                }
                Op::Rename { to: path, .. }
                | Op::Mkdir { path, .. }
                | Op::Rmdir { path }
                | Op::DirMode { path, .. } => 16 + path.as_os_str().len() as u64,
                _ => 45,
            })
            .sum();
        8 + files as u64 + ops
    }

    /// Encodes the body. Ranges of spill files that were cut since they were written get new checksums.
    pub fn encode(&self, out: &mut impl Sink) -> Result<()> {
        out.append(&(self.files.len() as u32).to_le_bytes());
        out.append(&(self.ops.len() as u32).to_le_bytes());
        for file in &self.files {
            out.append(&file.id.to_le_bytes());
            out.append(&file.previous_lsn.to_le_bytes());
            append_path(out, &file.path);
        }
        for op in &self.ops {
            encode_op(op, out)?;
        }
        Ok(())
    }
}

/// A buffer that bytes are appended to.
pub trait Sink {
    /// Appends.
    fn append(&mut self, bytes: &[u8]);
}

impl Sink for untorn_os::AlignedBuf {
    fn append(&mut self, bytes: &[u8]) {
        self.extend(bytes);
    }
}

impl Sink for Vec<u8> {
    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

const WRITE: u8 = 1;
const WRITE_SPILLED: u8 = 2;
const ZERO: u8 = 3;
const TRUNCATE: u8 = 4;
const CREATE: u8 = 5;
const RENAME: u8 = 6;
const UNLINK: u8 = 7;
const MODE: u8 = 8;
const MKDIR: u8 = 9;
const RMDIR: u8 = 10;
const DIR_MODE: u8 = 11;
const RESTATE: u8 = 12;

fn append_path(out: &mut impl Sink, path: &Path) {
    let bytes = path.as_os_str().as_bytes();
    debug_assert!(bytes.len() <= PATH_BYTES_MAX, "a path of {} bytes", bytes.len());
    out.append(&(bytes.len() as u16).to_le_bytes());
    out.append(bytes);
}

fn encode_op(op: &Op, out: &mut impl Sink) -> Result<()> {
    match op {
        Op::Write { file, range, source } => {
            let (offset, len) = (range.start.to_le_bytes(), (range.end - range.start).to_le_bytes());
            let code = match source {
                Source::Bytes { .. } | Source::Log { .. } => WRITE,
                Source::Unreadable(e) => return Err((**e).clone()),
                Source::Zero => ZERO,
                Source::Spill { .. } => WRITE_SPILLED,
            };
            out.append(&[code]);
            out.append(&file.to_le_bytes());
            out.append(&offset);
            out.append(&len);
            match source {
                Source::Bytes { bytes, origin } => {
                    out.append(&bytes[(range.start - origin) as usize..(range.end - origin) as usize]);
                }
                Source::Log { segment, .. } => {
                    let mut bytes = sized_memory::zeros(range.end - range.start, segment.path())?;
                    source.copy_to(&mut bytes, range.start)?;
                    out.append(&bytes);
                }
                Source::Zero | Source::Unreadable(_) => {}
                Source::Spill { spill, at, origin, len: whole, crc } => {
                    let from = at + (range.start - origin);
                    let cut = range.end - range.start;
                    let crc = if from == *at && cut == *whole { *crc } else { spill.crc(from, cut)? };
                    out.append(&spill.id.to_le_bytes());
                    out.append(&from.to_le_bytes());
                    out.append(&crc.to_le_bytes());
                }
            }
        }
        Op::Truncate { file, size } => {
            out.append(&[TRUNCATE]);
            out.append(&file.to_le_bytes());
            out.append(&size.to_le_bytes());
        }
        Op::Create { file, mode } | Op::Mode { file, mode } => {
            out.append(&[if matches!(op, Op::Create { .. }) { CREATE } else { MODE }]);
            out.append(&file.to_le_bytes());
            out.append(&mode.to_le_bytes());
        }
        Op::Rename { file, to } => {
            out.append(&[RENAME]);
            out.append(&file.to_le_bytes());
            append_path(out, to);
        }
        Op::Unlink { file } => {
            out.append(&[UNLINK]);
            out.append(&file.to_le_bytes());
        }
        Op::Mkdir { path, mode } | Op::DirMode { path, mode } => {
            out.append(&[if matches!(op, Op::Mkdir { .. }) { MKDIR } else { DIR_MODE }]);
            append_path(out, path);
            out.append(&mode.to_le_bytes());
        }
        Op::Rmdir { path } => {
            out.append(&[RMDIR]);
            append_path(out, path);
        }
        Op::Restate => out.append(&[RESTATE]),
    }
    Ok(())
}

/// Whether a path may name something in a store: relative, no `.` or `..`, not too long, and not
/// inside a store directory.
pub fn check_path(path: &Path) -> std::result::Result<(), String> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() {
        return Err("the name is empty".into());
    }
    if bytes.len() > PATH_BYTES_MAX {
        return Err(format!("the name has {} bytes; {PATH_BYTES_MAX} is the most", bytes.len()));
    }
    if bytes.contains(&0) {
        return Err("the name has a zero byte in it".into());
    }
    if bytes[0] == b'/' {
        return Err("the name is absolute; names in a store are relative to its directory".into());
    }
    for part in bytes.split(|b| *b == b'/') {
        match part {
            b"" => return Err("the name has an empty part".into()),
            b"." | b".." => return Err("the name has `.` or `..` in it".into()),
            _ if part == b".untorn" || part.ends_with(b".untorn") => {
                return Err("the name is Untorn's own".into());
            }
            _ => {}
        }
    }
    debug_assert!(path.components().all(|c| matches!(c, Component::Normal(_))));
    Ok(())
}

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
    /// Check the contents of spill files against their checksums while decoding.
    pub verify: bool,
}

impl SpillCache {
    /// Spill files in a journal's directory.
    pub fn new(storage: Arc<dyn Storage>, journal: PathBuf) -> SpillCache {
        SpillCache {
            open: Box::new(move |id| Spill::open(&storage, &journal, id)),
            known: HashMap::new(),
            used: Vec::new(),
            verify: true,
        }
    }

    /// A cache without spill files, for tests and fuzzing of the decoder alone.
    pub fn none() -> SpillCache {
        SpillCache {
            open: Box::new(|_| Err(Error::invalid("there are no spills here"))),
            known: HashMap::new(),
            used: Vec::new(),
            verify: true,
        }
    }

    /// The spill file with this id.
    pub fn get(&mut self, id: u64) -> Result<Arc<Spill>> {
        let spill = match self.known.get(&id) {
            Some(spill) => spill.clone(),
            None => (self.open)(id)?,
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
                        let verified = if self.spills.verify { verify(&spill, at, len, crc) } else { Ok(()) };
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
            Contents::InLog(_) => Bytes::copy_from_slice(&self.body[part]),
        };
        ops.push(Op::Write { file, range: offset..offset + len, source: Source::Bytes { bytes, origin: offset } });
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
    verify(&spill, 0, len, crc)?;
    let mut body = sized_memory::zeros(len, &spill.path())?;
    spill.read(&mut body, 0)?;
    Ok(body.into())
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Write { file, range, source } => {
                let what = match source {
                    Source::Bytes { .. } | Source::Log { .. } => "write".to_owned(),
                    Source::Zero => "zero".to_owned(),
                    Source::Unreadable(_) => "write (unreadable)".to_owned(),
                    Source::Spill { spill, at, .. } => format!("write from {spill:?} at {at}"),
                };
                match range.end {
                    NO_END => write!(f, "file {file}: cut from {}", range.start),
                    end => write!(f, "file {file}: {what} {} bytes at {}", end - range.start, range.start),
                }
            }
            Op::Truncate { file, size } => write!(f, "file {file}: size {size}"),
            Op::Create { file, mode } => write!(f, "file {file}: create, mode {mode:04o}"),
            Op::Rename { file, to } => write!(f, "file {file}: rename to {}", to.display()),
            Op::Unlink { file } => write!(f, "file {file}: unlink"),
            Op::Mode { file, mode } => write!(f, "file {file}: mode {mode:04o}"),
            Op::Mkdir { path, mode } => write!(f, "mkdir {}, mode {mode:04o}", path.display()),
            Op::Rmdir { path } => write!(f, "rmdir {}", path.display()),
            Op::DirMode { path, mode } => write!(f, "directory {}: mode {mode:04o}", path.display()),
            Op::Restate => write!(f, "restates what waits to be applied"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Record {
        let mut overlay = Overlay::default();
        overlay.truncate(10);
        overlay.insert(3..8, Source::Bytes { bytes: Bytes::from_static(b"hello"), origin: 3 });
        let mut record = Record {
            files: vec![
                FileRef { id: 1, previous_lsn: 0, path: "a/b".into() },
                FileRef { id: 2, previous_lsn: 7, path: OsStr::from_bytes(b"\xff").into() },
            ],
            ops: vec![
                Op::Restate,
                Op::Mkdir { path: "a".into(), mode: 0o755 },
                Op::Create { file: 0, mode: 0o640 },
                Op::Unlink { file: 1 },
                Op::Rename { file: 0, to: "c".into() },
                Op::Mode { file: 0, mode: 0o600 },
                Op::DirMode { path: "a".into(), mode: 0o700 },
                Op::Rmdir { path: "a".into() },
            ],
        };
        record.push_overlay(0, &overlay);
        record
    }

    fn body(record: &Record) -> Vec<u8> {
        let mut out = Vec::new();
        record.encode(&mut out).unwrap();
        out
    }

    #[test]
    fn round_trip() {
        let record = sample();
        let encoded = body(&record);
        assert!(encoded.len() as u64 <= record.body_bytes());
        let decoded = Decoder::decode(&Bytes::from(encoded.clone()), &mut SpillCache::none()).unwrap();
        assert_eq!(body(&decoded), encoded);
        assert_eq!(decoded.files, record.files);
        for cut in 0..encoded.len() {
            let short = Bytes::from(encoded[..cut].to_vec());
            assert!(Decoder::decode(&short, &mut SpillCache::none()).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn only_a_whole_record_restates() {
        let mut record = sample();
        record.ops.push(Op::Restate);
        let decoded = Decoder::decode(&Bytes::from(body(&record)), &mut SpillCache::none());
        assert_eq!(decoded.unwrap_err().kind(), "corrupt");
    }

    #[test]
    fn hostile_paths_are_refused() {
        for bad in
            ["../x", "/etc/passwd", "a/../b", "a//b", ".untorn/journal/header", "a/.untorn/x", "x.untorn/lock", "", "."]
        {
            let record = Record {
                files: vec![FileRef { id: 1, previous_lsn: 0, path: bad.into() }],
                ops: vec![Op::Unlink { file: 0 }],
            };
            let err = Decoder::decode(&Bytes::from(body(&record)), &mut SpillCache::none()).unwrap_err();
            assert_eq!(err.kind(), "corrupt", "{bad:?}");
        }
    }
}
