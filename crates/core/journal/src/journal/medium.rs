//! The medium of a segment: a disk, which takes blocks by calls, or memory, which takes lines by stores.

use crate::format::{BLOCK_BYTES, RECORD_MAGIC};
use untorn_os::{File, LINE_BYTES, Lines};

/// The medium of a segment.
pub(super) enum Medium {
    /// Nobody has asked the file system yet.
    Unknown,
    /// A group is written by a call, and a flush makes it durable.
    Disk,
    /// A group is stored line by line, and a fence makes it durable, without a call.
    Memory(Box<dyn Lines>),
}

impl Medium {
    /// The medium of a segment that nobody has written to yet.
    pub(super) fn allowed(memory: bool) -> Medium {
        if memory { Medium::Unknown } else { Medium::Disk }
    }

    /// The lines of a segment of this many bytes, if it is in memory.
    pub(super) fn lines(&mut self, file: &dyn File, bytes: u64) -> Option<&dyn Lines> {
        if matches!(self, Medium::Unknown) {
            *self = file.lines(bytes).map_or(Medium::Disk, Medium::Memory);
        }
        match self {
            Medium::Memory(lines) => Some(&**lines),
            _ => None,
        }
    }
}

/// The bytes of a padded group at this offset that memory needs, in whole lines. The rest of its last block stays as it
/// is. Zeros end the records, so that an older record behind them is not taken for their successor; of the first block,
/// whose checksum is in headers, every byte counts.
pub(super) fn stored_bytes(padded: usize, records_end: usize, at: u64) -> usize {
    let least = if at == 0 { BLOCK_BYTES } else { 0 };
    (records_end + 2 * RECORD_MAGIC.len()).next_multiple_of(LINE_BYTES).max(least).min(padded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::RECORD_ALIGN_BYTES;

    /// The place of a next record has zeros, or begins a block.
    #[test]
    fn zeros_end_the_records() {
        for end in 1..3 * BLOCK_BYTES {
            let padded = end.next_multiple_of(BLOCK_BYTES);
            let stored = stored_bytes(padded, end, BLOCK_BYTES as u64);
            let next = end.next_multiple_of(RECORD_ALIGN_BYTES);
            assert!(stored.is_multiple_of(LINE_BYTES) && stored <= padded, "{stored} bytes for {end}");
            assert!(next == padded || next + RECORD_MAGIC.len() <= stored, "{stored} bytes for {end}");
            assert!(stored < next + 2 * LINE_BYTES, "{stored} bytes for {end}");
            assert_eq!(stored_bytes(padded, end, 0), stored.max(BLOCK_BYTES));
        }
    }
}
