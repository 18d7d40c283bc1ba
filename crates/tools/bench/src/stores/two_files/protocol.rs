//! The files of transactions, and the ways to change them.

use anyhow::Result;

/// The files: their number, the size of each, and the most bytes that a transaction changes in each of two.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub files: usize,
    pub file_bytes: u64,
    pub change_bytes_max: usize,
}

/// The papers' files, with a fourth of their number and size.
pub const SHAPE: Shape = Shape { files: 250, file_bytes: 1 << 20, change_bytes_max: 16 << 10 };

/// The size of every log here, Untorn's included, so that it turns over.
pub const LOG_BYTES: u64 = 4 << 20;

/// Bytes that belong into a file.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    pub file: usize,
    pub at: u64,
    pub bytes: &'a [u8],
}

/// A way to change files. Two threads never change one file at a time.
pub trait Protocol: Sync {
    /// Changes the files, and makes that durable.
    fn transact(&self, changes: &[Change<'_>]) -> Result<()>;
    /// Brings everything to its final place.
    fn settle(&self) -> Result<()>;
    /// Reads a file.
    #[cfg(test)]
    fn read(&self, file: usize) -> Result<Vec<u8>>;
}
