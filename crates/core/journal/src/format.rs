//! The bytes on disk: constants, headers, record heads, file attributes.
//!
//! Writer, reader and checker share this module. `docs/FORMAT.md` describes the format, and a test compares its tables
//! with the constants. All numbers are little-endian.

mod checksum;
mod header;
mod index_head;
pub mod sized_memory;
pub(crate) mod unreadable;

use crate::invariant;
pub use checksum::{Crc64, crc64};
pub use header::{
    CLOSED_BYTES, CLOSED_CRC_AT, CLOSED_MAGIC, EPOCH_BYTES, EPOCHS_AT, EPOCHS_MAX, HEADER_CRC_AT, HEADER_MAGIC,
    HEADER_SLOTS, Header, LENGTHS_AT, LENGTHS_MAX, ListedEpoch, UNCLOSED_AT, UNCLOSED_MAX,
};
pub use index_head::{INDEX_HEAD_BYTES, INDEX_HEAD_CRC_AT, INDEX_MAGIC, IndexHead, NO_BOUND, place_of};
use std::path::Path;
use untorn_os::holds;

/// Version of the whole format. Readers refuse a newer one.
pub const VERSION: u32 = 5;
/// Unit of the journal: every commit group starts on a fresh block.
pub const BLOCK_BYTES: usize = untorn_os::BLOCK_BYTES;

/// First bytes of a record.
pub const RECORD_MAGIC: &[u8; 4] = b"UTRC";
/// Bytes before a record's body.
pub const RECORD_HEAD_BYTES: usize = 80;
/// Offset of a record's checksum, which counts as zero while it is computed.
pub const RECORD_CRC_AT: usize = 72;
/// Offset of the checksum of a record's head, which covers everything before it.
pub const RECORD_HEAD_CRC_AT: usize = 68;
/// Records within a group start on multiples of this.
pub const RECORD_ALIGN_BYTES: usize = 8;

/// First bytes of the attribute `user.untorn` of a segment, which holds the segment's length.
pub const LENGTH_MAGIC: &[u8; 4] = b"UTSG";
/// Length of that attribute.
pub const LENGTH_BYTES: usize = 24;

/// The attribute of the segment with this index, stating that it has at least this many bytes.
pub fn encode_length(index: u32, bytes: u64) -> [u8; LENGTH_BYTES] {
    debug_assert!(bytes / BLOCK_BYTES as u64 <= u64::from(u32::MAX), "segment {index} of {bytes} bytes");
    let mut b = [0; LENGTH_BYTES];
    set_bytes(&mut b, 0, LENGTH_MAGIC);
    set_bytes(&mut b, 4, &(VERSION as u16).to_le_bytes());
    set_bytes(&mut b, 8, &index.to_le_bytes());
    set_bytes(&mut b, 12, &((bytes / BLOCK_BYTES as u64) as u32).to_le_bytes());
    let crc = crc64(&b[..LENGTH_BYTES - 8]);
    set_bytes(&mut b, LENGTH_BYTES - 8, &crc.to_le_bytes());
    b
}

/// The least length of the segment with this index, by its attribute; 0 if the attribute does not state one.
pub fn decode_length(index: u32, value: Option<&[u8]>) -> u64 {
    match value {
        Some(b)
            if b.len() == LENGTH_BYTES
                && &b[..4] == LENGTH_MAGIC
                && u32_at(b, 8) == index
                && u64_at(b, LENGTH_BYTES - 8) == crc64(&b[..LENGTH_BYTES - 8]) =>
        {
            u64::from(u32_at(b, 12)) * BLOCK_BYTES as u64
        }
        _ => 0,
    }
}

/// First bytes of the attribute `user.untorn` of a data file.
pub const ATTRIBUTE_MAGIC: &[u8; 4] = b"UTAT";
/// Length of the attribute.
pub const ATTRIBUTE_BYTES: usize = 64;

/// The secret of a journal, with which the checksums of its records begin. It is random, and stored in the header only,
/// which nobody can read without the owner's permission.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key(pub u64);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(secret)")
    }
}

impl Key {
    /// CRC-64/NVME of the key and then of the parts.
    pub fn crc64(self, parts: &[&[u8]]) -> u64 {
        let mut sum = Crc64::new();
        sum.add(&self.0.to_le_bytes());
        parts.iter().for_each(|part| sum.add(part));
        sum.sum()
    }
}

/// Identifies a store, drawn at random when it is created.
pub type StoreId = [u8; 16];

/// The bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub(crate) fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(b[at..at + 2].try_into().expect("two bytes"))
}
pub(crate) fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().expect("four bytes"))
}
pub(crate) fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().expect("eight bytes"))
}
fn set_bytes(b: &mut [u8], at: usize, bytes: &[u8]) {
    b[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// A commit: its body lists files and operations.
    Commit,
    /// A durable mark: it has no body, and states in `durable_lsn` which records were flushed before it.
    DurableMark,
}

/// The head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead {
    /// Commit or durable mark.
    pub kind: RecordKind,
    /// The body is in a spill file, to which the record refers.
    pub body_by_reference: bool,
    /// Head and body in bytes, without padding.
    pub len: u64,
    /// Log sequence number: one more than that of its predecessor.
    pub lsn: u64,
    /// The epoch, that is, the opening of the store, in which it was written: a random number, which also serves as the
    /// record's salt.
    pub epoch: u64,
    /// Generation of the newest header that was durable when the record was written.
    pub generation: u64,
    /// Byte offset of the record in its segment.
    pub position: u64,
    /// Checksum of the predecessor.
    pub previous_crc: u64,
    /// Every record up to this one was flushed before this one was written.
    pub durable_lsn: u64,
    /// When it was written, in seconds since 1970, by the owner's clock. `None`: not known.
    pub time: Option<u64>,
}

/// The seconds from 1970 to the beginning of 2020, from which the times of records count.
pub const TIME_ORIGIN: u64 = 1_577_836_800;

/// The time of a record in the upper 31 bits of its flags; 0 if it is not known, or out of range.
fn time_bits(time: Option<u64>) -> u32 {
    let since = time.and_then(|time| u32::try_from(time.checked_sub(TIME_ORIGIN)?).ok());
    since.filter(|since| *since < 1 << 31).unwrap_or(0) << 1
}

fn time_of(flags: u32) -> Option<u64> {
    (flags >> 1 != 0).then(|| TIME_ORIGIN + u64::from(flags >> 1))
}

impl RecordHead {
    /// Writes the head in front of the body, which is already in the buffer. Seals both with a checksum, and returns
    /// that.
    pub fn seal(&self, record: &mut [u8], key: Key) -> u64 {
        debug_assert_eq!(record.len() as u64, self.len, "record {}", self.lsn);
        let kind: u16 = match self.kind {
            RecordKind::Commit => 1,
            RecordKind::DurableMark => 2,
        };
        set_bytes(record, 0, RECORD_MAGIC);
        set_bytes(record, 4, &(VERSION as u16).to_le_bytes());
        set_bytes(record, 6, &kind.to_le_bytes());
        set_bytes(record, 8, &self.len.to_le_bytes());
        set_bytes(record, 16, &self.lsn.to_le_bytes());
        set_bytes(record, 24, &self.epoch.to_le_bytes());
        set_bytes(record, 32, &self.generation.to_le_bytes());
        set_bytes(record, 40, &self.position.to_le_bytes());
        set_bytes(record, 48, &self.previous_crc.to_le_bytes());
        set_bytes(record, 56, &self.durable_lsn.to_le_bytes());
        set_bytes(record, 64, &(u32::from(self.body_by_reference) | time_bits(self.time)).to_le_bytes());
        set_bytes(record, RECORD_HEAD_CRC_AT, &(key.crc64(&[&record[..RECORD_HEAD_CRC_AT]]) as u32).to_le_bytes());
        set_bytes(record, RECORD_CRC_AT, &[0; 8]);
        let crc = key.crc64(&[record]);
        set_bytes(record, RECORD_CRC_AT, &crc.to_le_bytes());
        crc
    }

    /// Decodes the record that starts at `position` of a segment. Returns the head and its checksum, or `None` if there
    /// is no valid record.
    pub fn decode(segment: &[u8], position: usize, key: Key) -> Option<(RecordHead, u64)> {
        RecordHead::decode_at(segment.get(position..)?, position as u64, key)
    }

    /// The length in the head of the record at the beginning of these bytes, or `None` if there is no record.
    pub fn len_of(b: &[u8]) -> Option<u64> {
        (b.len() >= RECORD_HEAD_BYTES && &b[..4] == RECORD_MAGIC).then(|| u64_at(b, 8))
    }

    /// The LSN that the head of a record states.
    pub(crate) fn lsn_of(head: &[u8]) -> u64 {
        u64_at(head, 16)
    }

    /// The offset in the segment that the head of a record states.
    pub(crate) fn position_of(head: &[u8]) -> u64 {
        u64_at(head, 40)
    }

    /// Decodes the record at the beginning of bytes that lie at `position` of a segment.
    pub fn decode_at(b: &[u8], position: u64, key: Key) -> Option<(RecordHead, u64)> {
        let (head, stored) = RecordHead::decode_head(b, position, b.len() as u64, key)?;
        let b = &b[..head.len as usize];
        let crc = key.crc64(&[&b[..RECORD_CRC_AT], &[0; 8], &b[RECORD_CRC_AT + 8..]]);
        (crc == stored || !holds(invariant::CHECKSUM)).then_some((head, crc))
    }

    /// Decodes the head of a record whose rest cannot be read, or was not read yet, and checks it by the head's own
    /// checksum. The record has at most `len_max` bytes. Returns the head, and the record's checksum that is stored in
    /// it.
    pub(crate) fn decode_head(b: &[u8], position: u64, len_max: u64, key: Key) -> Option<(RecordHead, u64)> {
        let len = RecordHead::len_of(b)?;
        if len < RECORD_HEAD_BYTES as u64 || len > len_max || u64_at(b, 40) != position {
            return None;
        }
        // Check the head first: forged heads must not make recovery sum the whole segment for each block.
        let head_crc = key.crc64(&[&b[..RECORD_HEAD_CRC_AT]]) as u32;
        if holds(invariant::CHECKSUM) && head_crc != u32_at(b, RECORD_HEAD_CRC_AT) {
            return None;
        }
        if u16_at(b, 4) as u32 > VERSION {
            return None;
        }
        let kind = match u16_at(b, 6) {
            1 => RecordKind::Commit,
            2 => RecordKind::DurableMark,
            _ => return None,
        };
        let head = RecordHead {
            kind,
            body_by_reference: u32_at(b, 64) & 1 != 0,
            len,
            lsn: u64_at(b, 16),
            epoch: u64_at(b, 24),
            generation: u64_at(b, 32),
            position,
            previous_crc: u64_at(b, 48),
            durable_lsn: u64_at(b, 56),
            time: time_of(u32_at(b, 64)),
        };
        Some((head, u64_at(b, RECORD_CRC_AT)))
    }
}

/// The attribute that ties a file to its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// Version of the program that marked the file.
    pub version: u32,
    /// The store.
    pub store: StoreId,
    /// The file's identity in this epoch: a random number.
    pub file: u64,
    /// The epoch in which the file last became pending.
    pub epoch: u64,
    /// The file holds every commit up to this one.
    pub checkpoint_lsn: u64,
    /// Checksum of the file's path in the store. A copy, or a moved file, has another path.
    pub path_crc: u64,
    /// The journal may have newer commits, so the file must not be read without it.
    pub pending: bool,
}

/// The result of decoding an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeFound {
    /// No attribute.
    None,
    /// A valid one.
    Valid(Attribute),
    /// An attribute that this version does not understand.
    Unreadable,
}

impl Attribute {
    /// The value of `path_crc` for a path.
    pub fn path_crc_of(path: &Path) -> u64 {
        crc64(path.as_os_str().as_encoded_bytes())
    }

    /// Encodes the attribute's value.
    pub fn encode(&self) -> [u8; ATTRIBUTE_BYTES] {
        let mut b = [0; ATTRIBUTE_BYTES];
        set_bytes(&mut b, 0, ATTRIBUTE_MAGIC);
        set_bytes(&mut b, 4, &(self.version as u16).to_le_bytes());
        set_bytes(&mut b, 6, &u16::from(self.pending).to_le_bytes());
        set_bytes(&mut b, 8, &self.store);
        set_bytes(&mut b, 24, &self.file.to_le_bytes());
        set_bytes(&mut b, 32, &self.epoch.to_le_bytes());
        set_bytes(&mut b, 40, &self.checkpoint_lsn.to_le_bytes());
        set_bytes(&mut b, 48, &self.path_crc.to_le_bytes());
        let crc = crc64(&b[..56]);
        set_bytes(&mut b, 56, &crc.to_le_bytes());
        b
    }

    /// Decodes an attribute's value.
    pub fn decode(value: Option<&[u8]>) -> AttributeFound {
        let Some(b) = value else { return AttributeFound::None };
        if b.len() != ATTRIBUTE_BYTES
            || &b[..4] != ATTRIBUTE_MAGIC
            || u16_at(b, 4) as u32 > VERSION
            || u64_at(b, 56) != crc64(&b[..56])
        {
            return AttributeFound::Unreadable;
        }
        AttributeFound::Valid(Attribute {
            version: u32::from(u16_at(b, 4)),
            store: b[8..24].try_into().expect("sixteen bytes"),
            file: u64_at(b, 24),
            epoch: u64_at(b, 32),
            checkpoint_lsn: u64_at(b, 40),
            path_crc: u64_at(b, 48),
            pending: u16_at(b, 6) & 1 != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_round_trip_and_position_counts() {
        let head = RecordHead {
            kind: RecordKind::Commit,
            body_by_reference: false,
            len: RECORD_HEAD_BYTES as u64 + 5,
            lsn: 3,
            epoch: 4,
            generation: 5,
            position: 4096,
            previous_crc: 7,
            durable_lsn: 2,
            time: Some(TIME_ORIGIN + 1),
        };
        let mut segment = vec![0; 3 * BLOCK_BYTES];
        let end = 4096 + head.len as usize;
        segment[end - 5..end].copy_from_slice(b"hello");
        let key = Key(99);
        let crc = head.seal(&mut segment[4096..end], key);
        assert_eq!(RecordHead::decode(&segment, 4096, key), Some((head, crc)));
        assert_eq!(RecordHead::decode(&segment, 4096, Key(98)), None, "without the key nobody makes a valid record");
        for at in 4096..end {
            segment[at] ^= 0x10;
            assert_eq!(RecordHead::decode(&segment, 4096, key), None, "byte {at}");
            segment[at] ^= 0x10;
        }
        segment.copy_within(4096..end, 8192);
        assert_eq!(RecordHead::decode(&segment, 8192, key), None, "a record copied elsewhere is not valid there");
    }

    #[test]
    fn attribute_round_trip() {
        let a = Attribute {
            version: VERSION,
            store: [1; 16],
            file: 2,
            epoch: 3,
            checkpoint_lsn: 4,
            path_crc: 5,
            pending: true,
        };
        let b = a.encode();
        assert_eq!(Attribute::decode(Some(&b)), AttributeFound::Valid(a));
        assert_eq!(Attribute::decode(Some(&b[..50])), AttributeFound::Unreadable);
        assert_eq!(Attribute::decode(None), AttributeFound::None);
    }
}
