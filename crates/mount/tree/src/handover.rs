//! The log of a tree from which another process goes on: what is gathered for it, and how it is written.

pub(crate) mod kept;

use crate::handover::kept::Kept;
use crate::interface::file_tree::Ino;
use crate::table::row::Key;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

/// The log of a tree.
pub(crate) struct Continuation {
    pub kept: Arc<dyn Kept>,
    /// Whose log it is.
    pub own: u64,
    /// Items of the operation under way.
    pub items: Vec<u8>,
    pub keys: Vec<Key>,
    pub inos: Vec<Ino>,
    pub len: u64,
    pub first_len: u64,
    /// What happened of questions that may not be answered yet.
    pub happened: HashMap<u64, Vec<Ino>>,
    /// What happened of those that the last process left unanswered.
    pub happened_before: HashMap<u64, Vec<Ino>>,
    /// Inodes that the answers to such questions give the kernel.
    pub given: HashMap<u64, Vec<Ino>>,
    /// Those that the last process left unanswered were to give.
    pub given_before: HashMap<u64, Vec<Ino>>,
}

impl Continuation {
    pub fn new(kept: Arc<dyn Kept>, own: u64) -> Continuation {
        let (items, keys, inos) = Default::default();
        let (happened, happened_before, given, given_before) = Default::default();
        let (len, first_len) = (0, 0);
        Continuation { kept, own, items, keys, inos, len, first_len, happened, happened_before, given, given_before }
    }

    pub fn own(&self) -> u64 {
        self.own
    }

    /// Adds the items of the operation to the log, with more bytes.
    pub fn append(&mut self, more: &[u8]) -> io::Result<()> {
        let len = (self.items.len() + more.len()) as u64;
        self.kept.append(&[&len.to_le_bytes(), &self.items, more])?;
        self.items.clear();
        self.len += 8 + len;
        Ok(())
    }
}
