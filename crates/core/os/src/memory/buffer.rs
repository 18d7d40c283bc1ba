//! A buffer that direct writes accept.

use std::collections::TryReserveError;
use std::ops::{Deref, DerefMut};

/// The unit of direct input and output, and of the journal.
pub const BLOCK_BYTES: usize = 4096;

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Block([u8; BLOCK_BYTES]);

/// A growing byte buffer, aligned to [`BLOCK_BYTES`]. Used memory is kept with its contents, so that refilling the
/// buffer writes every byte only once.
#[derive(Default)]
pub struct AlignedBuf {
    blocks: Vec<Block>,
    len: usize,
}

/// Memory that an emptied buffer keeps, in blocks. This is enough for the largest inline commit with a journal of the
/// usual size; larger memory is given back.
const KEPT_BLOCKS: usize = (10 << 20) / BLOCK_BYTES;

impl AlignedBuf {
    /// A buffer of `len` zeros.
    pub fn zeroed(len: usize) -> AlignedBuf {
        let mut buf = AlignedBuf::default();
        buf.resize(len);
        buf
    }

    /// A buffer of `len` zeros, or a smaller one of at least a block if there is too little memory. For callers that
    /// work piece by piece.
    pub fn zeroed_up_to(len: usize) -> AlignedBuf {
        let mut buf = AlignedBuf::default();
        let len = if buf.try_reserve(len).is_ok() { len } else { len.min(BLOCK_BYTES) };
        buf.resize(len);
        buf
    }

    /// Empties the buffer.
    pub fn clear(&mut self) {
        self.len = 0;
        if self.blocks.len() > KEPT_BLOCKS {
            self.blocks.truncate(KEPT_BLOCKS);
            self.blocks.shrink_to_fit();
        }
    }

    /// Reserves room for `len` bytes in all. Fails if there is no memory for them.
    pub fn try_reserve(&mut self, len: usize) -> Result<(), TryReserveError> {
        self.blocks.try_reserve(len.div_ceil(BLOCK_BYTES).saturating_sub(self.blocks.len()))
    }

    fn reach(&mut self, len: usize) {
        let blocks = len.div_ceil(BLOCK_BYTES);
        if blocks > self.blocks.len() {
            self.blocks.resize(blocks, Block([0; BLOCK_BYTES]));
        }
    }

    /// Sets the length; new bytes are zero.
    pub fn resize(&mut self, len: usize) {
        self.reach(len);
        let old = std::mem::replace(&mut self.len, len);
        if old < len {
            self[old..].fill(0);
        }
    }

    /// Appends bytes.
    pub fn extend(&mut self, bytes: &[u8]) {
        let at = self.len;
        self.reach(at + bytes.len());
        self.len = at + bytes.len();
        self[at..].copy_from_slice(bytes);
    }

    /// Pads with zeros to a whole block.
    pub fn pad_to_block(&mut self) {
        self.resize(self.len.next_multiple_of(BLOCK_BYTES));
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        debug_assert!(self.len <= self.blocks.len() * BLOCK_BYTES);
        // SAFETY: `blocks` is contiguous, initialised, and at least `len` bytes long.
        unsafe { std::slice::from_raw_parts(self.blocks.as_ptr().cast(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        debug_assert!(self.len <= self.blocks.len() * BLOCK_BYTES);
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.blocks.as_mut_ptr().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_aligned_and_zeroed() {
        let mut buf = AlignedBuf::default();
        buf.extend(b"abc");
        buf.pad_to_block();
        assert_eq!(buf.len(), BLOCK_BYTES);
        assert_eq!(buf.as_ptr() as usize % BLOCK_BYTES, 0);
        assert_eq!(&buf[..4], b"abc\0");
        buf.resize(1);
        buf.resize(3);
        assert_eq!(&buf[..], b"a\0\0");
        assert_eq!(AlignedBuf::zeroed_up_to(5000).len(), 5000);
        assert_eq!(AlignedBuf::zeroed_up_to(usize::MAX).len(), BLOCK_BYTES);
        assert!(buf.try_reserve(usize::MAX).is_err() && buf.try_reserve(3 * BLOCK_BYTES).is_ok());
        assert_eq!(&buf[..], b"a\0\0");
    }
}
