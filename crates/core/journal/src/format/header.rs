//! The header of a journal: its two slots in the header file, and the attribute that a closed journal has instead.

use super::{Attribute, BLOCK_BYTES, Key, StoreId, VERSION, crc64, set_bytes, u16_at, u32_at, u64_at};
use crate::error::{Error, Result};
use crate::invariant;
use std::path::Path;
use untorn_os::holds;

/// The first version whose headers list the owners that did not close.
const UNCLOSED_KNOWN: u32 = 3;

/// First bytes of a header slot.
pub const HEADER_MAGIC: &[u8; 8] = b"UNTORN-H";
/// Slots in the header file. They share no block.
pub const HEADER_SLOTS: u64 = 2;
/// Offset of a header slot's checksum, which covers everything before it.
pub const HEADER_CRC_AT: usize = BLOCK_BYTES - 8;
/// Offset of a header slot's list of epochs.
pub const EPOCHS_AT: usize = 112;
/// First bytes of the attribute `user.untorn` of a header file, which holds the header of a closed journal.
pub const CLOSED_MAGIC: &[u8; 4] = b"UTCH";
/// Length of that attribute. With this length, ext4 stores it in the inode.
pub const CLOSED_BYTES: usize = 64;
/// Offset of its checksum, which is keyed and covers everything before it.
pub const CLOSED_CRC_AT: usize = CLOSED_BYTES - 8;
/// Bytes of an entry of a header slot's list of epochs.
pub const EPOCH_BYTES: usize = 32;
/// Limit for the epochs in a header. An opening that would exceed it redoes all of them first. Each takes a segment,
/// and segments grow, so a small limit keeps small stores small.
pub const EPOCHS_MAX: usize = 4;

/// Offset of the length of the segment in which a clean journal continues.
const START_BLOCKS_AT: usize = EPOCHS_AT + EPOCHS_MAX * EPOCH_BYTES;
/// Offset of the list of unclosed epochs: their number in four bytes, then the epochs.
pub const UNCLOSED_AT: usize = START_BLOCKS_AT + 4;
/// Limit for the unclosed epochs in a header. An opening that finds this many looks for marks that they left.
pub const UNCLOSED_MAX: usize = 240;
/// Offset of the lengths of segments: their number in four bytes, then the blocks of each, by index.
pub const LENGTHS_AT: usize = UNCLOSED_AT + 4 + 8 * UNCLOSED_MAX;
/// Limit for the lengths in a header.
pub const LENGTHS_MAX: usize = (HEADER_CRC_AT - LENGTHS_AT - 4) / 4;
const FLAG_CLEAN: u32 = 1;
const FLAG_BOOT: u32 = 2;
const FLAG_MARKS_LEFT: u32 = 4;

/// An epoch whose records are in the journal and were unapplied when the store was opened again. Exactly these of its
/// records are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedEpoch {
    /// The epoch.
    pub epoch: u64,
    /// LSN of its first accepted record.
    pub first_lsn: u64,
    /// LSN of its last accepted record.
    pub last_lsn: u64,
    /// Checksum of that record. The others are found from it, because each record repeats the checksum of its
    /// predecessor.
    pub last_crc: u64,
}

/// The contents of a header slot. The valid slot with the higher generation is the current one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Version of the program that wrote it. A header is always written in the present version.
    pub version: u32,
    /// The store.
    pub store: StoreId,
    /// Grows by one with every header written.
    pub generation: u64,
    /// Every commit up to this one is in the data files, flushed: redo starts after it.
    pub checkpoint_lsn: u64,
    /// Epochs before the open one that have records after `checkpoint_lsn`, oldest first.
    pub listed: Vec<ListedEpoch>,
    /// LSN of the first record that can be accepted of the open epoch.
    pub open_lsn: u64,
    /// The link: the first record of the open epoch repeats it as the checksum of its predecessor. It is a random
    /// number, drawn for each opening, or the checksum of record `checkpoint_lsn` if that record is of the open epoch.
    pub link: u64,
    /// Nothing was pending when this header was written, and nothing is unless block 0 of segment `start_segment`, or
    /// its length, has changed since.
    pub clean: bool,
    /// The segment that a clean journal continues in.
    pub start_segment: u32,
    /// Checksum of that segment's first block when this header was written.
    pub start_crc: u64,
    /// Length of that segment in blocks.
    pub start_blocks: u32,
    /// Id of the boot in which commits of class `process` were made, if some may be unflushed.
    pub boot: Option<[u8; 16]>,
    /// The epoch in which this header was written.
    pub epoch: u64,
    /// Least lengths of segments, in blocks, when this header was written, by index; 0 for a missing one.
    pub lengths: Vec<u32>,
    /// The last epochs whose owners did not close the store, oldest first. Files may wait for commits of these.
    pub unclosed: Vec<u64>,
    /// No owner has yet looked for files that wait for commits of these epochs which never came.
    pub marks_left: bool,
    /// The secret key of the checksums of this journal's records.
    pub key: Key,
    /// It was read from the attribute, so the slot of its generation may not be durable. Not written.
    pub by_attribute: bool,
}

impl Header {
    /// Offset in the header file of the slot of this generation.
    pub fn slot_of(generation: u64) -> u64 {
        BLOCK_BYTES as u64 * (generation % HEADER_SLOTS)
    }

    /// Length of the segment in which a clean journal continues.
    pub fn start_bytes(&self) -> u64 {
        u64::from(self.start_blocks) * BLOCK_BYTES as u64
    }

    /// Whether a writer of this version found nothing pending when it wrote the header. A writer of another version
    /// first makes a header of its own durable.
    pub fn is_closed(&self) -> bool {
        self.clean && self.version == VERSION
    }

    /// Whether this header knows the owner for whose commits a file of this store waits, or waited, whether or not it
    /// knows the commits. An owner writes a header with its epoch before it marks a file, and leaves no mark when it
    /// closes. So the journal of a file that waits for an unknown owner is not here: an older journal was put in its
    /// place.
    pub fn knows(&self, a: &Attribute) -> bool {
        let is_open = || self.epoch == a.epoch && !self.clean;
        a.version < UNCLOSED_KNOWN
            || is_open()
            || self.unclosed.contains(&a.epoch)
            || self.listed.iter().any(|listed| listed.epoch == a.epoch)
            || !holds(invariant::OTHER_JOURNAL)
    }

    /// Whether a file was marked when its journal had more commits than this one, which ends with this LSN.
    pub fn is_behind(a: &Attribute, last_lsn: u64) -> bool {
        // In older versions, a mark could be ahead of the flushed records.
        a.version >= UNCLOSED_KNOWN && a.checkpoint_lsn > last_lsn && holds(invariant::OTHER_JOURNAL)
    }

    /// Adds an epoch to the unclosed ones. The oldest is dropped if there are too many.
    pub fn add_unclosed(&mut self, epoch: u64) {
        if epoch == 0 || self.unclosed.contains(&epoch) {
            return;
        }
        if self.unclosed.len() == UNCLOSED_MAX {
            self.unclosed.remove(0);
        }
        self.unclosed.push(epoch);
        debug_assert!(self.unclosed.len() <= UNCLOSED_MAX, "{} epochs are unclosed", self.unclosed.len());
    }

    /// Encodes the slot's block.
    pub fn encode(&self) -> [u8; BLOCK_BYTES] {
        debug_assert!(
            self.listed.len() <= EPOCHS_MAX && self.unclosed.len() <= UNCLOSED_MAX,
            "a header with {} epochs, {} unclosed",
            self.listed.len(),
            self.unclosed.len()
        );
        let mut b = [0; BLOCK_BYTES];
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let flags = flag(self.clean, FLAG_CLEAN)
            | flag(self.boot.is_some(), FLAG_BOOT)
            | flag(self.marks_left, FLAG_MARKS_LEFT);
        set_bytes(&mut b, 0, HEADER_MAGIC);
        set_bytes(&mut b, 8, &VERSION.to_le_bytes());
        set_bytes(&mut b, 12, &flags.to_le_bytes());
        set_bytes(&mut b, 16, &self.generation.to_le_bytes());
        set_bytes(&mut b, 24, &self.store);
        set_bytes(&mut b, 40, &self.checkpoint_lsn.to_le_bytes());
        set_bytes(&mut b, 48, &self.link.to_le_bytes());
        set_bytes(&mut b, 56, &self.epoch.to_le_bytes());
        set_bytes(&mut b, 64, &self.boot.unwrap_or_default());
        set_bytes(&mut b, 80, &self.start_crc.to_le_bytes());
        set_bytes(&mut b, 88, &self.start_segment.to_le_bytes());
        set_bytes(&mut b, 92, &self.key.0.to_le_bytes());
        set_bytes(&mut b, 100, &(self.listed.len() as u32).to_le_bytes());
        set_bytes(&mut b, 104, &self.open_lsn.to_le_bytes());
        for (n, listed) in self.listed.iter().enumerate() {
            let at = EPOCHS_AT + n * EPOCH_BYTES;
            set_bytes(&mut b, at, &listed.epoch.to_le_bytes());
            set_bytes(&mut b, at + 8, &listed.first_lsn.to_le_bytes());
            set_bytes(&mut b, at + 16, &listed.last_lsn.to_le_bytes());
            set_bytes(&mut b, at + 24, &listed.last_crc.to_le_bytes());
        }
        set_bytes(&mut b, START_BLOCKS_AT, &self.start_blocks.to_le_bytes());
        set_bytes(&mut b, UNCLOSED_AT, &(self.unclosed.len() as u32).to_le_bytes());
        for (n, epoch) in self.unclosed.iter().enumerate() {
            set_bytes(&mut b, UNCLOSED_AT + 4 + 8 * n, &epoch.to_le_bytes());
        }
        let lengths = &self.lengths[..self.lengths.len().min(LENGTHS_MAX)];
        set_bytes(&mut b, LENGTHS_AT, &(lengths.len() as u32).to_le_bytes());
        for (index, blocks) in lengths.iter().enumerate() {
            set_bytes(&mut b, LENGTHS_AT + 4 + 4 * index, &blocks.to_le_bytes());
        }
        let crc = crc64(&b[..HEADER_CRC_AT]);
        set_bytes(&mut b, HEADER_CRC_AT, &crc.to_le_bytes());
        b
    }

    /// Encodes the header of a closed journal as an attribute of the header file with these slots. It refers to the
    /// newest durable slot by that slot's checksum; both must list the same unclosed epochs.
    pub fn encode_closed(&self, slots: &[u8]) -> [u8; CLOSED_BYTES] {
        debug_assert!(
            self.listed.is_empty() && self.boot.is_none() && self.open_lsn == self.checkpoint_lsn + 1,
            "a closed header of a journal that is not empty: {self:?}"
        );
        debug_assert_eq!(slots.len(), BLOCK_BYTES * HEADER_SLOTS as usize, "slots of the header file");
        let mut b = [0; CLOSED_BYTES];
        set_bytes(&mut b, 0, CLOSED_MAGIC);
        set_bytes(&mut b, 4, &(VERSION as u16).to_le_bytes());
        let is_unclosed = self.unclosed.contains(&self.epoch);
        let flags = u16::from(self.clean) | u16::from(self.marks_left) << 1 | u16::from(is_unclosed) << 2;
        set_bytes(&mut b, 6, &flags.to_le_bytes());
        set_bytes(&mut b, 8, &self.generation.to_le_bytes());
        set_bytes(&mut b, 16, &self.checkpoint_lsn.to_le_bytes());
        set_bytes(&mut b, 24, &self.link.to_le_bytes());
        set_bytes(&mut b, 32, &self.epoch.to_le_bytes());
        set_bytes(&mut b, 40, &self.start_crc.to_le_bytes());
        set_bytes(&mut b, 48, &self.start_segment.to_le_bytes());
        set_bytes(&mut b, 52, &self.start_blocks.to_le_bytes());
        let crc = self.key.crc64(&[Header::durable_crc(slots, self.generation), &b[..CLOSED_CRC_AT]]);
        set_bytes(&mut b, CLOSED_CRC_AT, &crc.to_le_bytes());
        b
    }

    /// The checksum in the slot that a closed header of this generation refers to.
    fn durable_crc(slots: &[u8], generation: u64) -> &[u8] {
        let slot = Header::slot_of(generation.wrapping_add(1)) as usize;
        &slots[slot + HEADER_CRC_AT..slot + BLOCK_BYTES]
    }

    /// Decodes the header in an attribute of the header file with these slots, if it is of the same journal.
    /// `Ok(None)`: the attribute is no such header.
    pub fn decode_closed(&self, b: &[u8], slots: &[u8], path: &Path) -> Result<Option<Header>> {
        if b.len() != CLOSED_BYTES || &b[..4] != CLOSED_MAGIC {
            return Ok(None);
        }
        let slot_crc = Header::durable_crc(slots, u64_at(b, 8));
        if u64_at(b, CLOSED_CRC_AT) != self.key.crc64(&[slot_crc, &b[..CLOSED_CRC_AT]]) {
            return Ok(None);
        }
        let version = u32::from(u16_at(b, 4));
        if version > VERSION {
            return Err(Error::NewerVersion { path: path.to_owned(), found: version, supported: VERSION });
        }
        let checkpoint_lsn = u64_at(b, 16);
        let mut header = Header {
            version,
            store: self.store,
            generation: u64_at(b, 8),
            checkpoint_lsn,
            listed: Vec::new(),
            open_lsn: checkpoint_lsn.saturating_add(1),
            link: u64_at(b, 24),
            clean: u16_at(b, 6) & 1 != 0,
            start_segment: u32_at(b, 48),
            start_crc: u64_at(b, 40),
            start_blocks: u32_at(b, 52),
            boot: None,
            epoch: u64_at(b, 32),
            lengths: self.lengths.clone(),
            unclosed: self.unclosed.clone(),
            marks_left: u16_at(b, 6) & 2 != 0,
            key: self.key,
            by_attribute: true,
        };
        if u16_at(b, 6) & 4 != 0 {
            header.add_unclosed(header.epoch);
        }
        Ok(Some(header))
    }

    /// Decodes a slot. `Ok(None)`: the slot is invalid (torn, or never written).
    pub fn decode(b: &[u8], path: &Path) -> Result<Option<Header>> {
        if b.len() < BLOCK_BYTES || &b[..8] != HEADER_MAGIC || u64_at(b, HEADER_CRC_AT) != crc64(&b[..HEADER_CRC_AT]) {
            return Ok(None);
        }
        let version = u32_at(b, 8);
        if version > VERSION {
            return Err(Error::NewerVersion { path: path.to_owned(), found: version, supported: VERSION });
        }
        let flags = u32_at(b, 12);
        let count = if version == 1 { 0 } else { u32_at(b, 100) as usize };
        if count > EPOCHS_MAX {
            return Err(Error::corrupt(path, format!("its header lists {count} epochs; {EPOCHS_MAX} is the most")));
        }
        let unclosed = if version < UNCLOSED_KNOWN { 0 } else { u32_at(b, UNCLOSED_AT) as usize };
        if unclosed > UNCLOSED_MAX {
            let detail = format!("its header lists {unclosed} epochs that were not closed; {UNCLOSED_MAX} is the most");
            return Err(Error::corrupt(path, detail));
        }
        let lengths = if version < UNCLOSED_KNOWN { 0 } else { u32_at(b, LENGTHS_AT) as usize };
        if lengths > LENGTHS_MAX {
            let detail = format!("its header lists {lengths} segments; {LENGTHS_MAX} is the most");
            return Err(Error::corrupt(path, detail));
        }
        let listed = b[EPOCHS_AT..].chunks(EPOCH_BYTES).take(count).map(|entry| ListedEpoch {
            epoch: u64_at(entry, 0),
            first_lsn: u64_at(entry, 8),
            last_lsn: u64_at(entry, 16),
            last_crc: u64_at(entry, 24),
        });
        Ok(Some(Header {
            version,
            store: b[24..40].try_into().expect("sixteen bytes"),
            generation: u64_at(b, 16),
            checkpoint_lsn: u64_at(b, 40),
            listed: listed.collect(),
            open_lsn: if version == 1 { u64_at(b, 40).saturating_add(1) } else { u64_at(b, 104) },
            link: u64_at(b, 48),
            clean: flags & FLAG_CLEAN != 0,
            start_segment: u32_at(b, 88),
            start_crc: u64_at(b, 80),
            start_blocks: u32_at(b, START_BLOCKS_AT),
            boot: (flags & FLAG_BOOT != 0).then(|| b[64..80].try_into().expect("sixteen bytes")),
            epoch: u64_at(b, 56),
            lengths: b[LENGTHS_AT + 4..].chunks(4).take(lengths).map(|blocks| u32_at(blocks, 0)).collect(),
            unclosed: b[UNCLOSED_AT + 4..].chunks(8).take(unclosed).map(|epoch| u64_at(epoch, 0)).collect(),
            marks_left: flags & FLAG_MARKS_LEFT != 0,
            key: Key(u64_at(b, 92)),
            by_attribute: false,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            version: VERSION,
            store: [7; 16],
            generation: 9,
            checkpoint_lsn: 41,
            listed: vec![ListedEpoch { epoch: 1, first_lsn: 42, last_lsn: 43, last_crc: 2 }; 2],
            open_lsn: 44,
            link: 0xdead_beef,
            clean: true,
            start_segment: 3,
            start_crc: 77,
            start_blocks: 16,
            boot: Some([5; 16]),
            epoch: 11,
            lengths: vec![16, 0, 48],
            unclosed: vec![8, 9],
            marks_left: true,
            key: Key(12),
            by_attribute: false,
        }
    }

    #[test]
    fn header_round_trip_and_every_flipped_bit_is_seen() {
        let h = header();
        let good = h.encode();
        assert_eq!(Header::decode(&good, Path::new("h")).unwrap(), Some(h));
        for at in (0..BLOCK_BYTES).step_by(7) {
            let mut bad = good;
            bad[at] ^= 1 << (at % 8);
            assert_eq!(Header::decode(&bad, Path::new("h")).unwrap(), None, "byte {at}");
        }
    }

    #[test]
    fn closed_header_round_trip_and_every_flipped_bit_is_seen() {
        let slot = header();
        let mut slots = [slot.encode(), slot.encode()].concat();
        let closed = Header {
            generation: 10,
            checkpoint_lsn: 50,
            open_lsn: 51,
            listed: Vec::new(),
            boot: None,
            by_attribute: true,
            ..slot.clone()
        };
        let path = Path::new("h");
        let good = closed.encode_closed(&slots);
        assert_eq!(slot.decode_closed(&good, &slots, path).unwrap(), Some(closed));
        for at in 0..CLOSED_BYTES {
            let mut bad = good;
            bad[at] ^= 1 << (at % 8);
            assert_eq!(slot.decode_closed(&bad, &slots, path).unwrap(), None, "byte {at}");
        }
        let other = Header { key: Key(13), ..slot.clone() };
        assert_eq!(other.decode_closed(&good, &slots, path).unwrap(), None, "it is of another journal");
        slots[BLOCK_BYTES..].copy_from_slice(&Header { generation: 7, ..slot.clone() }.encode());
        assert_eq!(slot.decode_closed(&good, &slots, path).unwrap(), None, "it is of another slot");
    }

    #[test]
    fn newer_header_is_refused() {
        let mut b = header().encode();
        set_bytes(&mut b, 8, &(VERSION + 1).to_le_bytes());
        let crc = crc64(&b[..HEADER_CRC_AT]);
        set_bytes(&mut b, HEADER_CRC_AT, &crc.to_le_bytes());
        assert!(
            matches!(Header::decode(&b, Path::new("h")), Err(Error::NewerVersion { found, .. }) if found == VERSION + 1)
        );
    }
}
