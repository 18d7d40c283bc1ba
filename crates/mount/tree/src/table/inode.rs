//! An inode in memory: its row, its uncommitted changes, and its users.

use crate::interface::file_tree::{Attributes, Ino, Kind, Time, Transaction};
use crate::small_files::draft::Draft;
use crate::small_files::pack_room::Extent;
use crate::table::row::InodeRow;
use rangemap::{RangeMap, RangeSet};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use untorn::File;

/// Size and times of uncommitted contents; the bytes are in a draft, or staged in the object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uncommitted {
    pub size: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    /// Bytes before this one are as committed.
    pub kept: u64,
    /// Start of the timer's period for this file.
    pub since: Duration,
    /// Time of the oldest uncommitted change, as far as this process knows.
    pub first: Duration,
}

/// Place of a file's bytes, uncommitted ones included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// All of the file is a hole.
    Nowhere,
    Draft,
    Pack(Extent),
    Object,
}

/// A file's part of a commit, and its former row, to undo the commit.
pub(crate) struct Folded {
    size: u64,
    times: [Time; 3],
    /// The extent of the committed bytes in the pack.
    pub extent: Option<Extent>,
    pub draft: Option<Box<Draft>>,
    /// The bytes are staged in the object.
    pub in_object: bool,
    is_grown: bool,
    uncommitted: Uncommitted,
    cut: Option<u64>,
    staged: RangeMap<u64, bool>,
}

pub(crate) struct Inode {
    /// The row for a commit of names and attributes.
    pub row: InodeRow,
    pub xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
    /// The parent directory, of a directory.
    pub parent: Ino,
    /// How often the kernel got this inode.
    pub known: u64,
    pub openings: u32,
    pub writers: u32,
    /// For a file that is open for writing: when the kernel was last made to send all dirty pages, or when the file was
    /// opened.
    pub written_back: Duration,
    /// The transaction that alone commits the uncommitted contents.
    pub txn: Option<Transaction>,
    /// An unknown write failed: the uncommitted contents lack bytes that nobody can restore.
    pub poisoned: bool,
    /// Ranges of failed writes that nothing has written since. The uncommitted contents are not committed without them.
    pub lost: RangeSet<u64>,
    /// Number of failed writes.
    pub failures: u64,
    /// The kernel has not reported the last failed write yet; a write-back may do so.
    pub is_untold: bool,
    /// The kernel no longer has all of the lost data.
    pub is_gone: bool,
    pub object: Option<Arc<File>>,
    pub uncommitted: Option<Uncommitted>,
    /// The uncommitted bytes of a small file.
    pub draft: Option<Box<Draft>>,
    /// All bytes, with the uncommitted ones, are in the object; the committed bytes are in the pack.
    pub is_grown: bool,
    /// Smallest truncation since the last commit of the contents, and the ranges that were written since, with data or
    /// zeros. For the handover log.
    pub cut: Option<u64>,
    pub staged: RangeMap<u64, bool>,
}

impl Inode {
    pub fn new(row: InodeRow) -> Inode {
        Inode {
            row,
            xattrs: BTreeMap::new(),
            parent: 0,
            known: 0,
            openings: 0,
            writers: 0,
            written_back: Duration::ZERO,
            txn: None,
            poisoned: false,
            lost: RangeSet::new(),
            failures: 0,
            is_untold: false,
            is_gone: false,
            object: None,
            uncommitted: None,
            draft: None,
            is_grown: false,
            cut: None,
            staged: RangeMap::new(),
        }
    }

    pub fn is_file(&self) -> bool {
        self.row.kind == Kind::File
    }

    pub fn is_dir(&self) -> bool {
        self.row.kind == Kind::Directory
    }

    /// Whether a commit of no transaction may include the uncommitted contents.
    pub fn is_committable(&self) -> bool {
        self.is_committable_by(&[])
    }

    /// Whether a commit of these transactions may include the uncommitted contents.
    pub fn is_committable_by(&self, txns: &[Transaction]) -> bool {
        !self.is_poisoned() && self.txn.is_none_or(|txn| txns.contains(&txn))
    }

    /// Whether the uncommitted contents lack data of a failed write.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned || !self.lost.is_empty()
    }

    /// Notes that a write of a range has failed.
    pub fn lose(&mut self, range: Range<u64>) {
        self.lost.insert(range);
        self.failures += 1;
        (self.is_untold, self.is_gone) = (true, false);
    }

    /// Notes that a range has the contents that programs wrote.
    pub fn regain(&mut self, range: Range<u64>) {
        if !range.is_empty() && !self.lost.is_empty() {
            self.lost.remove(range);
        }
    }

    /// Notes that no data is lost any more.
    pub fn cure(&mut self) {
        self.poisoned = false;
        self.lost.clear();
    }

    /// Place of the bytes.
    pub fn place(&self) -> Place {
        match self.row.extent {
            _ if self.draft.is_some() => Place::Draft,
            Some(extent) if !self.is_grown => Place::Pack(extent),
            _ if self.row.object => Place::Object,
            _ => Place::Nowhere,
        }
    }

    /// Size with uncommitted changes.
    pub fn size(&self) -> u64 {
        self.uncommitted.map_or(self.row.size, |u| u.size)
    }

    /// The most bytes that are stored: ignores holes, except behind the bytes of a small file.
    pub fn bytes_at_most(&self) -> u64 {
        let bytes = match self.place() {
            Place::Nowhere => 0,
            Place::Draft => self.draft.as_ref().map_or(0, |draft| draft.bytes().len() as u64),
            Place::Pack(extent) => extent.len() as u64,
            Place::Object => u64::MAX,
        };
        bytes.min(self.size())
    }

    /// The uncommitted contents, which are created if there are none.
    pub fn change(&mut self, since: Duration) -> &mut Uncommitted {
        let row = &self.row;
        self.uncommitted.get_or_insert(Uncommitted {
            size: row.size,
            atime: row.atime,
            mtime: row.mtime,
            ctime: row.ctime,
            kept: u64::MAX,
            since,
            first: since,
        })
    }

    /// Moves the uncommitted size and times to the row. Returns the former state for [`unfold`](Self::unfold), if there
    /// were uncommitted contents.
    pub fn fold(&mut self) -> Option<Folded> {
        let shown = self.size();
        let in_object = self.place() == Place::Object;
        let u = self.uncommitted.take()?;
        let (cut, staged) = (self.cut.take(), std::mem::take(&mut self.staged));
        let (draft, is_grown) = (self.draft.take(), std::mem::take(&mut self.is_grown));
        let row = &mut self.row;
        let (size, times, extent) = (row.size, [row.atime, row.mtime, row.ctime], row.extent);
        let folded = Folded { size, times, extent, draft, in_object, is_grown, uncommitted: u, cut, staged };
        (row.size, row.atime, row.mtime, row.ctime) = (u.size, u.atime, u.mtime, u.ctime);
        if in_object {
            row.extent = None;
        }
        debug_assert_eq!(self.size(), shown, "a commit changed the size that programs see");
        debug_assert!(
            self.place() != Place::Draft && (!in_object || self.place() == Place::Object),
            "committed contents are at {:?}",
            self.place()
        );
        Some(folded)
    }

    /// Undoes [`fold`](Self::fold) after the store refused the commit.
    pub fn unfold(&mut self, folded: Folded) {
        debug_assert!(
            self.uncommitted.is_none() && self.draft.is_none(),
            "a file of {} bytes changed while its commit was built",
            self.size()
        );
        let size = folded.uncommitted.size;
        let row = &mut self.row;
        row.size = folded.size;
        [row.atime, row.mtime, row.ctime] = folded.times;
        row.extent = folded.extent;
        (self.draft, self.is_grown) = (folded.draft, folded.is_grown);
        self.uncommitted = Some(folded.uncommitted);
        (self.cut, self.staged) = (folded.cut, folded.staged);
        debug_assert_eq!(self.size(), size, "a refused commit changed the size that programs see");
    }

    /// Times of access, contents and inode; those of the uncommitted contents if there are some.
    pub fn times(&mut self) -> [&mut Time; 3] {
        match &mut self.uncommitted {
            Some(u) => [&mut u.atime, &mut u.mtime, &mut u.ctime],
            None => [&mut self.row.atime, &mut self.row.mtime, &mut self.row.ctime],
        }
    }

    pub fn attributes(&self, ino: Ino) -> Attributes {
        let row = &self.row;
        let (atime, mtime, ctime) = match &self.uncommitted {
            Some(u) => (u.atime, u.mtime, u.ctime),
            None => (row.atime, row.mtime, row.ctime),
        };
        let size = self.size();
        Attributes {
            ino,
            kind: row.kind,
            mode: row.mode,
            nlink: row.nlink,
            uid: row.uid,
            gid: row.gid,
            rdev: row.rdev,
            size,
            blocks: self.bytes_at_most().div_ceil(512),
            atime,
            mtime,
            ctime,
        }
    }
}

/// The largest position of a name: with those of `.` and `..`, which a server puts before all others, it fits in 31
/// bits, for 32-bit programs without large files.
const PLACE_MAX: u64 = i32::MAX as u64 - 2;

/// The names in a directory, each at a position.
///
/// A new name gets a position before those of earlier names. A program that is reading the directory has passed it, so
/// that reading ends even if names are made and renamed meanwhile.
#[derive(Default)]
pub(crate) struct Dir {
    pub names: BTreeMap<Arc<[u8]>, (Ino, u64)>,
    pub order: BTreeMap<u64, Arc<[u8]>>,
    /// Positions for new names, the last one first. Restored names may have some of them.
    free: Range<u64>,
}

impl Dir {
    /// Whether a position is valid. Trees of earlier versions used positions without a limit.
    pub fn is_place(place: u64) -> bool {
        (1..=PLACE_MAX).contains(&place)
    }

    /// Adds a name, at a position if one is given, or gives an existing name another inode. An existing name keeps its
    /// position.
    pub fn set(&mut self, name: Arc<[u8]>, ino: Ino, at: Option<u64>) {
        let there = self.names.get(&name).map(|(_, place)| *place);
        let place = there.or(at).unwrap_or_else(|| self.new_place());
        self.restore(name, ino, place);
    }

    /// Adds a name at its former position, or at a new one if that is not valid.
    pub fn restore(&mut self, name: Arc<[u8]>, ino: Ino, place: u64) {
        let place = if Self::is_place(place) { place } else { self.new_place() };
        self.order.insert(place, name.clone());
        self.names.insert(name, (ino, place));
    }

    /// Removes a name; returns its position.
    pub fn remove(&mut self, name: &[u8]) -> Option<u64> {
        let (_, place) = self.names.remove(name)?;
        // A log may restore another name at the position before it removes this one.
        if self.order.get(&place).is_some_and(|there| **there == *name) {
            self.order.remove(&place);
        }
        Some(place)
    }

    fn new_place(&mut self) -> u64 {
        loop {
            let Some(place) = self.free.next_back() else {
                self.free = self.largest_gap();
                debug_assert!(
                    self.free.is_empty() || self.order.range(self.free.clone()).next().is_none(),
                    "a name is in the gap {:?}",
                    self.free
                );
                match self.free.is_empty() {
                    // More names than 31 bits can count: the rest is for 64-bit programs.
                    true => return self.order.last_key_value().map_or(1, |(last, _)| last + 1),
                    false => continue,
                }
            };
            if !self.order.contains_key(&place) {
                debug_assert!(Self::is_place(place), "a new name gets position {place}");
                return place;
            }
        }
    }

    /// The largest range of positions without names.
    fn largest_gap(&self) -> Range<u64> {
        let first = self.order.first_key_value().map_or(PLACE_MAX + 1, |(first, _)| *first);
        if first > PLACE_MAX / 2 {
            return 1..first;
        }
        let after = self.order.keys().map(|place| place + 1);
        let before = self.order.keys().copied().skip(1).chain([PLACE_MAX + 1]);
        let gaps = std::iter::once(1..first).chain(after.zip(before).map(|(after, before)| after..before));
        gaps.max_by_key(|gap| gap.end.saturating_sub(gap.start)).unwrap_or(0..0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: u64) -> Arc<[u8]> {
        n.to_string().into_bytes().into()
    }

    fn agrees(dir: &Dir) {
        assert_eq!(dir.names.len(), dir.order.len());
        for (place, name) in &dir.order {
            assert_eq!(dir.names[name].1, *place);
            assert!(Dir::is_place(*place) && i32::try_from(place + 2).is_ok());
        }
    }

    #[test]
    fn places_fit_in_31_bits_when_all_have_been_used() {
        let mut dir = Dir::default();
        for n in 0..3 {
            dir.set(name(n), n, None);
        }
        assert_eq!(dir.order.values().cloned().collect::<Vec<_>>(), [name(2), name(1), name(0)]);
        // As if very many names had come and gone.
        dir.free = 1..3;
        for n in 3..9 {
            dir.set(name(n), n, None);
        }
        agrees(&dir);
        let next: Vec<Arc<[u8]>> = dir.order.values().skip(2).take(2).cloned().collect();
        assert_eq!(next, [name(8), name(7)], "after the two at the end come those in the largest gap");
    }

    #[test]
    fn places_that_were_counted_upwards_stay_and_those_beyond_the_limit_are_new_ones() {
        let mut dir = Dir::default();
        for (n, place) in [1, 2, 3, PLACE_MAX, PLACE_MAX + 1, u64::MAX].into_iter().enumerate() {
            dir.restore(name(n as u64), n as u64, place);
        }
        agrees(&dir);
        assert_eq!([0, 1, 2, 3].map(|n| dir.names[&name(n)].1), [1, 2, 3, PLACE_MAX]);
        dir.set(name(9), 9, None);
        agrees(&dir);
    }

    #[test]
    fn a_log_that_restores_before_it_removes_keeps_the_place() {
        let mut dir = Dir::default();
        dir.set(name(1), 7, None);
        let place = dir.names[&name(1)].1;
        dir.restore(name(2), 7, place);
        dir.remove(&name(1));
        agrees(&dir);
        assert_eq!(dir.names[&name(2)].1, place);
    }
}
