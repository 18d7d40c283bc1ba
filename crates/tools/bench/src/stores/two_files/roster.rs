//! The contenders.

use super::managed::{Managed, Order};
use super::plain::NoConsistency;
use super::pool::Pool;
use super::protocol::{LOG_BYTES, Protocol, Shape};
use super::redo_log::RedoLog;
use super::shadow::Shadow;
use anyhow::Result;
use std::path::Path;

/// A contender: its name, its settings, and the protocol.
pub struct Entrant {
    pub name: &'static str,
    pub setting: &'static str,
    pub protocol: Box<dyn Protocol>,
}

pub const OURS: &str = "Untorn";
pub const SYNCHRONOUS: &str = "Untorn, synchronous checkpoints";
pub const STRICT: &str = "Untorn, strict order";
pub const NO_CONSISTENCY: &str = "no consistency";
pub const FINE_LOG: &str = "fine-grained log";
pub const FINE_LOG_LAZY: &str = "fine-grained log, lazy";
pub const PAGE_LOG: &str = "page log, locks";
pub const SHADOW: &str = "shadow copies";
pub const POOL: &str = "libpmemobj";

type Open = fn(&Path, Shape) -> Result<Box<dyn Protocol>>;

const ROSTER: [(&str, &str, Open); 9] = [
    (OURS, "class power, checkpoints in the background, files side by side", |dir, shape| {
        Ok(Box::new(Managed::open(dir, shape, LOG_BYTES, Order::SideBySide)?))
    }),
    (SYNCHRONOUS, "a checkpoint after each transaction", |dir, shape| {
        Ok(Box::new(Managed::open(dir, shape, LOG_BYTES, Order::Synchronous)?))
    }),
    (STRICT, "checkpoints in the background, by one thread, one file after the other", |dir, shape| {
        Ok(Box::new(Managed::open(dir, shape, LOG_BYTES, Order::OneByOne)?))
    }),
    (NO_CONSISTENCY, "pwrite of both files, then fdatasync of both", |dir, shape| {
        Ok(Box::new(NoConsistency::open(dir, shape)?))
    }),
    (
        FINE_LOG,
        "lines of 64 B to a preallocated redo log, fdatasync (shared by threads), then pwrite and fdatasync of both files",
        |dir, shape| Ok(Box::new(RedoLog::open(dir, shape, 64, true, false)?)),
    ),
    (FINE_LOG_LAZY, "the same log, but files are flushed only when the log is full", |dir, shape| {
        Ok(Box::new(RedoLog::open(dir, shape, 64, false, false)?))
    }),
    (
        PAGE_LOG,
        "pages of 4 KiB to a preallocated redo log, fdatasync, then pwrite and fdatasync of both files, under flock",
        |dir, shape| Ok(Box::new(RedoLog::open(dir, shape, 4096, true, true)?)),
    ),
    (
        SHADOW,
        "a copy of each file (reflink where the file system has it), changed, flushed, and renamed under a switch file",
        |dir, shape| Ok(Box::new(Shadow::open(dir, shape)?)),
    ),
    (POOL, "all files as one object in a pool, pmemobj_tx_add_range_direct before each change", |dir, shape| {
        Ok(Box::new(Pool::open(dir, shape)?))
    }),
];

/// Opens the contenders of these names, each with files of its own. Returns also why some are missing.
pub fn open(dir: &Path, shape: Shape, names: &[&str]) -> Result<(Vec<Entrant>, Vec<String>)> {
    let (mut entrants, mut missing) = (Vec::new(), Vec::new());
    for (name, setting, open) in ROSTER.into_iter().filter(|(name, ..)| names.contains(name)) {
        let dir = dir.join(name.replace([' ', ','], "-"));
        std::fs::create_dir_all(&dir)?;
        match open(&dir, shape) {
            Ok(protocol) => entrants.push(Entrant { name, setting, protocol }),
            Err(e) if name == POOL => missing.push(format!("Left out: {name}; {e:#}.")),
            Err(e) => return Err(e.context(name)),
        }
    }
    Ok((entrants, missing))
}

/// The names of all contenders.
#[cfg(test)]
pub fn names() -> Vec<&'static str> {
    ROSTER.iter().map(|(name, ..)| *name).collect()
}
