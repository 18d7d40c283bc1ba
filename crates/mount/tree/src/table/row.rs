//! Rows of the table and their bytes.

use crate::interface::file_tree::{Ino, Kind, Time};
use crate::small_files::pack_room::Extent;
use std::num::NonZeroU32;
use std::sync::Arc;

/// The key of a row: the object that it describes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Key {
    /// An inode.
    Inode(Ino),
    /// A name in a directory.
    Name(Ino, Arc<[u8]>),
    /// An extended attribute of an inode.
    Xattr(Ino, Box<[u8]>),
}

/// A committed inode: size and times are those of its committed contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InodeRow {
    pub kind: Kind,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub size: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    /// A program has synced the file.
    pub synced: bool,
    /// The inode has an object, which holds the contents if they are not in the pack.
    pub object: bool,
    /// The extent of the contents in the pack.
    pub extent: Option<Extent>,
    /// The target of a symbolic link; empty for all other inodes.
    pub target: Box<[u8]>,
}

impl InodeRow {
    /// Position of the flags in the row's bytes.
    pub const FLAGS_AT: usize = 9;
    /// The flag that there is an object.
    pub const HAS_OBJECT: u8 = 2;
    const SYNCED: u8 = 1;

    fn flags(&self) -> u8 {
        let flag = |is, bit| if is { bit } else { 0 };
        flag(self.synced, Self::SYNCED) | flag(self.object, Self::HAS_OBJECT)
    }
}

/// A row with its key, as in the table's file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Row {
    Inode(Ino, InodeRow),
    Name { dir: Ino, name: Arc<[u8]>, cookie: u64, ino: Ino },
    Xattr { ino: Ino, name: Box<[u8]>, value: Box<[u8]> },
}

const INODE: u8 = 1;
const NAME: u8 = 2;
const XATTR: u8 = 3;
const KINDS: [Kind; 7] =
    [Kind::File, Kind::Directory, Kind::Symlink, Kind::Fifo, Kind::Socket, Kind::CharDevice, Kind::BlockDevice];

impl Row {
    /// The number of the row's sort, never 0, and its bytes.
    pub fn encode(&self) -> (u8, Vec<u8>) {
        let mut out = Vec::with_capacity(128);
        let sort = match self {
            Row::Inode(ino, row) => {
                out.extend(ino.to_le_bytes());
                let kind = KINDS.iter().position(|kind| *kind == row.kind).expect("every kind is in the list");
                out.extend([kind as u8, row.flags()]);
                [row.mode, row.nlink, row.uid, row.gid, row.rdev].iter().for_each(|n| out.extend(n.to_le_bytes()));
                out.extend(row.size.to_le_bytes());
                for time in [row.atime, row.mtime, row.ctime] {
                    out.extend(time.seconds.to_le_bytes());
                    out.extend(time.nanoseconds.to_le_bytes());
                }
                out.extend(row.extent.map_or(0, |extent| extent.offset).to_le_bytes());
                out.extend(row.extent.map_or(0, |extent| extent.len.get()).to_le_bytes());
                out.extend(&row.target);
                INODE
            }
            Row::Name { dir, name, cookie, ino } => {
                [dir, cookie, ino].iter().for_each(|n| out.extend(n.to_le_bytes()));
                out.extend(name.iter());
                NAME
            }
            Row::Xattr { ino, name, value } => {
                out.extend(ino.to_le_bytes());
                out.extend((name.len() as u16).to_le_bytes());
                out.extend(name);
                out.extend(value);
                XATTR
            }
        };
        (sort, out)
    }

    /// Decodes a row; `None` if the bytes are invalid.
    pub fn decode(sort: u8, bytes: &[u8]) -> Option<Row> {
        let mut rest = Bytes(bytes);
        Some(match sort {
            INODE => {
                let ino = rest.u64()?;
                let [kind, flags] = rest.take::<2>()?;
                let kind = *KINDS.get(usize::from(kind))?;
                let [mode, nlink, uid, gid, rdev] = [rest.u32()?, rest.u32()?, rest.u32()?, rest.u32()?, rest.u32()?];
                let size = rest.u64()?;
                let [atime, mtime, ctime] = [rest.time()?, rest.time()?, rest.time()?];
                let (synced, object) = (flags & InodeRow::SYNCED != 0, flags & InodeRow::HAS_OBJECT != 0);
                let (offset, len) = (rest.u64()?, NonZeroU32::new(rest.u32()?));
                let extent = len.map(|len| Extent { offset, len });
                if extent.is_some_and(|extent| !extent.is_possible()) {
                    return None;
                }
                let target = rest.0.into();
                let row = InodeRow {
                    kind,
                    mode,
                    nlink,
                    uid,
                    gid,
                    rdev,
                    size,
                    atime,
                    mtime,
                    ctime,
                    synced,
                    object,
                    extent,
                    target,
                };
                Row::Inode(ino, row)
            }
            NAME => {
                let [dir, cookie, ino] = [rest.u64()?, rest.u64()?, rest.u64()?];
                Row::Name { dir, name: rest.0.into(), cookie, ino }
            }
            XATTR => {
                let ino = rest.u64()?;
                let len = usize::from(u16::from_le_bytes(rest.take()?));
                let (name, value) = rest.0.split_at_checked(len)?;
                Row::Xattr { ino, name: name.into(), value: value.into() }
            }
            _ => return None,
        })
    }

    /// The key of the row.
    pub fn key(&self) -> Key {
        match self {
            Row::Inode(ino, _) => Key::Inode(*ino),
            Row::Name { dir, name, .. } => Key::Name(*dir, name.clone()),
            Row::Xattr { ino, name, .. } => Key::Xattr(*ino, name.clone()),
        }
    }
}

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn time(&mut self) -> Option<Time> {
        Some(Time { seconds: self.take().map(i64::from_le_bytes)?, nanoseconds: self.u32()? })
    }
}
