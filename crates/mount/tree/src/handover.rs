//! The handover log, from which another process continues a tree: collects the changes of an operation, and writes
//! them.

pub(crate) mod log;

use crate::handover::log::HandoverLog;
use crate::interface::file_tree::Ino;
use crate::table::row::Key;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

/// The handover log of a tree.
pub(crate) struct Continuation {
    pub kept: Arc<dyn HandoverLog>,
    /// Random number that identifies the log through all processes that continue it.
    pub own: u64,
    /// Items of the present operation.
    pub items: Vec<u8>,
    pub keys: Vec<Key>,
    pub inos: Vec<Ino>,
    pub len: u64,
    pub first_len: u64,
    /// Completed steps of requests that may not be answered yet, by request number.
    pub happened: HashMap<u64, Vec<Ino>>,
    /// Completed steps of requests that the last process left unanswered.
    pub happened_before: HashMap<u64, Vec<Ino>>,
    /// Inodes that the answers to such requests give the kernel.
    pub given: HashMap<u64, Vec<Ino>>,
    /// Inodes that the answers of requests that the last process left unanswered should have given.
    pub given_before: HashMap<u64, Vec<Ino>>,
}

impl Continuation {
    pub fn new(kept: Arc<dyn HandoverLog>, own: u64) -> Continuation {
        let (items, keys, inos) = Default::default();
        let (happened, happened_before, given, given_before) = Default::default();
        let (len, first_len) = (0, 0);
        Continuation { kept, own, items, keys, inos, len, first_len, happened, happened_before, given, given_before }
    }

    pub fn own(&self) -> u64 {
        self.own
    }

    /// Appends the items of the operation to the log, followed by more bytes.
    pub fn append(&mut self, more: &[u8]) -> io::Result<()> {
        let len = (self.items.len() + more.len()) as u64;
        self.kept.append(&[&len.to_le_bytes(), &self.items, more])?;
        self.items.clear();
        self.len += 8 + len;
        Ok(())
    }
}
