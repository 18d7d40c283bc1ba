//! The index of the data that an owner keeps for readers: `undo/index.N` in the store directory.
//!
//! Each entry says for which commits `[from, to)` it is the truth. A reader of commit S reads the data file, the name
//! or the header first and the index afterwards: the **earliest** published entry with `to` > S has the state at S. A
//! later entry may be of a state that a killed checkpoint had overwritten in part.

use crate::error::{Context, Error, Result};
use crate::format::{BLOCK_BYTES, Header, crc64, u32_at, u64_at};
use crate::invariant;
use crate::undo::page::Published;
use rangemap::RangeMap;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_os::{File, Open, Storage, holds, read_full_at};

/// Bytes of an entry before its payload: checksum, length of the payload, kind.
const ENTRY_HEAD_BYTES: usize = 16;

/// Tries at reading an index that the owner replaces meanwhile.
const TRIES: usize = 1000;

/// A data file, by device and inode: identities are drawn anew when a store forgets a file.
pub type Inode = (u64, u64);

/// The file or directory that a name led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Was {
    /// Nothing.
    Nothing,
    /// A directory with these permission bits.
    Directory(u32),
    /// A file with these permission bits, which has this number in the undo directory.
    File {
        /// Permission bits.
        mode: u32,
        /// The number in its name in the undo directory.
        link: u64,
    },
    /// A file that could not be kept.
    Lost,
}

/// The state that something had.
#[derive(Clone, Debug, PartialEq)]
pub enum Old {
    /// Bytes of a data file. They lie in the file of this interval.
    Bytes {
        /// The file.
        file: Inode,
        /// The range in it.
        range: Range<u64>,
        /// Offset of the first byte in the file of old bytes.
        at: u64,
    },
    /// The length of a data file.
    Length {
        /// The file.
        file: Inode,
        /// Its length, in bytes.
        len: u64,
    },
    /// The header of the journal.
    Header(Box<Header>),
    /// The file or directory that a name led to.
    Name {
        /// The name.
        path: PathBuf,
        /// The file or directory.
        was: Was,
    },
}

/// An entry of the index.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The commits for which it is the truth.
    pub commits: Range<u64>,
    /// The state at these commits.
    pub old: Old,
}

impl Entry {
    /// Appends the bytes of the entry.
    pub fn encode(&self, to: &mut Vec<u8>) {
        let start = to.len();
        to.resize(start + ENTRY_HEAD_BYTES, 0);
        let mut numbers = |numbers: &[u64]| numbers.iter().for_each(|n| to.extend(n.to_le_bytes()));
        numbers(&[self.commits.start, self.commits.end]);
        let kind: u32 = match &self.old {
            Old::Bytes { file, range, at } => {
                numbers(&[file.0, file.1, range.start, range.end, *at]);
                1
            }
            Old::Length { file, len } => {
                numbers(&[file.0, file.1, *len]);
                2
            }
            Old::Header(header) => {
                encode_sparse(&header.encode(), to);
                3
            }
            Old::Name { path, was } => {
                let (kind, mode, link) = match was {
                    Was::Nothing => (0, 0, 0),
                    Was::Directory(mode) => (1, *mode, 0),
                    Was::File { mode, link } => (2, *mode, *link),
                    Was::Lost => (3, 0, 0),
                };
                numbers(&[kind, u64::from(mode), link]);
                to.extend(path.as_os_str().as_bytes());
                4
            }
        };
        let len = (to.len() - start - ENTRY_HEAD_BYTES) as u32;
        to[start + 8..start + 12].copy_from_slice(&len.to_le_bytes());
        to[start + 12..start + 16].copy_from_slice(&kind.to_le_bytes());
        let crc = crc64(&to[start + 8..]);
        to[start..start + 8].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads the first entry, and the number of its bytes. `None` if it is not whole.
    pub fn decode(b: &[u8]) -> Option<(Entry, usize)> {
        if b.len() < ENTRY_HEAD_BYTES {
            return None;
        }
        let (len, kind) = (u32_at(b, 8) as usize, u32_at(b, 12));
        let end = ENTRY_HEAD_BYTES.checked_add(len).filter(|end| *end <= b.len())?;
        if u64_at(b, 0) != crc64(&b[8..end]) || len < 16 {
            return None;
        }
        let commits = u64_at(b, ENTRY_HEAD_BYTES)..u64_at(b, ENTRY_HEAD_BYTES + 8);
        let payload = &b[ENTRY_HEAD_BYTES + 16..end];
        let number = |n: usize| payload.get(8 * n..8 * n + 8).map(|b| u64_at(b, 0));
        let old = match kind {
            1 => Old::Bytes { file: (number(0)?, number(1)?), range: number(2)?..number(3)?, at: number(4)? },
            2 => Old::Length { file: (number(0)?, number(1)?), len: number(2)? },
            3 => Old::Header(Box::new(Header::decode(&decode_sparse(payload)?, Path::new("index")).ok()??)),
            4 => {
                let was = match number(0)? {
                    0 => Was::Nothing,
                    1 => Was::Directory(number(1)? as u32),
                    2 => Was::File { mode: number(1)? as u32, link: number(2)? },
                    _ => Was::Lost,
                };
                Old::Name { path: OsString::from_vec(payload.get(24..)?.to_vec()).into(), was }
            }
            _ => return None,
        };
        Some((Entry { commits, old }, end))
    }
}

/// Zeros of a header of which an index spares the bytes.
const ZEROS_MIN: usize = 16;

/// Appends the runs of a block between longer runs of zeros: the offset and the length of each, two bytes each, and
/// then its bytes.
fn encode_sparse(block: &[u8; BLOCK_BYTES], to: &mut Vec<u8>) {
    let is_zeros = |at: usize| block[at..(at + ZEROS_MIN).min(BLOCK_BYTES)].iter().all(|byte| *byte == 0);
    let mut at = 0;
    while at < BLOCK_BYTES {
        if is_zeros(at) {
            at += block[at..].iter().take_while(|byte| **byte == 0).count();
            continue;
        }
        let end = (at..BLOCK_BYTES).find(|end| is_zeros(*end)).unwrap_or(BLOCK_BYTES);
        to.extend((at as u16).to_le_bytes());
        to.extend(((end - at) as u16).to_le_bytes());
        to.extend(&block[at..end]);
        at = end;
    }
}

fn decode_sparse(mut b: &[u8]) -> Option<[u8; BLOCK_BYTES]> {
    let mut block = [0; BLOCK_BYTES];
    while !b.is_empty() {
        let at = u16::from_le_bytes(b.get(..2)?.try_into().ok()?) as usize;
        let len = u16::from_le_bytes(b.get(2..4)?.try_into().ok()?) as usize;
        block.get_mut(at..at + len)?.copy_from_slice(b.get(4..4 + len)?);
        b = &b[4 + len..];
    }
    Some(block)
}

/// The name of an index.
pub fn index_name(generation: u64) -> String {
    format!("index.{generation:x}")
}

/// The name of the file with the old bytes of this interval.
pub fn old_bytes_name(commits: &Range<u64>) -> String {
    format!("old.{:x}.{:x}", commits.start, commits.end)
}

/// The interval in the name of a file with old bytes.
pub fn interval_of(name: &str) -> Option<Range<u64>> {
    let (from, to) = name.strip_prefix("old.")?.split_once('.')?;
    Some(u64::from_str_radix(from, 16).ok()?..u64::from_str_radix(to, 16).ok()?)
}

/// The directory of kept files. They are data files, whose permissions belong to the program.
pub const NAMES_DIR: &str = "names";

/// The name of a kept file.
pub fn link_name(link: u64) -> String {
    format!("{link:x}")
}

/// The number in the name of a kept file.
pub fn link_of(name: &str) -> Option<u64> {
    u64::from_str_radix(name, 16).ok()
}

/// Reads entries that were published, in order.
pub fn read_entries(b: &[u8], path: &Path, mut each: impl FnMut(Entry)) -> Result<()> {
    let mut at = 0;
    while at < b.len() {
        let Some((entry, bytes)) = Entry::decode(&b[at..]) else {
            return Err(Error::corrupt(path, format!("the entry at {at} has a wrong checksum")));
        };
        each(entry);
        at += bytes;
    }
    Ok(())
}

/// A piece of old bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    commits: Range<u64>,
    /// Offset in the file of old bytes, minus the offset in the data file.
    at: i128,
}

/// Old contents of one data file.
#[derive(Default)]
struct OldFile {
    pieces: RangeMap<u64, Piece>,
    len: Option<u64>,
}

/// The entries of the index that apply to one commit.
pub struct UndoIndex {
    lsn: u64,
    read: Published,
    files: BTreeMap<Inode, OldFile>,
    names: BTreeMap<PathBuf, Was>,
    header: Option<Box<Header>>,
    opened: BTreeMap<(u64, u64), Arc<dyn File>>,
}

impl UndoIndex {
    /// Nothing is known yet about this commit.
    pub fn new(lsn: u64) -> UndoIndex {
        UndoIndex {
            lsn,
            read: Published { generation: 0, bytes: 0 },
            files: BTreeMap::new(),
            names: BTreeMap::new(),
            header: None,
            opened: BTreeMap::new(),
        }
    }

    /// Reads the entries that were published since the last call. `published` tells how many bytes there are now.
    pub fn update(
        &mut self,
        storage: &dyn Storage,
        undo: &Path,
        mut published: impl FnMut() -> Result<Published>,
    ) -> Result<()> {
        for _ in 0..TRIES {
            let now = published()?;
            if now == self.read {
                return Ok(());
            }
            let from = if now.generation == self.read.generation { self.read.bytes } else { 0 };
            if now.bytes > from {
                let path = undo.join(index_name(now.generation));
                let file = match storage.open(&path, Open::READ) {
                    // The owner has replaced it meanwhile.
                    Err(e) if e.kind() == ErrorKind::NotFound => continue,
                    done => done.context("open", &path)?,
                };
                let mut b = vec![0; (now.bytes - from) as usize];
                if read_full_at(&*file, &mut b, from).context("read", &path)? < b.len() {
                    return Err(Error::corrupt(path, "it is shorter than its page says"));
                }
                read_entries(&b, &path, |entry| self.add(entry))?;
            }
            self.read = now;
        }
        Err(Error::corrupt(undo, "its index is missing"))
    }

    fn add(&mut self, Entry { commits, old }: Entry) {
        let is_newer = if holds(invariant::NEWER_UNDONE) { commits.end > self.lsn } else { commits.end >= self.lsn };
        if !is_newer {
            return;
        }
        // The earliest entry counts, so later ones fill gaps only.
        let earliest = holds(invariant::EARLIEST_UNDO);
        match old {
            Old::Bytes { file, range, at } => {
                let pieces = &mut self.files.entry(file).or_default().pieces;
                let piece = Piece { commits, at: i128::from(at) - i128::from(range.start) };
                if earliest {
                    for gap in pieces.gaps(&range).collect::<Vec<_>>() {
                        pieces.insert(gap, piece.clone());
                    }
                } else if !range.is_empty() {
                    pieces.insert(range, piece);
                }
            }
            Old::Length { file, len } => {
                let known = &mut self.files.entry(file).or_default().len;
                if known.is_none() || !earliest {
                    *known = Some(len);
                }
            }
            Old::Header(header) => {
                if self.header.is_none() || !earliest {
                    self.header = Some(header);
                }
            }
            Old::Name { path, was } => {
                if earliest {
                    self.names.entry(path).or_insert(was);
                } else {
                    self.names.insert(path, was);
                }
            }
        }
    }

    /// The header of the journal at the commit, if it has changed.
    pub fn header(&self) -> Option<&Header> {
        self.header.as_deref()
    }

    /// The file or directory that a name led to, if that has changed.
    pub fn name(&self, path: &Path) -> Option<Was> {
        self.names.get(path).copied()
    }

    /// The names in a directory that have changed.
    pub fn names_in<'a>(&'a self, dir: &'a Path) -> impl Iterator<Item = (&'a Path, Was)> {
        let names = self.names.iter().map(|(path, was)| (path.as_path(), *was));
        names.filter(move |(path, _)| path.parent() == Some(dir))
    }

    /// The length of a file at the commit, if it may have changed.
    pub fn len(&self, file: Inode) -> Option<u64> {
        self.files.get(&file)?.len
    }

    /// Whether contents of a file have changed.
    pub fn has(&self, file: Inode) -> bool {
        self.files.contains_key(&file)
    }

    /// The ranges of a file whose old bytes are kept, within this range.
    pub fn kept_in(&self, file: Inode, range: &Range<u64>) -> Vec<Range<u64>> {
        let Some(old) = self.files.get(&file) else { return Vec::new() };
        let range = range.start..range.end.min(old.len.unwrap_or(u64::MAX)).max(range.start);
        if range.is_empty() {
            return Vec::new();
        }
        let within = old.pieces.overlapping(range.clone());
        within.map(|(kept, _)| kept.start.max(range.start)..kept.end.min(range.end)).collect()
    }

    /// Lays old bytes over bytes that were read from a data file at this offset.
    pub fn undo(&mut self, storage: &dyn Storage, undo: &Path, file: Inode, buf: &mut [u8], offset: u64) -> Result<()> {
        let UndoIndex { files, opened, .. } = self;
        let Some(old) = files.get(&file) else { return Ok(()) };
        // Behind the end that the file had, the log has everything, and nothing is kept.
        let range = offset..(offset + buf.len() as u64).min(old.len.unwrap_or(u64::MAX));
        if range.is_empty() {
            return Ok(());
        }
        for (kept, piece) in old.pieces.overlapping(range.clone()) {
            let part = kept.start.max(range.start)..kept.end.min(range.end);
            let path = undo.join(old_bytes_name(&piece.commits));
            let key = (piece.commits.start, piece.commits.end);
            let from = match opened.get(&key) {
                Some(from) => from.clone(),
                None => {
                    let from = storage.open(&path, Open::READ).context("open", &path)?;
                    opened.insert(key, from.clone());
                    from
                }
            };
            let into = &mut buf[(part.start - offset) as usize..(part.end - offset) as usize];
            let at = u64::try_from(i128::from(part.start) + piece.at).unwrap_or(u64::MAX);
            if read_full_at(&*from, into, at).context("read", &path)? < into.len() {
                return Err(Error::corrupt(path, "it is shorter than its index says"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(commits: Range<u64>, range: Range<u64>) -> Entry {
        Entry { commits, old: Old::Bytes { file: (1, 2), range, at: 0 } }
    }

    #[test]
    fn entries_are_read_as_they_were_written() {
        let names = [Was::Nothing, Was::Directory(0o750), Was::File { mode: 0o640, link: 9 }, Was::Lost];
        let mut entries =
            vec![bytes(3..7, 10..20), Entry { commits: 0..9, old: Old::Length { file: (1, 2), len: 77 } }];
        entries.extend(names.map(|was| Entry { commits: 1..2, old: Old::Name { path: "dir/name".into(), was } }));
        let mut encoded = Vec::new();
        entries.iter().for_each(|entry| entry.encode(&mut encoded));
        let mut found = Vec::new();
        read_entries(&encoded, Path::new("index"), |entry| found.push(entry)).unwrap();
        assert_eq!(found, entries);
        for at in 0..encoded.len() {
            let mut damaged = encoded.clone();
            damaged[at] ^= 1;
            assert!(read_entries(&damaged, Path::new("index"), |_| {}).is_err(), "byte {at}");
        }
        assert_eq!(interval_of(&old_bytes_name(&(10..300))), Some(10..300));
        assert_eq!((link_of(&link_name(77)), link_of("old.1.2")), (Some(77), None));
    }

    #[test]
    fn the_earliest_entry_behind_the_commit_counts() {
        let mut index = UndoIndex::new(5);
        for entry in [bytes(0..5, 0..100), bytes(0..9, 20..30), bytes(5..7, 10..40)] {
            index.add(entry);
        }
        assert_eq!(index.kept_in((1, 2), &(0..25)), [10..20, 20..25]);
        let pieces: Vec<_> =
            index.files[&(1, 2)].pieces.iter().map(|(range, p)| (range.clone(), p.commits.end)).collect();
        assert_eq!(pieces, [(10..20, 7), (20..30, 9), (30..40, 7)]);
    }
}
