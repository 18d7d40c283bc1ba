//! Stores to byte-addressable memory: until a fence, any of their lines reaches the memory, and one of them is torn.

use super::inodes::{Image, Inode, PAGE_BYTES, Slot, mix};
use std::sync::Arc;
use std::thread::ThreadId;
use untorn_os::LINE_BYTES;

/// The way in which one write lands on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Land {
    /// No part of it.
    Nothing,
    /// All of it.
    All,
    /// The first half of its sectors.
    First,
    /// The second half of its sectors.
    Last,
    /// Some of its sectors.
    Some,
    /// Some of its sectors; others hold bytes that were never written there.
    Garbage,
}

/// Bytes that memory takes together.
const WORD_BYTES: u64 = 8;

/// Bytes that a program stored, or that a call wrote, within a file on byte-addressable memory.
#[derive(Clone)]
pub(crate) struct Stored {
    pub slot: Slot,
    pub at: u64,
    pub bytes: Arc<[u8]>,
    /// The thread that stored them, whose fence makes them durable; `None`: a call wrote them.
    pub by: Option<ThreadId>,
}

impl Stored {
    pub fn end(&self) -> u64 {
        self.at + self.bytes.len() as u64
    }

    fn first_line(&self) -> u64 {
        self.at / LINE_BYTES as u64
    }

    fn lines(&self) -> u64 {
        self.end().div_ceil(LINE_BYTES as u64) - self.first_line()
    }

    /// The ways in which they can land, from nothing to all.
    pub fn landings(&self) -> Vec<Land> {
        match self.lines() {
            _ if self.bytes.is_empty() => vec![Land::Nothing],
            1 => vec![Land::Nothing, Land::Some, Land::All],
            _ => vec![Land::Nothing, Land::First, Land::Last, Land::Some, Land::All],
        }
    }

    pub fn land_whole(&self, image: &mut Image) {
        self.land(image, Land::All, 0);
    }

    /// Lands some of the lines. Of the line beside them, or of any, some of the words land.
    pub fn land(&self, image: &mut Image, land: Land, seed: u64) {
        let (half, chance) = (self.lines() / 2, |n: u64| mix(seed ^ mix(n)) & 1 == 1);
        let torn = match land {
            Land::First => Some(half),
            Land::Last => Some(half.saturating_sub(1)),
            // Of several lines, sometimes none is torn.
            _ if self.lines() > 1 && mix(!seed) & 1 == 1 => None,
            _ => Some(mix(seed) % self.lines().max(1)),
        };
        let Some(inode) = image.get_mut(self.slot) else { return };
        self.apply(inode, |word| {
            let line = word / (LINE_BYTES as u64 / WORD_BYTES) - self.first_line();
            match land {
                Land::All => true,
                Land::Nothing => false,
                _ if Some(line) == torn => chance(word),
                Land::First => line < half,
                Land::Last => line >= half,
                Land::Some | Land::Garbage => chance(u64::MAX - line),
            }
        });
    }

    /// Applies the words, counted from the beginning of the file, that `keep` names.
    pub fn apply(&self, inode: &mut Inode, keep: impl Fn(u64) -> bool) {
        let mut from = self.at;
        while from < self.end() {
            let to = ((from / WORD_BYTES + 1) * WORD_BYTES).min(self.end());
            if keep(from / WORD_BYTES) {
                let (page, within) = ((from / PAGE_BYTES as u64) as u32, (from % PAGE_BYTES as u64) as usize);
                let bytes = &self.bytes[(from - self.at) as usize..(to - self.at) as usize];
                inode.page_bytes_mut(page)[within..within + bytes.len()].copy_from_slice(bytes);
            }
            from = to;
        }
    }
}
