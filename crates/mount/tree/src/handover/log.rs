//! The handover log, which outlives the process that serves a tree: uncommitted changes, in memory, as frames of items.
//!
//! A frame has the changes of one operation, and is valid as a whole or not at all. Rows and states are those after the
//! operation, so that the last one counts, even if a commit has earlier ones.

use crate::interface::file_tree::{Ino, Time, Transaction};
use crate::table::row::{Key, Row};
use std::io;

/// Storage of the log, which lasts as long as the machine runs.
#[allow(clippy::len_without_is_empty)]
pub trait HandoverLog: Send + Sync {
    /// Length of the log in bytes; 0 if there is none.
    fn len(&self) -> io::Result<u64>;
    /// Reads bytes of the log.
    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()>;
    /// Appends all parts to the log; if the process is killed meanwhile, perhaps only a first part of them, and
    /// [`len`](HandoverLog::len) then ends with that part.
    fn append(&self, parts: &[&[u8]]) -> io::Result<()>;
    /// Truncates the log to `len` bytes, to remove an incomplete frame at the end.
    fn cut(&self, len: u64) -> io::Result<()>;
    /// Begins another log of about `bytes` bytes. Until [`finish`](HandoverLog::finish), the last one stays valid.
    fn begin(&self, bytes: u64) -> io::Result<()>;
    /// Replaces the log by everything that was appended since [`begin`](HandoverLog::begin).
    fn finish(&self) -> io::Result<()>;
    /// Discards the log.
    fn give_up(&self);
}

/// The state of an inode in use that its rows do not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub ino: Ino,
    pub known: u64,
    pub openings: u32,
    pub writers: u32,
    pub poisoned: bool,
    /// Ranges of failed writes.
    pub lost: Vec<(u64, u64)>,
    pub txn: Option<Transaction>,
    /// Size, first changed byte, and times of uncommitted contents.
    pub uncommitted: Option<(u64, u64, [Time; 3])>,
}

/// A piece of a frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Item<'a> {
    /// First item of a log: the number and the owner of the table's last commit, and the number of this log.
    Begin {
        commit: u64,
        owner: u64,
        own: u64,
    },
    /// The next inode number, and the limit of the numbers for whose objects there is a directory.
    Numbers {
        next: Ino,
        limit: Ino,
    },
    Row(Row),
    Gone(Key),
    State(State),
    Data {
        ino: Ino,
        offset: u64,
        bytes: &'a [u8],
    },
    Zeros {
        ino: Ino,
        offset: u64,
        len: u64,
    },
    /// The object ends here.
    Length {
        ino: Ino,
        len: u64,
    },
    /// A commit of all rows so far, and of the contents of these files.
    Commit {
        number: u64,
        inos: Vec<Ino>,
    },
    /// The store refused the commit.
    Void {
        number: u64,
    },
    /// The object of an inode that is gone must be removed.
    Doomed(Ino),
    /// The uncommitted contents of a file are discarded.
    RolledBack(Ino),
    /// A transaction, and the opening that has begun it.
    Begun {
        number: Transaction,
        owner: u64,
        keeps: bool,
        left: bool,
    },
    Ended(Transaction),
    /// The store refused to commit the file with its names, so the next commit includes it.
    Deferred(Ino),
    /// A step of a request is complete; the request is answered, or is about to be.
    Happened {
        unique: u64,
        ino: Ino,
    },
    /// The answer to a request gives the kernel an inode.
    Given {
        unique: u64,
        ino: Ino,
    },
    /// The inodes that the answer to a request was to give are not counted any more.
    TakenBack {
        unique: u64,
    },
}

const INODE: u8 = 1;
const NAME: u8 = 2;
const XATTR: u8 = 3;

struct Out<'a>(&'a mut Vec<u8>);

impl Out<'_> {
    fn u64s(&mut self, numbers: &[u64]) {
        numbers.iter().for_each(|n| self.0.extend(n.to_le_bytes()));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend((bytes.len() as u32).to_le_bytes());
        self.0.extend(bytes);
    }

    fn time(&mut self, time: Time) {
        self.0.extend(time.seconds.to_le_bytes());
        self.0.extend(time.nanoseconds.to_le_bytes());
    }
}

impl Item<'_> {
    /// Appends the item's bytes. The caller appends the data of `Data` after them.
    pub fn write(&self, to: &mut Vec<u8>) {
        let tag = match self {
            Item::Begin { .. } => b'B',
            Item::Numbers { .. } => b'N',
            Item::Row(_) => b'R',
            Item::Gone(_) => b'G',
            Item::State(_) => b'S',
            Item::Data { .. } => b'D',
            Item::Zeros { .. } => b'Z',
            Item::Length { .. } => b'L',
            Item::Commit { .. } => b'C',
            Item::Void { .. } => b'V',
            Item::Doomed(_) => b'X',
            Item::RolledBack(_) => b'O',
            Item::Begun { .. } => b'T',
            Item::Ended(_) => b'E',
            Item::Happened { .. } => b'H',
            Item::Deferred(_) => b'W',
            Item::Given { .. } => b'I',
            Item::TakenBack { .. } => b'K',
        };
        to.push(tag);
        let mut out = Out(to);
        match self {
            Item::Begin { commit, owner, own } => out.u64s(&[*commit, *owner, *own]),
            Item::Numbers { next, limit } => out.u64s(&[*next, *limit]),
            Item::Row(row) => {
                let (sort, bytes) = row.encode();
                out.0.push(sort);
                out.bytes(&bytes);
            }
            Item::Gone(key) => {
                let (sort, ino, name): (u8, Ino, &[u8]) = match key {
                    Key::Inode(ino) => (INODE, *ino, &[]),
                    Key::Name(dir, name) => (NAME, *dir, name),
                    Key::Xattr(ino, name) => (XATTR, *ino, name),
                };
                out.0.push(sort);
                out.u64s(&[ino]);
                out.bytes(name);
            }
            Item::State(state) => {
                out.u64s(&[state.ino, state.known]);
                out.0.extend(state.openings.to_le_bytes());
                out.0.extend(state.writers.to_le_bytes());
                let flags = [state.poisoned, state.uncommitted.is_some(), state.txn.is_some(), !state.lost.is_empty()];
                out.0.push(flags.iter().enumerate().fold(0, |bits, (n, flag)| bits | u8::from(*flag) << n));
                if let Some((size, kept, times)) = state.uncommitted {
                    out.u64s(&[size, kept]);
                    times.into_iter().for_each(|time| out.time(time));
                }
                out.u64s(state.txn.as_slice());
                if !state.lost.is_empty() {
                    out.u64s(&[state.lost.len() as u64]);
                    state.lost.iter().for_each(|(start, end)| out.u64s(&[*start, *end]));
                }
            }
            Item::Data { ino, offset, bytes } => out.u64s(&[*ino, *offset, bytes.len() as u64]),
            Item::Zeros { ino, offset, len } => out.u64s(&[*ino, *offset, *len]),
            Item::Length { ino, len } => out.u64s(&[*ino, *len]),
            Item::Commit { number, inos } => {
                out.u64s(&[*number, inos.len() as u64]);
                out.u64s(inos);
            }
            Item::Void { number } => out.u64s(&[*number]),
            Item::Doomed(ino) | Item::RolledBack(ino) | Item::Ended(ino) | Item::Deferred(ino) => out.u64s(&[*ino]),
            Item::Begun { number, owner, keeps, left } => {
                out.u64s(&[*number, *owner]);
                out.0.push(u8::from(*keeps) | u8::from(*left) << 1);
            }
            Item::Happened { unique, ino } | Item::Given { unique, ino } => out.u64s(&[*unique, *ino]),
            Item::TakenBack { unique } => out.u64s(&[*unique]),
        }
    }
}

/// Parses the items of a frame, one after the other.
pub(crate) struct Items<'a>(pub &'a [u8]);

impl<'a> Items<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        self.take(len)
    }

    fn time(&mut self) -> Option<Time> {
        Some(Time { seconds: self.u64()?.cast_signed(), nanoseconds: self.u32()? })
    }

    /// The next item; `None` at the end, and if the bytes are invalid.
    pub fn next(&mut self) -> Option<Item<'a>> {
        Some(match self.u8()? {
            b'B' => Item::Begin { commit: self.u64()?, owner: self.u64()?, own: self.u64()? },
            b'N' => Item::Numbers { next: self.u64()?, limit: self.u64()? },
            b'R' => {
                let sort = self.u8()?;
                Item::Row(Row::decode(sort, self.bytes()?)?)
            }
            b'G' => {
                let (sort, ino, name) = (self.u8()?, self.u64()?, self.bytes()?);
                Item::Gone(match sort {
                    INODE => Key::Inode(ino),
                    NAME => Key::Name(ino, name.into()),
                    XATTR => Key::Xattr(ino, name.into()),
                    _ => return None,
                })
            }
            b'S' => {
                let (ino, known, openings, writers) = (self.u64()?, self.u64()?, self.u32()?, self.u32()?);
                let flags = self.u8()?;
                let uncommitted = match flags & 2 {
                    0 => None,
                    _ => Some((self.u64()?, self.u64()?, [self.time()?, self.time()?, self.time()?])),
                };
                let txn = if flags & 4 != 0 { Some(self.u64()?) } else { None };
                let count = if flags & 8 != 0 { self.u64()? } else { 0 };
                let lost = (0..count).map(|_| Some((self.u64()?, self.u64()?))).collect::<Option<_>>()?;
                let poisoned = flags & 1 != 0;
                Item::State(State { ino, known, openings, writers, poisoned, lost, txn, uncommitted })
            }
            b'D' => {
                let (ino, offset, len) = (self.u64()?, self.u64()?, usize::try_from(self.u64()?).ok()?);
                Item::Data { ino, offset, bytes: self.take(len)? }
            }
            b'Z' => Item::Zeros { ino: self.u64()?, offset: self.u64()?, len: self.u64()? },
            b'L' => Item::Length { ino: self.u64()?, len: self.u64()? },
            b'C' => {
                let (number, count) = (self.u64()?, self.u64()?);
                let inos = (0..count).map(|_| self.u64()).collect::<Option<Vec<Ino>>>()?;
                Item::Commit { number, inos }
            }
            b'V' => Item::Void { number: self.u64()? },
            b'X' => Item::Doomed(self.u64()?),
            b'O' => Item::RolledBack(self.u64()?),
            b'T' => {
                let (number, owner, flags) = (self.u64()?, self.u64()?, self.u8()?);
                Item::Begun { number, owner, keeps: flags & 1 != 0, left: flags & 2 != 0 }
            }
            b'E' => Item::Ended(self.u64()?),
            b'W' => Item::Deferred(self.u64()?),
            b'H' => Item::Happened { unique: self.u64()?, ino: self.u64()? },
            b'I' => Item::Given { unique: self.u64()?, ino: self.u64()? },
            b'K' => Item::TakenBack { unique: self.u64()? },
            _ => return None,
        })
    }
}
