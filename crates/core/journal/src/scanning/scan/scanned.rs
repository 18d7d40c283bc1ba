//! A journal that was read.

use crate::commits::record::Record;
use crate::commits::spill::Spill;
use crate::directories::store_dir::segment_name;
use crate::error::Error;
use crate::format::{Header, ListedEpoch};
use crate::scanning::segment_reader::{ReadRecords, ScannedSegment, ValidRecord};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An accepted commit.
#[derive(Clone, Debug)]
pub struct AcceptedRecord {
    /// Its LSN.
    pub lsn: u64,
    /// The epoch in which it was written.
    pub epoch: u64,
    /// When it was written, in seconds since 1970; `None`: not known.
    pub time: Option<u64>,
    /// Its files and operations.
    pub record: Record,
}

/// The contents of a journal.
pub struct Scan {
    /// The newest valid header.
    pub header: Header,
    /// Segments, by index.
    pub segments: Vec<ScannedSegment>,
    /// Every valid record after the header's `checkpoint_lsn`, by LSN.
    pub valid: Vec<ValidRecord>,
    /// Commits that were decoded when they were found, and not taken from here yet.
    pub(super) found: ReadRecords,
    /// Accepted commits, in order. Durable marks are accepted, too, but change nothing.
    pub accepted: Vec<AcceptedRecord>,
    /// The accepted records themselves, durable marks included.
    pub accepted_heads: Vec<ValidRecord>,
    /// LSN of the last accepted record, or the header's `checkpoint_lsn`.
    pub last_lsn: u64,
    /// Checksum of that record.
    pub last_crc: u64,
    /// Spill files that accepted records refer to, each with the LSN of the last such record.
    pub live_spills: Vec<(Arc<Spill>, u64)>,
    /// The epochs with accepted records, oldest first.
    pub epochs: Vec<ListedEpoch>,
    /// Whether there are remains of incomplete records.
    pub torn_tail: bool,
    /// The block whose checksum is in the clean header has changed: records were written after that header.
    pub start_changed: bool,
    /// A segment that is missing, or shorter than it once was.
    pub cut_short: Option<Error>,
    /// Damage that no crash explains, or the error of an unreadable part.
    pub corrupt: Option<Error>,
    /// Spill files in the journal's directory.
    pub spills: Vec<u64>,
    /// Files in that directory that are orphans once every record is applied.
    pub orphans: Vec<String>,
    /// The journal was shut down clean, and nothing was written since, so segments were not read.
    pub clean_shutdown: bool,
}

impl Scan {
    /// How many commits are accepted.
    pub fn commits(&self) -> u64 {
        self.accepted.iter().filter(|accepted| !accepted.record.restates()).count() as u64
    }

    /// Checks that the accepted records are one run without gaps, for any bytes on the disk.
    pub(super) fn assert_chained(&self) {
        debug_assert!(
            self.accepted_heads.is_sorted_by(|one, next| one.head.lsn + 1 == next.head.lsn),
            "accepted records have gaps: {:?}",
            self.accepted_heads.iter().map(|v| v.head.lsn).collect::<Vec<_>>()
        );
        debug_assert!(
            self.accepted_heads.last().is_none_or(|v| v.head.lsn == self.last_lsn)
                && self.accepted.last().is_none_or(|accepted| accepted.lsn <= self.last_lsn),
            "record {:?} was accepted last, and {} counts as the last",
            self.accepted_heads.last().map(|v| v.head.lsn),
            self.last_lsn
        );
        debug_assert!(
            self.accepted.len() <= self.accepted_heads.len()
                && self.segments.iter().all(|segment| segment.last_lsn <= self.last_lsn),
            "{} commits of {} records up to {}",
            self.accepted.len(),
            self.accepted_heads.len(),
            self.last_lsn
        );
        debug_assert!(
            self.epochs.is_sorted_by(|one, next| one.last_lsn < next.first_lsn)
                && self.epochs.last().is_none_or(|epoch| epoch.last_lsn == self.last_lsn),
            "epochs {:?} of records up to {}",
            self.epochs,
            self.last_lsn
        );
    }

    /// The epoch of the last accepted record, or that of the header if none was accepted.
    pub fn last_epoch(&self) -> u64 {
        self.epochs.last().map_or(self.header.epoch, |last| last.epoch)
    }
}

/// The segment that holds a record.
pub(super) fn segment_path(journal: &Path, scan: &Scan, v: &ValidRecord) -> PathBuf {
    journal.join(segment_name(scan.segments[v.segment].index))
}
