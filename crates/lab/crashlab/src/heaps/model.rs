//! The model of a heap in ordinary memory, and the changes that programs make.
//!
//! Changes are drawn from the model alone, never from addresses, so that a seed makes the same program on every heap.

use fastrand::Rng;
use std::collections::BTreeMap;

/// Blocks larger than this have contents only at both ends.
const WHOLE_MAX: usize = 64 << 10;
const END_BYTES: usize = 5000;
/// The bytes that a change within a block stores.
const POKE_BYTES: usize = 40;
/// The most bytes of all blocks together, so that programs stay fast.
const BYTES_MAX: usize = 12 << 20;
const BLOCKS_MAX: usize = 400;
/// The number of blocks that are made or freed at once, so that whole chunks fill and empty.
const MANY: u64 = 60;

/// A block, and its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub bytes: usize,
    pub align: usize,
    stamp: u64,
    pokes: Vec<(usize, u64)>,
}

impl Block {
    fn new(bytes: usize, align: usize, stamp: u64) -> Block {
        Block { bytes, align, stamp, pokes: Vec::new() }
    }

    /// The contents, as pieces with their offsets.
    pub fn contents(&self) -> Vec<(usize, Vec<u8>)> {
        let ends = match self.bytes {
            0..=WHOLE_MAX => vec![(0, bytes(self.stamp, self.bytes))],
            n => vec![(0, bytes(self.stamp, END_BYTES)), (n - END_BYTES, bytes(!self.stamp, END_BYTES))],
        };
        let mut contents = ends;
        for (at, stamp) in &self.pokes {
            let poke = self.poke(*at, *stamp);
            contents[0].1[*at..at + poke.len()].copy_from_slice(&poke);
        }
        contents
    }

    /// The bytes at its start that may change.
    fn pokable(&self) -> usize {
        if self.bytes <= WHOLE_MAX { self.bytes } else { END_BYTES }
    }

    /// The bytes that a change stores at this offset.
    pub fn poke(&self, at: usize, stamp: u64) -> Vec<u8> {
        bytes(stamp, POKE_BYTES.min(self.pokable() - at))
    }
}

/// Bytes that depend only on a number.
pub(super) fn bytes(stamp: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::with_seed(stamp).fill(&mut bytes);
    bytes
}

/// One change of a program's structures.
#[derive(Clone, Debug)]
pub enum Change {
    /// Allocates a block with this size and alignment.
    Allocate {
        /// Its name.
        number: u64,
        /// Its size.
        bytes: usize,
        /// Its alignment.
        align: usize,
        /// The seed of its contents.
        stamp: u64,
    },
    /// Allocates many blocks of one size.
    Many {
        /// The name of the first.
        first: u64,
        /// The size of each.
        bytes: usize,
        /// The seed of the contents of the first.
        stamp: u64,
    },
    /// Frees a block.
    Free(u64),
    /// Frees all blocks of a size.
    FreeAll(usize),
    /// Replaces a block by one of another size, which keeps as much as fits.
    Resize(u64, usize),
    /// Changes some bytes of a block.
    Poke(u64, usize, u64),
    /// Sets a vector in the table, by its key.
    Insert(u64, u64, usize),
    /// Lengthens a vector in the table.
    Extend(u64, u64, usize),
    /// Removes a vector from the table.
    Remove(u64),
    /// Adds a link to the chain.
    Push(u64),
    /// Removes a link from the chain.
    Pop,
    /// Sets a root to a block, or removes the root.
    Root(u8, Option<u64>),
}

/// The contents of a heap, in ordinary memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeapModel {
    /// The number of changes so far.
    pub serial: u64,
    pub(super) blocks: BTreeMap<u64, Block>,
    pub(super) table: BTreeMap<u64, Vec<u8>>,
    pub(super) chain: Vec<u64>,
    pub(super) roots: BTreeMap<u8, u64>,
}

fn size(rng: &mut Rng) -> usize {
    match rng.u32(..100) {
        0..60 => rng.usize(1..600),
        60..85 => rng.usize(600..9000),
        85..93 => rng.usize(9000..33_000),
        93..99 => rng.usize(33_000..400_000),
        // A segment or two.
        _ => rng.usize(3_900_000..8_000_000),
    }
}

fn one<T: Clone>(of: impl ExactSizeIterator<Item = T>, rng: &mut Rng) -> Option<T> {
    let mut of = of;
    if of.len() == 0 { None } else { of.nth(rng.usize(..of.len())) }
}

impl HeapModel {
    fn bytes(&self) -> usize {
        self.blocks.values().map(|block| block.bytes).sum()
    }

    /// Draws the next change of a program.
    pub fn draw(&self, rng: &mut Rng) -> Change {
        let (number, stamp) = (self.serial << 8, rng.u64(..));
        let full = self.blocks.len() > BLOCKS_MAX || self.bytes() > BYTES_MAX;
        let block = one(self.blocks.keys(), rng).copied();
        let key = one(self.table.keys(), rng).copied();
        match (rng.u32(..100), block, key) {
            (0..30, ..) if !full => {
                let bytes = size(rng);
                let align = 1 << rng.u32(..if bytes > 4096 { 13 } else { 7 });
                Change::Allocate { number, bytes, align, stamp }
            }
            (30..34, ..) if !full => Change::Many { first: number, bytes: 1 + rng.usize(..9) * 500, stamp },
            (34..38, Some(block), _) => Change::FreeAll(self.blocks[&block].bytes),
            (0..50, Some(block), _) => Change::Free(block),
            (50..56, Some(block), _) if !full => Change::Resize(block, size(rng)),
            (56..64, Some(block), _) => Change::Poke(block, rng.usize(..self.blocks[&block].pokable()), stamp),
            (64..74, ..) => Change::Insert(stamp % 60, stamp, size(rng) % 20_000),
            (74..80, _, Some(key)) => Change::Extend(key, stamp, rng.usize(..3000)),
            (80..86, _, Some(key)) => Change::Remove(key),
            (86..94, ..) if self.chain.len() < 100 => Change::Push(stamp),
            (86..97, ..) if !self.chain.is_empty() => Change::Pop,
            (name, Some(block), _) => Change::Root(name as u8 % 4, rng.bool().then_some(block)),
            _ => Change::Push(stamp),
        }
    }

    /// The names of the blocks that a change frees.
    pub(super) fn ended_by(&self, change: &Change) -> Vec<u64> {
        match change {
            Change::Free(number) => vec![*number],
            Change::FreeAll(bytes) => {
                self.blocks.iter().filter(|(_, block)| block.bytes == *bytes).map(|(number, _)| *number).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Blocks that a change makes, by name.
    pub(super) fn made_by(change: &Change) -> Vec<(u64, Block)> {
        match *change {
            Change::Allocate { number, bytes, align, stamp } => vec![(number, Block::new(bytes, align, stamp))],
            Change::Many { first, bytes, stamp } => {
                (0..MANY).map(|n| (first + n, Block::new(bytes, 8, stamp.wrapping_add(n)))).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Applies the change.
    pub fn apply(&mut self, change: &Change) {
        self.serial += 1;
        self.blocks.extend(HeapModel::made_by(change));
        for number in self.ended_by(change) {
            self.blocks.remove(&number);
            self.roots.retain(|_, to| *to != number);
        }
        match *change {
            Change::Resize(number, bytes) => {
                let block = self.blocks.get_mut(&number).expect("a program changes what there is");
                // The kept part of the old contents is dropped, too.
                *block = Block::new(bytes, block.align, self.serial);
                self.roots.retain(|_, to| *to != number);
            }
            Change::Poke(number, at, stamp) => {
                let block = self.blocks.get_mut(&number).expect("a program changes what there is");
                block.pokes.push((at, stamp));
            }
            Change::Insert(key, stamp, len) => drop(self.table.insert(key, bytes(stamp, len))),
            Change::Extend(key, stamp, len) => {
                self.table.get_mut(&key).expect("a program changes what there is").extend(bytes(stamp, len));
            }
            Change::Remove(key) => drop(self.table.remove(&key)),
            Change::Push(value) => self.chain.push(value),
            Change::Pop => drop(self.chain.pop()),
            Change::Root(name, Some(number)) => drop(self.roots.insert(name, number)),
            Change::Root(name, None) => drop(self.roots.remove(&name)),
            _ => {}
        }
    }
}
