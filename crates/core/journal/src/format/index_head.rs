//! The head of the index of a segment: how far the segment is used, so that recovery need not read the rest of it.

use super::{Key, VERSION, set_bytes, u32_at, u64_at};
use untorn_os::{File, Meta};

/// First bytes of the index of a segment.
pub const INDEX_MAGIC: &[u8; 8] = b"UNTORN-I";
/// Bytes of the head.
pub const INDEX_HEAD_BYTES: usize = 72;
/// Offset of its checksum.
pub const INDEX_HEAD_CRC_AT: usize = 64;
/// The bound of a segment of which nothing is known.
pub const NO_BOUND: u64 = u64::MAX;

/// The head of the index of a segment. It is durable before a record of its epoch lies beyond its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexHead {
    /// The epoch that writes to the segment.
    pub epoch: u64,
    /// LSN of the first record that it wrote there, or of its next record if there is none yet.
    pub first_lsn: u64,
    /// No record of this epoch ends behind this offset of the segment, except appended ones; [`NO_BOUND`]: unknown.
    pub bound: u64,
    /// Bytes of the segment without appended ones.
    pub bytes: u64,
    /// The place of the index, because a copy may be older than its segment.
    pub place: (u64, u64),
}

impl IndexHead {
    /// Encodes it, with the key of the journal.
    pub fn encode(&self, key: Key) -> [u8; INDEX_HEAD_BYTES] {
        let mut b = [0; INDEX_HEAD_BYTES];
        set_bytes(&mut b, 0, INDEX_MAGIC);
        set_bytes(&mut b, 8, &VERSION.to_le_bytes());
        let numbers = [self.epoch, self.first_lsn, self.bound, self.bytes, self.place.0, self.place.1];
        for (at, number) in (16..).step_by(8).zip(numbers) {
            set_bytes(&mut b, at, &number.to_le_bytes());
        }
        let crc = key.crc64(&[&b[..INDEX_HEAD_CRC_AT]]);
        set_bytes(&mut b, INDEX_HEAD_CRC_AT, &crc.to_le_bytes());
        b
    }

    /// Decodes it; `None` if it is damaged, or there is none.
    pub fn decode(b: &[u8], key: Key) -> Option<IndexHead> {
        let is_whole = b.len() >= INDEX_HEAD_BYTES
            && b.starts_with(INDEX_MAGIC)
            && u32_at(b, 8) <= VERSION
            && u64_at(b, INDEX_HEAD_CRC_AT) == key.crc64(&[&b[..INDEX_HEAD_CRC_AT]]);
        is_whole.then(|| IndexHead {
            epoch: u64_at(b, 16),
            first_lsn: u64_at(b, 24),
            bound: u64_at(b, 32),
            bytes: u64_at(b, 40),
            place: (u64_at(b, 48), u64_at(b, 56)),
        })
    }
}

/// The place of a file, for its head: a copy that gets the inode number of the removed original was made at another time.
pub fn place_of(file: &dyn File, meta: &Meta) -> (u64, u64) {
    (meta.device, meta.inode ^ file.born_ns())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written_and_no_other() {
        let head = IndexHead { epoch: 1, first_lsn: 2, bound: 3, bytes: 4, place: (5, 6) };
        let bytes = head.encode(Key(8));
        assert_eq!(IndexHead::decode(&bytes, Key(8)), Some(head));
        assert_eq!(IndexHead::decode(&bytes, Key(9)), None);
        for at in 0..bytes.len() {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert_eq!(IndexHead::decode(&damaged, Key(8)), None, "byte {at}");
        }
    }
}
