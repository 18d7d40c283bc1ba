//! What a commit says: files and operations, in memory and as the body of a record.

use crate::error::{Error, Result};
use crate::extent::{Extent, verify};
use crate::format::{u16_at, u32_at, u64_at};
use crate::layer::{Layer, NO_END, Source};
use bytes::Bytes;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use untorn_os::Storage;

/// Longest path in a record, in bytes.
pub const PATH_BYTES_MAX: usize = 4095;
/// Largest file size, in bytes: the kernel's.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// A file that a commit touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRef {
    /// The identity that the file's attribute carries.
    pub id: u64,
    /// The last commit that the file held or had pending before this one.
    pub previous: u64,
    /// The file's name before this commit, relative to the store.
    pub path: PathBuf,
}

#[allow(missing_docs)] // every field says itself what it is
/// One operation. `file` is an index into the record's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// The bytes of a range, wherever they are. `Source::Zero` with an end of [`NO_END`] is the cut
    /// tail of a truncation.
    Put { file: u32, range: Range<u64>, source: Source },
    /// The file's size; what is beyond is cut.
    Truncate { file: u32, size: u64 },
    /// The file does not exist before; its mode.
    Create { file: u32, mode: u32 },
    /// The file gets another name; whatever had it is unlinked by an operation of its own before.
    Rename { file: u32, to: PathBuf },
    /// The file loses its name.
    Unlink { file: u32 },
    /// The file's permission bits.
    Mode { file: u32, mode: u32 },
    /// A new directory.
    Mkdir { path: PathBuf, mode: u32 },
    /// An empty directory goes.
    Rmdir { path: PathBuf },
    /// A directory's permission bits.
    DirMode { path: PathBuf, mode: u32 },
}

impl Op {
    /// Whether it is about a directory.
    pub fn names_a_directory(&self) -> bool {
        matches!(self, Op::Mkdir { .. } | Op::Rmdir { .. } | Op::DirMode { .. })
    }
}

/// A commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The files, each once.
    pub files: Vec<FileRef>,
    /// What happens to them, in order.
    pub ops: Vec<Op>,
}

impl Record {
    /// Adds a file's contents: the ranges and size of a layer.
    pub fn push_layer(&mut self, file: u32, layer: &Layer) {
        for (range, source) in layer.ranges() {
            self.ops.push(Op::Put { file, range: range.clone(), source: source.clone() });
        }
        if let Some(size) = layer.size {
            self.ops.push(Op::Truncate { file, size });
        }
    }

    /// Bytes that the body takes with all data in memory written inline.
    pub fn body_bytes(&self) -> u64 {
        let files: usize = self.files.iter().map(|f| 18 + f.path.as_os_str().len()).sum();
        let ops: u64 = self
            .ops
            .iter()
            .map(|op| match op {
                Op::Put { range, source: Source::Bytes { .. }, .. } => 21 + (range.end - range.start),
                Op::Rename { to: path, .. }
                | Op::Mkdir { path, .. }
                | Op::Rmdir { path }
                | Op::DirMode { path, .. } => 16 + path.as_os_str().len() as u64,
                _ => 45,
            })
            .sum();
        8 + files as u64 + ops
    }

    /// Writes the body. Extent ranges that were cut since they were written are summed anew.
    pub fn encode(&self, out: &mut impl Sink) -> Result<()> {
        out.put(&(self.files.len() as u32).to_le_bytes());
        out.put(&(self.ops.len() as u32).to_le_bytes());
        for file in &self.files {
            out.put(&file.id.to_le_bytes());
            out.put(&file.previous.to_le_bytes());
            put_path(out, &file.path);
        }
        for op in &self.ops {
            encode_op(op, out)?;
        }
        Ok(())
    }
}

/// Something that takes bytes.
pub trait Sink {
    /// Appends.
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for untorn_os::AlignedBuf {
    fn put(&mut self, bytes: &[u8]) {
        self.extend(bytes);
    }
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

const WRITE: u8 = 1;
const WRITE_EXTENT: u8 = 2;
const ZERO: u8 = 3;
const TRUNCATE: u8 = 4;
const CREATE: u8 = 5;
const RENAME: u8 = 6;
const UNLINK: u8 = 7;
const MODE: u8 = 8;
const MKDIR: u8 = 9;
const RMDIR: u8 = 10;
const DIR_MODE: u8 = 11;

fn put_path(out: &mut impl Sink, path: &Path) {
    let bytes = path.as_os_str().as_bytes();
    debug_assert!(bytes.len() <= PATH_BYTES_MAX);
    out.put(&(bytes.len() as u16).to_le_bytes());
    out.put(bytes);
}

fn encode_op(op: &Op, out: &mut impl Sink) -> Result<()> {
    match op {
        Op::Put { file, range, source } => {
            let (offset, len) = (range.start.to_le_bytes(), (range.end - range.start).to_le_bytes());
            let code = match source {
                Source::Bytes { .. } => WRITE,
                Source::Zero => ZERO,
                Source::Extent { .. } => WRITE_EXTENT,
            };
            out.put(&[code]);
            out.put(&file.to_le_bytes());
            out.put(&offset);
            out.put(&len);
            match source {
                Source::Bytes { bytes, origin } => {
                    out.put(&bytes[(range.start - origin) as usize..(range.end - origin) as usize]);
                }
                Source::Zero => {}
                Source::Extent { extent, at, origin, len: whole, crc } => {
                    let from = at + (range.start - origin);
                    let cut = range.end - range.start;
                    let crc = if from == *at && cut == *whole { *crc } else { extent.crc(from, cut)? };
                    out.put(&extent.id.to_le_bytes());
                    out.put(&from.to_le_bytes());
                    out.put(&crc.to_le_bytes());
                }
            }
        }
        Op::Truncate { file, size } => {
            out.put(&[TRUNCATE]);
            out.put(&file.to_le_bytes());
            out.put(&size.to_le_bytes());
        }
        Op::Create { file, mode } | Op::Mode { file, mode } => {
            out.put(&[if matches!(op, Op::Create { .. }) { CREATE } else { MODE }]);
            out.put(&file.to_le_bytes());
            out.put(&mode.to_le_bytes());
        }
        Op::Rename { file, to } => {
            out.put(&[RENAME]);
            out.put(&file.to_le_bytes());
            put_path(out, to);
        }
        Op::Unlink { file } => {
            out.put(&[UNLINK]);
            out.put(&file.to_le_bytes());
        }
        Op::Mkdir { path, mode } | Op::DirMode { path, mode } => {
            out.put(&[if matches!(op, Op::Mkdir { .. }) { MKDIR } else { DIR_MODE }]);
            put_path(out, path);
            out.put(&mode.to_le_bytes());
        }
        Op::Rmdir { path } => {
            out.put(&[RMDIR]);
            put_path(out, path);
        }
    }
    Ok(())
}

/// Whether a path may name something in a store: relative, no `.` or `..`, not too long, and not
/// inside a directory of Untorn's own.
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

/// Reads a body. Everything in it is checked: this is what a hostile or damaged journal must pass.
pub struct Decoder<'a> {
    body: &'a Bytes,
    at: usize,
    extents: &'a mut ExtentCache,
}

/// Extent files that records refer to, opened once each.
pub struct ExtentCache {
    open: Box<dyn Fn(u64) -> Result<Arc<Extent>>>,
    known: HashMap<u64, Arc<Extent>>,
    /// Check the contents of extents against their checksums while decoding.
    pub verify: bool,
}

impl ExtentCache {
    /// Extents in a journal's directory.
    pub fn new(storage: Arc<dyn Storage>, journal: PathBuf) -> ExtentCache {
        ExtentCache {
            open: Box::new(move |id| Extent::open(&*storage, &journal, id)),
            known: HashMap::new(),
            verify: true,
        }
    }

    /// For tests and fuzzing of the decoder alone: there are no extents.
    pub fn none() -> ExtentCache {
        ExtentCache {
            open: Box::new(|_| Err(Error::invalid("there are no extents here"))),
            known: HashMap::new(),
            verify: true,
        }
    }

    /// The extent of that number.
    pub fn get(&mut self, id: u64) -> Result<Arc<Extent>> {
        if let Some(extent) = self.known.get(&id) {
            return Ok(extent.clone());
        }
        let extent = (self.open)(id)?;
        self.known.insert(id, extent.clone());
        Ok(extent)
    }
}

impl<'a> Decoder<'a> {
    /// Decodes the whole body of a commit.
    pub fn decode(body: &'a Bytes, extents: &'a mut ExtentCache) -> Result<Record> {
        let mut d = Decoder { body, at: 0, extents };
        let files = d.u32()? as usize;
        let ops = d.u32()? as usize;
        // Counts are bounded by what the body can hold, before memory is taken for them.
        if files > body.len() / 18 || ops > body.len() / 5 {
            return Err(d.bad("it lists more than it can hold"));
        }
        let mut record = Record { files: Vec::with_capacity(files), ops: Vec::with_capacity(ops) };
        for _ in 0..files {
            record.files.push(FileRef { id: d.u64()?, previous: d.u64()?, path: d.path()? });
        }
        for _ in 0..ops {
            let op = d.op(files as u32)?;
            record.ops.push(op);
        }
        if d.at != body.len() {
            return Err(d.bad("bytes follow its last operation"));
        }
        Ok(record)
    }

    fn bad(&self, what: &str) -> Error {
        Error::corrupt("the body of a record", format!("byte {}: {what}", self.at))
    }

    fn take(&mut self, n: usize) -> Result<Range<usize>> {
        let end =
            self.at.checked_add(n).filter(|end| *end <= self.body.len()).ok_or_else(|| self.bad("it ends early"))?;
        let range = self.at..end;
        self.at = end;
        Ok(range)
    }

    fn u16(&mut self) -> Result<u16> {
        self.take(2).map(|r| u16_at(self.body, r.start))
    }

    fn u32(&mut self) -> Result<u32> {
        self.take(4).map(|r| u32_at(self.body, r.start))
    }

    fn u64(&mut self) -> Result<u64> {
        self.take(8).map(|r| u64_at(self.body, r.start))
    }

    fn path(&mut self) -> Result<PathBuf> {
        let len = self.u16()? as usize;
        let bytes = self.take(len)?;
        let path = Path::new(OsStr::from_bytes(&self.body[bytes]));
        check_path(path).map_err(|why| self.bad(&format!("path {path:?}: {why}")))?;
        Ok(path.to_owned())
    }

    fn mode(&mut self) -> Result<u32> {
        let mode = self.u32()?;
        if mode > 0o7777 { Err(self.bad("a mode has bits that no mode has")) } else { Ok(mode) }
    }

    fn file(&mut self, files: u32) -> Result<u32> {
        let file = self.u32()?;
        if file >= files { Err(self.bad("an operation names a file that is not listed")) } else { Ok(file) }
    }

    fn op(&mut self, files: u32) -> Result<Op> {
        let code = self.take(1)?;
        Ok(match self.body[code.start] {
            WRITE | ZERO | WRITE_EXTENT => {
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
                        let bytes = self.take(usize::try_from(len).unwrap_or(usize::MAX))?;
                        Source::Bytes { bytes: self.body.slice(bytes), origin: offset }
                    }
                    _ => {
                        let (id, at, crc) = (self.u64()?, self.u64()?, self.u64()?);
                        let extent = self.extents.get(id)?;
                        if self.extents.verify {
                            verify(&extent, at, len, crc)?;
                        }
                        Source::Extent { extent, at, origin: offset, len, crc }
                    }
                };
                Op::Put { file, range: offset..end, source }
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
            other => return Err(self.bad(&format!("unknown operation {other}"))),
        })
    }
}

/// Decodes a body that an extent holds.
pub fn body_by_reference(place: &[u8], extents: &mut ExtentCache) -> Result<Bytes> {
    if place.len() != 24 {
        return Err(Error::corrupt("a record", "the reference to its body has the wrong length"));
    }
    let (id, len, crc) = (u64_at(place, 0), u64_at(place, 8), u64_at(place, 16));
    let extent = extents.get(id)?;
    verify(&extent, 0, len, crc)?;
    let mut body = vec![0; usize::try_from(len).map_err(|_| Error::invalid("a body larger than memory"))?];
    extent.read(&mut body, 0)?;
    Ok(body.into())
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Put { file, range, source } => {
                let what = match source {
                    Source::Bytes { .. } => "write".to_owned(),
                    Source::Zero => "zero".to_owned(),
                    Source::Extent { extent, at, .. } => format!("write from {extent:?} at {at}"),
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Record {
        let mut layer = Layer::default();
        layer.truncate(10);
        layer.insert(3..8, Source::Bytes { bytes: Bytes::from_static(b"hello"), origin: 3 });
        let mut record = Record {
            files: vec![
                FileRef { id: 1, previous: 0, path: "a/b".into() },
                FileRef { id: 2, previous: 7, path: OsStr::from_bytes(b"\xff").into() },
            ],
            ops: vec![
                Op::Mkdir { path: "a".into(), mode: 0o755 },
                Op::Create { file: 0, mode: 0o640 },
                Op::Unlink { file: 1 },
                Op::Rename { file: 0, to: "c".into() },
                Op::Mode { file: 0, mode: 0o600 },
                Op::DirMode { path: "a".into(), mode: 0o700 },
                Op::Rmdir { path: "a".into() },
            ],
        };
        record.push_layer(0, &layer);
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
        let decoded = Decoder::decode(&Bytes::from(encoded.clone()), &mut ExtentCache::none()).unwrap();
        assert_eq!(body(&decoded), encoded);
        assert_eq!(decoded.files, record.files);
        for cut in 0..encoded.len() {
            let short = Bytes::from(encoded[..cut].to_vec());
            assert!(Decoder::decode(&short, &mut ExtentCache::none()).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn hostile_paths_are_refused() {
        for bad in
            ["../x", "/etc/passwd", "a/../b", "a//b", ".untorn/journal/header", "a/.untorn/x", "x.untorn/lock", "", "."]
        {
            let record = Record {
                files: vec![FileRef { id: 1, previous: 0, path: bad.into() }],
                ops: vec![Op::Unlink { file: 0 }],
            };
            let err = Decoder::decode(&Bytes::from(body(&record)), &mut ExtentCache::none()).unwrap_err();
            assert_eq!(err.kind(), "corrupt", "{bad:?}");
        }
    }
}
