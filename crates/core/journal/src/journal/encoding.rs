//! Encodes commits as records of one group: each with its head, its checksum, and its link to the record before it.

use super::Journal;
use crate::commits::record::{IndexedSink, Record};
use crate::commits::spill::{Spill, append_summed};
use crate::error::{Outcome, Result};
use crate::format::sized_memory;
use crate::format::{BLOCK_BYTES, RECORD_ALIGN_BYTES, RECORD_HEAD_BYTES, RECORD_MAGIC, RecordHead, RecordKind};
use crate::invariant;
use crate::sync_point;
use untorn_os::holds;

impl Journal {
    /// The most bytes that a record can need in a segment.
    pub(super) fn room_for(&self, record: &Record) -> u64 {
        let body = record.body_bytes();
        let inline = RECORD_HEAD_BYTES as u64 + body;
        let most = self.options.segment_bytes_max();
        // A body that fits into no segment goes into a spill file, and the record refers to it.
        if inline > most { RECORD_HEAD_BYTES as u64 + 24 } else { inline }
    }

    /// Encodes as many records as fit into `room` bytes at the current position into the buffer, linked and sealed.
    pub(super) fn encode_group(&mut self, records: &[Record], room: u64) -> Result<usize> {
        debug_assert!(self.bodies.is_empty(), "{} spilled bodies of other records", self.bodies.len());
        self.buf.clear();
        self.entries.clear();
        let (is_indexed, mut sealed) = (self.is_indexed(), 0);
        for record in records {
            let at = self.buf.len().next_multiple_of(RECORD_ALIGN_BYTES);
            let needed = self.room_for(record);
            if at as u64 + needed > room {
                break;
            }
            let end = at + needed as usize;
            self.buf.try_reserve(end).map_err(|_| sized_memory::none(end, &self.dir))?;
            self.buf.resize(at + RECORD_HEAD_BYTES);
            let mut by_reference = record.body_bytes() + RECORD_HEAD_BYTES as u64 > self.options.segment_bytes_max();
            let index = self.entries.begin();
            if !by_reference {
                match is_indexed {
                    true => record.encode(&mut IndexedSink { buf: &mut self.buf, start: self.position, index })?,
                    false => record.encode(&mut self.buf)?,
                }
                by_reference = self.looks_like_records(at) && holds(invariant::BODIES_UNLIKE_RECORDS);
            }
            if by_reference {
                self.buf.resize(at + RECORD_HEAD_BYTES);
                let reference = self.spill_body(record)?;
                self.buf.extend(&reference);
                self.entries.set_body(&reference);
            }
            debug_assert!(self.buf.len() <= end, "a record ends at {}, and at {end} at the latest", self.buf.len());
            self.seal_record(at, RecordKind::Commit, by_reference);
            sealed += 1;
        }
        debug_assert!(sealed == 0 || self.buf.len() as u64 <= room, "a group of {} bytes in {room}", self.buf.len());
        Ok(sealed)
    }

    /// Whether a block of the body of the record at `at` in the buffer begins like a record. Every reader of the store
    /// knows the key, so file contents may forge a record.
    fn looks_like_records(&self, at: usize) -> bool {
        let blocks = (at + 1).next_multiple_of(BLOCK_BYTES)..self.buf.len();
        blocks.step_by(BLOCK_BYTES).any(|block| self.buf[block..].starts_with(RECORD_MAGIC))
    }

    /// Completes the record that starts at `at` in the buffer: head, checksum, chain.
    pub(super) fn seal_record(&mut self, at: usize, kind: RecordKind, body_by_reference: bool) {
        debug_assert!(
            self.durable_lsn < self.next_lsn,
            "record {} says that {} is durable",
            self.next_lsn,
            self.durable_lsn
        );
        debug_assert!(
            self.position.is_multiple_of(BLOCK_BYTES as u64) && at.is_multiple_of(RECORD_ALIGN_BYTES),
            "a record at {at} of a group at {}",
            self.position
        );
        let head = RecordHead {
            kind,
            body_by_reference,
            len: (self.buf.len() - at) as u64,
            lsn: self.next_lsn,
            epoch: self.epoch,
            // The newest header that is certainly on the disk: an attribute header, or one of class `process`, may not
            // be there yet.
            generation: self.durable_generation,
            position: self.position + at as u64,
            previous_crc: self.previous_crc,
            durable_lsn: self.durable_lsn,
            time: self.storage.time(),
        };
        self.previous_crc = head.seal(&mut self.buf[at..], self.header.key);
        self.entries.end(&self.buf[at..], self.header.key);
        self.next_lsn += 1;
    }

    fn spill_body(&mut self, record: &Record) -> Result<[u8; 24]> {
        let spill = Spill::create(&self.storage, &self.dir)?;
        let mut body = Vec::new();
        sized_memory::reserve(&mut body, record.body_bytes() as usize, &self.dir)?;
        record.encode(&mut body)?;
        let (_, crc) = append_summed(&spill, &body, None)?;
        self.counters.bytes_written += body.len() as u64;
        if self.options.durable {
            let named =
                spill.sync_to(spill.len()).and_then(|()| self.storage.sync_dir(&self.dir, sync_point::SPILL_NAME));
            named.map_err(|e| self.fail(Outcome::NotCommitted, e))?;
            spill.set_named();
        }
        let mut reference = [0; 24];
        reference[..8].copy_from_slice(&spill.id.to_le_bytes());
        reference[8..16].copy_from_slice(&(body.len() as u64).to_le_bytes());
        reference[16..].copy_from_slice(&crc.to_le_bytes());
        self.bodies.push((spill, self.next_lsn));
        Ok(reference)
    }
}
