//! The body of a record for the index of the log: in the place of contents, it has their place in the segment and
//! checksums of their pieces.

use super::Sink;
use crate::commits::log_reader::PIECE_BYTES_MAX;
use crate::format::crc64;
use untorn_os::AlignedBuf;

/// Appends a body to a buffer, and the same body without contents to an index.
pub struct IndexedSink<'a> {
    /// The buffer, which begins at a block of a segment.
    pub buf: &'a mut AlignedBuf,
    /// Offset of the buffer in the segment.
    pub start: u64,
    /// The body without contents.
    pub index: &'a mut Vec<u8>,
}

impl Sink for IndexedSink<'_> {
    fn append(&mut self, bytes: &[u8]) {
        self.buf.extend(bytes);
        self.index.extend_from_slice(bytes);
    }

    fn append_contents(&mut self, bytes: &[u8]) {
        self.index.extend((self.start + self.buf.len() as u64).to_le_bytes());
        bytes.chunks(PIECE_BYTES_MAX as usize).for_each(|piece| self.index.extend(crc64(piece).to_le_bytes()));
        self.buf.extend(bytes);
    }
}
