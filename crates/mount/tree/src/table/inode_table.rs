//! The table: rows in slots of a file of the store, changed in place.
//!
//! A slot has 64, 128, 256 … bytes: a head of 8 (exponent, sort of row, 0, 0, length) and the row. Exponents of slots
//! never change, so that an opening finds all slots one after the other. The first 64 bytes are the table's head.

use crate::interface::file_tree::Ino;
use crate::small_files::pack::PACK;
use crate::table::row::{InodeRow, Key, Row};
use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::path::PathBuf;
use untorn::reader::Snapshot;
use untorn::{Error, File, Result};

/// The table's name in the store.
pub const TABLE: &str = "table";

const MAGIC: &[u8; 16] = b"untorn tree   2\n";
/// Beginning of the tables of all versions; the number follows.
const ANY_VERSION: &[u8] = b"untorn tree";
const VERSION: u32 = 2;
const HEAD: usize = 64;
const SLOT_HEAD: usize = 8;
/// 64 << 12: room for the largest value of an extended attribute.
const EXPONENTS: usize = 13;

/// Numbers in the table's head: inode numbers in use, and the last commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    /// All inode numbers in the table's rows are smaller.
    pub next: Ino,
    /// All objects have smaller numbers.
    pub limit: Ino,
    /// The last commit.
    pub commit: u64,
    /// Random number of the handover log of the process that made that commit; 0 without such a log.
    pub owner: u64,
}

#[derive(Clone, Copy)]
struct Slot {
    offset: u64,
    exponent: u8,
}

/// The committed rows.
pub(crate) struct Table {
    file: File,
    slots: HashMap<Key, Slot>,
    free: [Vec<u64>; EXPONENTS],
    end: u64,
    numbers: Numbers,
    /// Changes of the commit under construction: bytes by their positions in the file.
    staged: BTreeMap<u64, Vec<u8>>,
    /// Steps that undo the commit under construction.
    undo: Vec<Step>,
}

/// A step of the commit under construction, for the undo.
enum Step {
    /// A row had this slot.
    Row(Key, Option<Slot>),
    /// A free slot was taken.
    Given(Slot),
    /// A slot was added.
    Added(Slot),
    /// The slot of a row was freed.
    TakenBack(Slot),
    Numbers(Numbers),
}

impl Table {
    fn new(file: File, numbers: Numbers) -> Table {
        let (slots, free, staged, undo) = Default::default();
        Table { file, slots, free, end: HEAD as u64, numbers, staged, undo }
    }

    /// Makes a table without rows, in an empty file.
    pub fn format(file: File, numbers: Numbers) -> Table {
        let mut table = Table::new(file, numbers);
        table.staged.insert(0, MAGIC.to_vec());
        table.write_numbers(numbers);
        table
    }

    /// Reads all rows.
    pub fn load(file: File, each: &mut dyn FnMut(Row)) -> Result<Table> {
        let mut bytes = vec![0; file.len()? as usize];
        file.read_exact_at(&mut bytes, 0)?;
        let (mut slots, mut twice) = (HashMap::new(), None);
        let mut free: [Vec<u64>; EXPONENTS] = Default::default();
        let numbers = read_slots(&bytes, &mut |offset, exponent, row| match row {
            None => free[usize::from(exponent)].push(offset),
            Some(row) => {
                if slots.insert(row.key(), Slot { offset, exponent }).is_some() {
                    twice = Some(offset);
                }
                each(row);
            }
        })?;
        match twice {
            Some(at) => Err(damaged_at(at as usize)),
            None => Ok(Table { slots, free, end: bytes.len() as u64, ..Table::new(file, numbers) }),
        }
    }

    /// The file, which is part of every commit.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The numbers as of the last commit, or as staged for the next.
    pub fn numbers(&self) -> Numbers {
        self.numbers
    }

    /// Sets the numbers.
    pub fn write_numbers(&mut self, numbers: Numbers) {
        let mut bytes = vec![0; HEAD - 16];
        bytes[..8].copy_from_slice(&numbers.next.to_le_bytes());
        bytes[8..16].copy_from_slice(&numbers.limit.to_le_bytes());
        bytes[16..24].copy_from_slice(&numbers.commit.to_le_bytes());
        bytes[24..32].copy_from_slice(&numbers.owner.to_le_bytes());
        debug_assert!(
            numbers.next <= numbers.limit && numbers.limit >= self.numbers.limit,
            "numbers {numbers:?} follow {:?}",
            self.numbers
        );
        self.staged.insert(16, bytes);
        self.undo.push(Step::Numbers(std::mem::replace(&mut self.numbers, numbers)));
    }

    /// Sets a row, in place of the one with the same key.
    pub fn put(&mut self, row: &Row) {
        let (sort, bytes) = row.encode();
        let key = row.key();
        let exponent = exponent_for(bytes.len() + SLOT_HEAD);
        let slot = match self.slots.get(&key) {
            Some(slot) if slot.exponent == exponent => *slot,
            there => {
                if there.is_some() {
                    self.remove(&key);
                }
                self.take_slot(exponent)
            }
        };
        let mut out = Vec::with_capacity(SLOT_HEAD + bytes.len());
        out.extend([exponent, sort, 0, 0]);
        out.extend((bytes.len() as u32).to_le_bytes());
        out.extend(bytes);
        self.stage_slot(slot, out);
        let before = self.slots.insert(key.clone(), slot);
        debug_assert!(
            before.is_none_or(|before| before.offset == slot.offset),
            "{key:?} has a slot, and gets another at {}",
            slot.offset
        );
        if before.is_none_or(|before| before.offset != slot.offset) {
            self.undo.push(Step::Row(key, before));
        }
    }

    /// Removes a row, if there is one.
    pub fn remove(&mut self, key: &Key) {
        let Some(slot) = self.slots.remove(key) else { return };
        debug_assert!(
            slot.offset + size_of_slot(slot.exponent) as u64 <= self.end,
            "{key:?} is at {}, and the table ends at {}",
            slot.offset,
            self.end
        );
        self.stage_slot(slot, vec![slot.exponent, 0, 0, 0, 0, 0, 0, 0]);
        self.free[usize::from(slot.exponent)].push(slot.offset);
        self.undo.extend([Step::Row(key.clone(), Some(slot)), Step::TakenBack(slot)]);
    }

    /// Sets the flag in an inode's row, if there is one, that the inode has an object. Nothing else in the row changes.
    pub fn set_object(&mut self, ino: Ino) -> Result<bool> {
        let Some(slot) = self.slots.get(&Key::Inode(ino)) else { return Ok(false) };
        let at = slot.offset + (SLOT_HEAD + InodeRow::FLAGS_AT) as u64;
        let mut flags = [0];
        self.file.read_exact_at(&mut flags, at)?;
        self.staged.insert(at, vec![flags[0] | InodeRow::HAS_OBJECT]);
        Ok(true)
    }

    /// Whether there are changes that no commit has.
    pub fn is_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    /// Writes all changes to the file, before a commit of it is submitted.
    pub fn stage(&self) -> Result<()> {
        if self.file.len()? < self.end {
            self.file.set_len(self.end)?;
        }
        let ends = self.staged.iter().map(|(at, bytes)| at + bytes.len() as u64);
        debug_assert!(
            ends.clone().zip(self.staged.keys().skip(1)).all(|(end, next)| end <= *next),
            "staged bytes overlap: {:?}",
            self.staged.keys()
        );
        debug_assert!(ends.max().is_none_or(|end| end <= self.end), "bytes behind the table's end, {}", self.end);
        self.staged.iter().try_for_each(|(at, bytes)| self.file.write_all_at(bytes, *at))
    }

    /// Notes that the commit was submitted.
    pub fn submitted(&mut self) {
        self.staged.clear();
        self.undo.clear();
    }

    /// Undoes the commit under construction, which the store refused.
    pub fn undo(&mut self) -> Result<()> {
        while let Some(step) = self.undo.pop() {
            match step {
                Step::Row(key, None) => {
                    let slot = self.slots.remove(&key);
                    debug_assert!(slot.is_some(), "{key:?} was added, and is not there");
                }
                Step::Row(key, Some(slot)) => drop(self.slots.insert(key, slot)),
                Step::Given(slot) => self.free[usize::from(slot.exponent)].push(slot.offset),
                Step::Added(slot) => {
                    let end = slot.offset + size_of_slot(slot.exponent) as u64;
                    debug_assert_eq!(self.end, end, "slots were not added in order");
                    self.end = slot.offset;
                }
                Step::TakenBack(slot) => {
                    let offset = self.free[usize::from(slot.exponent)].pop();
                    debug_assert_eq!(offset, Some(slot.offset), "another slot was freed last");
                }
                Step::Numbers(numbers) => self.numbers = numbers,
            }
        }
        self.staged.clear();
        self.file.rollback()
    }

    fn stage_slot(&mut self, slot: Slot, bytes: Vec<u8>) {
        debug_assert!(
            bytes.len() <= size_of_slot(slot.exponent) && slot.offset >= HEAD as u64,
            "{} bytes in a slot of {} at {}",
            bytes.len(),
            size_of_slot(slot.exponent),
            slot.offset
        );
        let within = slot.offset..slot.offset + size_of_slot(slot.exponent) as u64;
        let older: Vec<u64> = self.staged.range(within).map(|(at, _)| *at).collect();
        older.iter().for_each(|at| drop(self.staged.remove(at)));
        self.staged.insert(slot.offset, bytes);
    }

    fn take_slot(&mut self, exponent: u8) -> Slot {
        if let Some(offset) = self.free[usize::from(exponent)].pop() {
            let slot = Slot { offset, exponent };
            debug_assert!(
                offset + size_of_slot(exponent) as u64 <= self.end,
                "a free slot at {offset}, behind the table's end, {}",
                self.end
            );
            self.undo.push(Step::Given(slot));
            return slot;
        }
        let slot = Slot { offset: self.end, exponent };
        self.end += size_of_slot(exponent) as u64;
        self.undo.push(Step::Added(slot));
        slot
    }
}

/// The error for a table with damage.
pub(crate) fn damaged(detail: String) -> Error {
    Error::Corrupt { path: PathBuf::from(TABLE), detail, advice: "Restore the store from a copy." }
}

/// The error for a position in the table that has no valid row.
pub(crate) fn damaged_at(at: usize) -> Error {
    damaged(format!("no row of a tree at byte {at}"))
}

/// The error for a tree without its table.
pub fn missing_table() -> Error {
    damaged("the file is missing".to_owned())
}

/// All bytes of the table in a snapshot.
pub(crate) fn table_bytes(snapshot: &Snapshot) -> Result<Vec<u8>> {
    let file = match snapshot.open(TABLE) {
        Err(e) if is_missing(&e) && snapshot.metadata(PACK).is_ok() => return Err(missing_table()),
        opened => opened?,
    };
    let (len, mut bytes, mut done) = (file.len()?, Vec::new(), 0);
    bytes.try_reserve_exact(usize::try_from(len).unwrap_or(usize::MAX)).map_err(|_| Error::NoMemory {
        path: PathBuf::from(TABLE),
        detail: format!("it has {len} bytes, which memory cannot hold"),
    })?;
    bytes.resize(len as usize, 0);
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

/// Whether an error means that a file of the store does not exist.
pub(crate) fn is_missing(e: &Error) -> bool {
    matches!(e, Error::Io { source, .. } if source.kind() == ErrorKind::NotFound)
}

/// The version in a table's first bytes.
fn version(bytes: &[u8]) -> Option<u32> {
    let number = bytes.get(..MAGIC.len())?.strip_prefix(ANY_VERSION)?.strip_suffix(b"\n")?;
    std::str::from_utf8(number).ok()?.trim_start().parse().ok()
}

/// Calls `each` for all slots of a table, with position, exponent and row; the row is `None` if the slot is free.
pub(crate) fn read_slots(bytes: &[u8], each: &mut dyn FnMut(u64, u8, Option<Row>)) -> Result<Numbers> {
    if let Some(found) = version(bytes).filter(|found| *found > VERSION) {
        return Err(Error::NewerVersion { path: PathBuf::from(TABLE), found, supported: VERSION });
    }
    if bytes.len() < HEAD || !bytes.starts_with(MAGIC) {
        return Err(damaged_at(0));
    }
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let numbers = Numbers { next: number(16), limit: number(24), commit: number(32), owner: number(40) };
    let mut at = HEAD;
    while at < bytes.len() {
        let head = bytes.get(at..at + SLOT_HEAD).ok_or_else(|| damaged_at(at))?;
        let (exponent, sort) = (head[0], head[1]);
        let len = u32::from_le_bytes(head[4..8].try_into().expect("4 bytes")) as usize;
        if usize::from(exponent) >= EXPONENTS || len > size_of_slot(exponent) - SLOT_HEAD {
            return Err(damaged_at(at));
        }
        let row = match sort {
            0 => None,
            _ => {
                let row = bytes.get(at + SLOT_HEAD..at + SLOT_HEAD + len).and_then(|row| Row::decode(sort, row));
                Some(row.ok_or_else(|| damaged_at(at))?)
            }
        };
        each(at as u64, exponent, row);
        at += size_of_slot(exponent);
    }
    if at == bytes.len() { Ok(numbers) } else { Err(damaged_at(bytes.len())) }
}

fn size_of_slot(exponent: u8) -> usize {
    64 << exponent
}

fn exponent_for(bytes: usize) -> u8 {
    let exponent = bytes.div_ceil(64).next_power_of_two().trailing_zeros();
    debug_assert!((exponent as usize) < EXPONENTS, "a row of {bytes} bytes");
    exponent as u8
}
