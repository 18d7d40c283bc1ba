//! Entries of the index of the log, which are not written yet.

use crate::format::{Key, RECORD_HEAD_BYTES};
use crate::scanning::log_index::ENTRY_HEAD_BYTES;

/// Entries of the records in the buffer, which are not written yet.
#[derive(Default)]
pub(super) struct NewEntries {
    pub(super) bytes: Vec<u8>,
    /// Start of the last entry, whose record is not sealed yet.
    open: usize,
}

impl NewEntries {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Begins an entry; its body is to be appended.
    pub(super) fn begin(&mut self) -> &mut Vec<u8> {
        self.open = self.bytes.len();
        self.bytes.resize(self.open + ENTRY_HEAD_BYTES + RECORD_HEAD_BYTES, 0);
        &mut self.bytes
    }

    /// Replaces the body of the entry that was begun.
    pub(super) fn set_body(&mut self, body: &[u8]) {
        self.bytes.truncate(self.open + ENTRY_HEAD_BYTES + RECORD_HEAD_BYTES);
        self.bytes.extend_from_slice(body);
    }

    /// Ends the entry: its record was sealed, with this head.
    pub(super) fn end(&mut self, head: &[u8], key: Key) {
        let entry = &mut self.bytes[self.open..];
        entry[ENTRY_HEAD_BYTES..ENTRY_HEAD_BYTES + RECORD_HEAD_BYTES].copy_from_slice(&head[..RECORD_HEAD_BYTES]);
        let len = (entry.len() - ENTRY_HEAD_BYTES - RECORD_HEAD_BYTES) as u32;
        entry[8..12].copy_from_slice(&len.to_le_bytes());
        let crc = key.crc64(&[&entry[8..]]);
        entry[..8].copy_from_slice(&crc.to_le_bytes());
    }
}
