//! Relations between the fields of a journal, which hold after every change of it. Debug builds check them.

use super::Journal;
use crate::commits::record::Record;
use crate::format::{BLOCK_BYTES, EPOCHS_MAX, UNCLOSED_MAX};
use std::collections::HashSet;

impl Journal {
    /// Checks the relations. Nothing here comes from the disk unchecked: recovery has refused headers and records that
    /// contradict each other.
    pub(super) fn assert_consistent(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let (header, last_lsn) = (&self.header, self.next_lsn - 1);
        debug_assert!(
            header.checkpoint_lsn < header.open_lsn && header.open_lsn <= self.next_lsn,
            "checkpoint {}, open epoch from {}, next {}",
            header.checkpoint_lsn,
            header.open_lsn,
            self.next_lsn
        );
        debug_assert!(self.durable_lsn <= last_lsn, "durable to {}, written to {last_lsn}", self.durable_lsn);
        debug_assert!(
            self.last_commit.max(self.last_restated) <= last_lsn,
            "last commit {}, last restated {}, written to {last_lsn}",
            self.last_commit,
            self.last_restated
        );
        debug_assert!(
            self.durable_generation <= header.generation,
            "durable header {}, newest {}",
            self.durable_generation,
            header.generation
        );
        // No record precedes the header that lists the epochs before it.
        debug_assert!(
            !self.list_due || header.open_lsn == self.next_lsn,
            "records from {} to {last_lsn} before the header that is due",
            header.open_lsn
        );
        debug_assert!(header.listed.len() <= EPOCHS_MAX, "{} epochs are listed", header.listed.len());
        debug_assert!(header.unclosed.len() <= UNCLOSED_MAX, "{} epochs are unclosed", header.unclosed.len());
        debug_assert!(
            header.listed.last().is_none_or(|listed| listed.last_lsn < header.open_lsn),
            "the list ends with {:?}, and the open epoch begins with {}",
            header.listed.last(),
            header.open_lsn
        );
        self.assert_segments(last_lsn);
        debug_assert!(
            self.spills.iter().all(|live| live.last_lsn > header.checkpoint_lsn),
            "a spill file of commit {:?} is left behind checkpoint {}",
            self.spills.iter().map(|live| live.last_lsn).min(),
            header.checkpoint_lsn
        );
        debug_assert!(self.bodies.is_empty(), "{} spilled bodies belong to no record", self.bodies.len());
    }

    /// Checks that records follow from the log: each names a file once, and no predecessor that is not written yet.
    pub(super) fn assert_sound(&self, records: &[Record]) {
        if !cfg!(debug_assertions) {
            return;
        }
        for (record, lsn) in records.iter().zip(self.next_lsn..) {
            let known: HashSet<u64> = record.files.iter().map(|file| file.id).collect();
            debug_assert_eq!(known.len(), record.files.len(), "record {lsn} names a file twice: {:?}", record.files);
            debug_assert!(
                record.files.iter().all(|file| file.previous_lsn < lsn),
                "record {lsn} follows later ones: {:?}",
                record.files
            );
            debug_assert!(
                record.ops.iter().all(|op| op.file().is_none_or(|file| (file as usize) < record.files.len())),
                "an operation of record {lsn} is on none of its {} files",
                record.files.len()
            );
        }
    }

    fn assert_segments(&self, last_lsn: u64) {
        let (segments, block) = (&self.segments, BLOCK_BYTES as u64);
        debug_assert!(
            segments.is_sorted_by(|one, next| one.index < next.index),
            "segments {:?}",
            segments.iter().map(|segment| segment.index).collect::<Vec<_>>()
        );
        debug_assert!(self.current < segments.len(), "segment {} of {} is current", self.current, segments.len());
        let current = &segments[self.current];
        debug_assert!(
            self.position <= current.bytes && self.position.is_multiple_of(block),
            "position {} in a segment of {} bytes",
            self.position,
            current.bytes
        );
        for segment in segments {
            debug_assert!(
                segment.last_lsn <= last_lsn,
                "segment {} ends with record {} of {last_lsn}",
                segment.index,
                segment.last_lsn
            );
            debug_assert!(
                segment.durable_bytes <= segment.bytes && segment.appended.is_multiple_of(block),
                "segment {}: {} of {} bytes are durable, {} appended",
                segment.index,
                segment.durable_bytes,
                segment.bytes,
                segment.appended
            );
        }
        debug_assert!(
            self.unflushed.iter().all(|at| segments[*at].last_lsn > self.durable_lsn),
            "segments {:?} wait for a flush, and everything to {} is durable",
            self.unflushed,
            self.durable_lsn
        );
        debug_assert!(
            self.pending_bytes() <= self.allocated_bytes(),
            "{} bytes of {} are pending",
            self.pending_bytes(),
            self.allocated_bytes()
        );
    }
}
