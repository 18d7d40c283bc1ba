//! The body of a commit: its changes in canonical bytes, so that the same commit has the same bytes everywhere.
//!
//! ```text
//! body     version u8 = 1, number of changes u32, changes
//! change   kind u8, file u32, length of the path u16, path, and by kind:
//!          1 written: start u64, length u32, bytes    2 zeroed: start u64, end u64    3 resized: length u64
//!          4 created: mode u32    5 renamed: length u16, new path    6 removed    7 mode: mode u32
//!          8 directory made: mode u32    9 directory removed
//! ```
//!
//! Files of one commit have the numbers 1, 2, … by their first change; 0 stands for a directory. The path is the one
//! before the commit, of a new file its first one. Numbers are little-endian.

use crate::error::{Error, Result};
use crate::store::paths::{checked, has_own_part};
use bytes::{Bytes, BytesMut};
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use untorn::reader::{Change, ChangeKind};

const VERSION: u8 = 1;

/// The largest size of a file.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// A change of a file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Tells the files of one commit apart; 0 for a directory.
    pub file: u32,
    /// The name before the commit; of a new file, its first one.
    pub path: PathBuf,
    /// The change itself.
    pub kind: Kind,
}

impl Edit {
    /// Whether it changes the contents of a file.
    pub fn has_contents(&self) -> bool {
        matches!(self.kind, Kind::Written(..) | Kind::Zeroed(..) | Kind::Resized(_))
    }
}

/// The kind of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes from this offset on.
    Written(u64, Bytes),
    /// Zeros from here to there.
    Zeroed(u64, u64),
    /// The file's length.
    Resized(u64),
    /// A new file, with these permission bits.
    Created(u32),
    /// Another name.
    Renamed(PathBuf),
    /// The file is gone.
    Removed,
    /// Other permission bits.
    Mode(u32),
    /// A new directory, with these permission bits.
    DirectoryMade(u32),
    /// The directory is gone.
    DirectoryRemoved,
}

/// The length of the body of a commit with these changes, or a little more.
pub fn length(changes: &[Change]) -> u64 {
    let each = changes.iter().map(|change| {
        let data = match &change.kind {
            ChangeKind::Written(range) => range.end - range.start,
            ChangeKind::Renamed(to) => to.as_os_str().len() as u64,
            _ => 0,
        };
        data.saturating_add(change.path.as_os_str().len() as u64 + 32)
    });
    each.fold(5, u64::saturating_add)
}

/// The body of a commit.
///
/// # Errors
/// The bytes of a change cannot be read, or a later version of the library has changes of other kinds.
pub fn encode(changes: &[Change]) -> Result<Bytes> {
    let mut out = BytesMut::with_capacity(length(changes) as usize);
    let mut files = HashMap::new();
    // Changes of Untorn's own files, such as the state of a following directory, are not shipped.
    let is_shipped = |change: &&Change| !has_own_part(&change.path) || matches!(change.kind, ChangeKind::Renamed(_));
    out.extend_from_slice(&[VERSION]);
    out.extend_from_slice(&(changes.iter().filter(is_shipped).count() as u32).to_le_bytes());
    for change in changes.iter().filter(is_shipped) {
        let next = files.len() as u32 + 1;
        let file = if change.file == 0 { 0 } else { *files.entry(change.file).or_insert(next) };
        put_change(&mut out, file, change)?;
    }
    Ok(out.freeze())
}

/// The body of a commit without changes.
pub fn empty() -> Bytes {
    Bytes::from_static(&[VERSION, 0, 0, 0, 0])
}

fn put_change(out: &mut BytesMut, file: u32, change: &Change) -> Result<()> {
    let mut head = |kind: u8| {
        out.extend_from_slice(&[kind]);
        out.extend_from_slice(&file.to_le_bytes());
        put_path(out, &change.path);
    };
    match &change.kind {
        ChangeKind::Written(range) => {
            head(1);
            put_written(out, change, range.start, range.end)?;
        }
        ChangeKind::Zeroed(range) => {
            head(2);
            out.extend_from_slice(&range.start.to_le_bytes());
            out.extend_from_slice(&range.end.to_le_bytes());
        }
        ChangeKind::Resized(len) => {
            head(3);
            out.extend_from_slice(&len.to_le_bytes());
        }
        ChangeKind::Created(mode) => {
            head(4);
            out.extend_from_slice(&mode.to_le_bytes());
        }
        ChangeKind::Renamed(to) if has_own_part(&change.path) || has_own_part(to) => {
            let (from, to) = (change.path.display(), to.display());
            return Err(Error::store(format!(
                "a commit renames {from} to {to}, and one of these names is Untorn's own: it cannot be shipped; ship to \
                 another place, which begins with a snapshot"
            )));
        }
        ChangeKind::Renamed(to) => {
            head(5);
            put_path(out, to);
        }
        ChangeKind::Removed => head(6),
        ChangeKind::Mode(mode) => {
            head(7);
            out.extend_from_slice(&mode.to_le_bytes());
        }
        ChangeKind::DirectoryMade(mode) => {
            head(8);
            out.extend_from_slice(&mode.to_le_bytes());
        }
        ChangeKind::DirectoryRemoved => head(9),
        _ => return Err(Error::store(format!("{} has a change of an unknown kind", change.path.display()))),
    }
    Ok(())
}

fn put_path(out: &mut BytesMut, path: &Path) {
    let bytes = path.as_os_str().as_bytes();
    out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn put_written(out: &mut BytesMut, change: &Change, start: u64, end: u64) -> Result<()> {
    let len = u32::try_from(end - start).map_err(|_| Error::store("a range of a commit is too long for a body"))?;
    out.extend_from_slice(&start.to_le_bytes());
    out.extend_from_slice(&len.to_le_bytes());
    let mut at = out.len();
    out.resize(at + len as usize, 0);
    while at < out.len() {
        let offset = end - (out.len() - at) as u64;
        match change.read_at(&mut out[at..], offset).map_err(Error::store)? {
            0 => return Err(Error::store(format!("{} lacks bytes of a commit", change.path.display()))),
            n => at += n,
        }
    }
    Ok(())
}

/// Reads the changes of a body, which may be hostile.
///
/// # Errors
/// The reason why nobody can have written it.
pub fn decode(body: &Bytes) -> std::result::Result<Vec<Edit>, String> {
    let mut rest = Rest { bytes: body, at: 0 };
    let version = rest.u8()?;
    if version != VERSION {
        return Err(format!("its body has version {version}; this program knows {VERSION}: use a newer Untorn"));
    }
    let count = rest.u32()?;
    // A change has 7 bytes at least: no count makes this program reserve more than the body has.
    let mut edits = Vec::with_capacity((count as usize).min(body.len() / 7));
    for _ in 0..count {
        edits.push(rest.edit()?);
    }
    if rest.at != body.len() {
        return Err("its body has bytes behind the last change".into());
    }
    Ok(edits)
}

struct Rest<'a> {
    bytes: &'a Bytes,
    at: usize,
}

impl Rest<'_> {
    fn take(&mut self, n: usize) -> std::result::Result<Bytes, String> {
        let end = self.at.checked_add(n).filter(|end| *end <= self.bytes.len()).ok_or("its body ends too early")?;
        let taken = self.bytes.slice(self.at..end);
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> std::result::Result<[u8; N], String> {
        let taken = self.take(N)?;
        let mut array = [0; N];
        array.copy_from_slice(&taken);
        Ok(array)
    }

    fn u8(&mut self) -> std::result::Result<u8, String> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> std::result::Result<u32, String> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn size(&mut self) -> std::result::Result<u64, String> {
        let size = u64::from_le_bytes(self.array()?);
        if size > FILE_BYTES_MAX { Err(format!("a file of {size} bytes cannot be")) } else { Ok(size) }
    }

    fn mode(&mut self) -> std::result::Result<u32, String> {
        let mode = self.u32()?;
        if mode > 0o7777 { Err(format!("{mode:o} are no permission bits")) } else { Ok(mode) }
    }

    fn path(&mut self) -> std::result::Result<PathBuf, String> {
        let len = u16::from_le_bytes(self.array()?);
        checked(&self.take(len.into())?)
    }

    fn edit(&mut self) -> std::result::Result<Edit, String> {
        let (kind, file, path) = (self.u8()?, self.u32()?, self.path()?);
        let kind = match kind {
            1 => {
                let start = self.size()?;
                let len = self.u32()?;
                if start.saturating_add(len.into()) > FILE_BYTES_MAX {
                    return Err(format!("{len} bytes at {start} are beyond every file"));
                }
                Kind::Written(start, self.take(len as usize)?)
            }
            2 => match (self.size()?, self.size()?) {
                (start, end) if start <= end => Kind::Zeroed(start, end),
                (start, end) => return Err(format!("{start} to {end} is no range")),
            },
            3 => Kind::Resized(self.size()?),
            4 => Kind::Created(self.mode()?),
            5 => Kind::Renamed(self.path()?),
            6 => Kind::Removed,
            7 => Kind::Mode(self.mode()?),
            8 => Kind::DirectoryMade(self.mode()?),
            9 => Kind::DirectoryRemoved,
            _ => return Err(format!("a change has the unknown kind {kind}")),
        };
        Ok(Edit { file, path, kind })
    }
}
