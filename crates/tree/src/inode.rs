//! An inode in memory: its row, what is uncommitted of it, and who uses it.

use crate::draft::Draft;
use crate::file_tree::{Attributes, Ino, Kind, Time, Transaction};
use crate::pack_room::Extent;
use crate::row::InodeRow;
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
    /// When the clock of the timer started.
    pub since: Duration,
    /// When there was the first of it, as far as this process knows.
    pub first: Duration,
}

/// Where the bytes of a file are, uncommitted ones included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// All of it is a hole.
    Nowhere,
    Draft,
    Pack(Extent),
    Object,
}

/// What a commit has of a file, and what its row was before.
pub(crate) struct Folded {
    size: u64,
    times: [Time; 3],
    /// Where the committed bytes were in the pack.
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
    /// What a commit of the names has.
    pub row: InodeRow,
    pub xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
    /// Of a directory: the one it lies in.
    pub parent: Ino,
    /// Times that the kernel was given it.
    pub known: u64,
    pub openings: u32,
    pub writers: u32,
    /// Of a file that is open for writing: when the kernel was last made to send all of it, or when it was opened so.
    pub pulled: Duration,
    /// The transaction that alone commits the uncommitted contents.
    pub txn: Option<Transaction>,
    /// A write failed, and nobody knows which: the uncommitted contents have a hole that nobody can fill.
    pub poisoned: bool,
    /// What writes were to have that failed, and nothing since: uncommitted contents without it are committed by nothing.
    pub lost: RangeSet<u64>,
    /// How many writes failed.
    pub failures: u64,
    /// The kernel has not told of the last of them; a pull may do so.
    pub is_untold: bool,
    /// The kernel has not all of what was lost any more.
    pub is_gone: bool,
    pub object: Option<Arc<File>>,
    pub uncommitted: Option<Uncommitted>,
    /// The uncommitted bytes of a small file.
    pub draft: Option<Box<Draft>>,
    /// The uncommitted bytes are in the object, all of them; those that are committed are in the pack.
    pub is_grown: bool,
    /// Where the bytes were cut since the last commit of the contents, and what was written: data, or zeros. For another
    /// process that goes on.
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
            pulled: Duration::ZERO,
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

    /// Whether a commit that no transaction asks for can have what is uncommitted.
    pub fn is_committable(&self) -> bool {
        self.is_committable_by(None)
    }

    /// Whether a commit can have what is uncommitted, which a transaction asks for or none.
    pub fn is_committable_by(&self, txn: Option<Transaction>) -> bool {
        !self.is_poisoned() && (self.txn.is_none() || self.txn == txn)
    }

    /// Whether the uncommitted contents lack what a failed write was to have.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned || !self.lost.is_empty()
    }

    /// A write of a range has failed.
    pub fn lose(&mut self, range: Range<u64>) {
        self.lost.insert(range);
        self.failures += 1;
        (self.is_untold, self.is_gone) = (true, false);
    }

    /// A range has the contents that programs meant.
    pub fn regain(&mut self, range: Range<u64>) {
        if !range.is_empty() && !self.lost.is_empty() {
            self.lost.remove(range);
        }
    }

    /// Nothing lacks any more.
    pub fn cure(&mut self) {
        self.poisoned = false;
        self.lost.clear();
    }

    /// Where the bytes are.
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

    /// How many bytes it has, if there are no holes but behind those of a small file.
    pub fn bytes_at_most(&self) -> u64 {
        let bytes = match self.place() {
            Place::Nowhere => 0,
            Place::Draft => self.draft.as_ref().map_or(0, |draft| draft.bytes().len() as u64),
            Place::Pack(extent) => extent.len() as u64,
            Place::Object => u64::MAX,
        };
        bytes.min(self.size())
    }

    /// The uncommitted contents; from here on there are some.
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

    /// The uncommitted size and times become the row's. Returns what undoes it, if there are some.
    pub fn fold(&mut self) -> Option<Folded> {
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
        Some(folded)
    }

    /// The commit could not be asked for: what it was to have is uncommitted again.
    pub fn unfold(&mut self, folded: Folded) {
        let row = &mut self.row;
        row.size = folded.size;
        [row.atime, row.mtime, row.ctime] = folded.times;
        row.extent = folded.extent;
        (self.draft, self.is_grown) = (folded.draft, folded.is_grown);
        self.uncommitted = Some(folded.uncommitted);
        (self.cut, self.staged) = (folded.cut, folded.staged);
    }

    /// Times: access, contents, anything; those of the uncommitted contents if there are some.
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

/// The names in a directory.
#[derive(Default)]
pub(crate) struct Dir {
    pub names: BTreeMap<Arc<[u8]>, (Ino, u64)>,
    pub order: BTreeMap<u64, Arc<[u8]>>,
    last: u64,
}

impl Dir {
    /// Adds a name, or gives a name that is there another inode. The name keeps its place.
    pub fn set(&mut self, name: Arc<[u8]>, ino: Ino) {
        let cookie = match self.names.get(&name) {
            Some((_, cookie)) => *cookie,
            None => self.last + 1,
        };
        self.restore(name, ino, cookie);
    }

    /// Adds a name with the place that it has.
    pub fn restore(&mut self, name: Arc<[u8]>, ino: Ino, cookie: u64) {
        self.last = self.last.max(cookie);
        self.order.insert(cookie, name.clone());
        self.names.insert(name, (ino, cookie));
    }

    pub fn remove(&mut self, name: &[u8]) {
        if let Some((_, cookie)) = self.names.remove(name) {
            self.order.remove(&cookie);
        }
    }
}
