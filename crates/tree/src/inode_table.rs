//! The table: rows in slots of a file of the store, changed in place.
//!
//! A slot has 64, 128, 256 … bytes: a head of 8 (exponent, sort of row, 0, 0, length) and the row. Exponents of slots never
//! change, so that an opening finds all slots one after the other. The first 64 bytes are the table's own.

use crate::file_tree::Ino;
use crate::row::{Key, Row};
use std::collections::HashMap;
use std::path::PathBuf;
use untorn::{Error, File, Result};

/// The table's name in the store.
pub(crate) const TABLE: &str = "table";

const MAGIC: &[u8; 16] = b"untorn tree   1\n";
const HEAD: usize = 64;
const SLOT_HEAD: usize = 8;
/// 64 << 12: room for the largest value of an extended attribute.
const EXPONENTS: usize = 13;

/// Which inode numbers were given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    /// Rows of the table have smaller ones.
    pub next: Ino,
    /// Objects have smaller ones.
    pub limit: Ino,
}

#[derive(Clone, Copy)]
struct Slot {
    offset: u64,
    exponent: u8,
}

/// Rows that commits have.
pub(crate) struct Table {
    file: File,
    slots: HashMap<Key, Slot>,
    free: [Vec<u64>; EXPONENTS],
    end: u64,
    numbers: Numbers,
}

impl Table {
    /// A table without rows, in an empty file.
    pub fn format(file: File, numbers: Numbers) -> Result<Table> {
        file.write_all_at(MAGIC, 0)?;
        let mut table = Table { file, slots: HashMap::new(), free: Default::default(), end: HEAD as u64, numbers };
        table.write_numbers(numbers)?;
        Ok(table)
    }

    /// Reads all rows.
    pub fn load(file: File, each: &mut dyn FnMut(Row)) -> Result<Table> {
        let mut bytes = vec![0; file.len()? as usize];
        file.read_exact_at(&mut bytes, 0)?;
        let damaged = |at: usize| Error::Corrupt {
            path: PathBuf::from(TABLE),
            detail: format!("no row of a tree at byte {at}"),
            advice: "Restore the store from a copy.",
        };
        if bytes.len() < HEAD || !bytes.starts_with(MAGIC) {
            return Err(damaged(0));
        }
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let numbers = Numbers { next: number(16), limit: number(24) };
        let mut table = Table { file, slots: HashMap::new(), free: Default::default(), end: 0, numbers };
        let mut at = HEAD;
        while at < bytes.len() {
            let head = bytes.get(at..at + SLOT_HEAD).ok_or_else(|| damaged(at))?;
            let (exponent, sort) = (head[0], head[1]);
            let len = u32::from_le_bytes(head[4..8].try_into().expect("4 bytes")) as usize;
            if usize::from(exponent) >= EXPONENTS || len > size_of_slot(exponent) - SLOT_HEAD {
                return Err(damaged(at));
            }
            if sort == 0 {
                table.free[usize::from(exponent)].push(at as u64);
            } else {
                let row = bytes.get(at + SLOT_HEAD..at + SLOT_HEAD + len).and_then(|row| Row::decode(sort, row));
                let row = row.ok_or_else(|| damaged(at))?;
                if table.slots.insert(row.key(), Slot { offset: at as u64, exponent }).is_some() {
                    return Err(damaged(at));
                }
                each(row);
            }
            at += size_of_slot(exponent);
        }
        if at != bytes.len() {
            return Err(damaged(bytes.len()));
        }
        table.end = at as u64;
        Ok(table)
    }

    /// The file: part of every commit.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The numbers as the last commit has them.
    pub fn numbers(&self) -> Numbers {
        self.numbers
    }

    /// Writes the numbers.
    pub fn write_numbers(&mut self, numbers: Numbers) -> Result<()> {
        let mut bytes = [0; HEAD - 16];
        bytes[..8].copy_from_slice(&numbers.next.to_le_bytes());
        bytes[8..16].copy_from_slice(&numbers.limit.to_le_bytes());
        self.file.write_all_at(&bytes, 16)?;
        self.numbers = numbers;
        Ok(())
    }

    /// Writes a row in the place of the one with this key.
    pub fn put(&mut self, row: &Row) -> Result<()> {
        let (sort, bytes) = row.encode();
        let key = row.key();
        let exponent = exponent_for(bytes.len() + SLOT_HEAD);
        let slot = match self.slots.get(&key) {
            Some(slot) if slot.exponent == exponent => *slot,
            there => {
                if there.is_some() {
                    self.remove(&key)?;
                }
                self.take_slot(exponent)?
            }
        };
        let mut out = Vec::with_capacity(SLOT_HEAD + bytes.len());
        out.extend([exponent, sort, 0, 0]);
        out.extend((bytes.len() as u32).to_le_bytes());
        out.extend(bytes);
        self.file.write_all_at(&out, slot.offset)?;
        self.slots.insert(key, slot);
        Ok(())
    }

    /// Removes a row, if there is one.
    pub fn remove(&mut self, key: &Key) -> Result<()> {
        let Some(slot) = self.slots.remove(key) else { return Ok(()) };
        self.file.write_all_at(&[slot.exponent, 0, 0, 0, 0, 0, 0, 0], slot.offset)?;
        self.free[usize::from(slot.exponent)].push(slot.offset);
        Ok(())
    }

    fn take_slot(&mut self, exponent: u8) -> Result<Slot> {
        if let Some(offset) = self.free[usize::from(exponent)].pop() {
            return Ok(Slot { offset, exponent });
        }
        let offset = self.end;
        self.end += size_of_slot(exponent) as u64;
        self.file.set_len(self.end)?;
        Ok(Slot { offset, exponent })
    }
}

fn size_of_slot(exponent: u8) -> usize {
    64 << exponent
}

fn exponent_for(bytes: usize) -> u8 {
    (bytes.div_ceil(64).next_power_of_two().trailing_zeros()) as u8
}
