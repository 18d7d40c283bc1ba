//! The contents of a commit: files and operations, in memory and as the body of a record.

mod decoder;
mod indexed;

use crate::commits::overlay::{NO_END, Overlay, Source};
use crate::error::Result;
use crate::format::sized_memory;
pub(crate) use decoder::{BodyInLog, UnreadableBody};
pub use decoder::{CheckSpills, Decoder, SpillCache, body_by_reference};
pub use indexed::IndexedSink;
use std::fmt;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

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
    /// Appends contents of a file.
    fn append_contents(&mut self, bytes: &[u8]) {
        self.append(bytes);
    }
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
                    out.append_contents(&bytes[(range.start - origin) as usize..(range.end - origin) as usize]);
                }
                Source::Log { segment, .. } => {
                    let mut bytes = sized_memory::zeros(range.end - range.start, segment.path())?;
                    source.copy_to(&mut bytes, range.start)?;
                    out.append_contents(&bytes);
                }
                Source::Zero | Source::Unreadable(_) => {}
                Source::Spill { spill, at, origin, len: whole, crc } => {
                    spill.check_used(*at, *whole, *crc)?;
                    let from = at + (range.start - origin);
                    let cut = range.end - range.start;
                    let crc = if from == *at && cut == *whole { *crc } else { spill.crc(from..from + cut, false)? };
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
    use bytes::Bytes;
    use std::ffi::OsStr;

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
