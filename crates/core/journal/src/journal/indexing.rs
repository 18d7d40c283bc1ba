//! The index of the log: `index.N` beside `segment.N` has the heads, names and ranges of the records in it, and the places
//! of their contents. Readers and recovery read it in place of the segment.
//!
//! Entries are written after the records, and not flushed by themselves: an entry counts only along the chain of
//! checksums, and to recovery only if the record is known to be durable. Recovery reads the segment itself behind the
//! last such entry, up to the bound in the head of the index. So the bound is durable before a record lies beyond it:
//! one flush for each eighth of a segment.

use super::Journal;
use super::segment_index::Bound;
use crate::directories::spare::open_or_create;
use crate::directories::store_dir::log_index_name;
use crate::error::{Outcome, Result};
use crate::format::{BLOCK_BYTES, IndexHead, NO_BOUND, RecordHead, place_of};
use crate::invariant;
use crate::sync_point;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use untorn_os::{File, Open, holds, write_all_at};

/// Parts of a segment: the bound is raised by one at a time.
const PARTS: u64 = 8;

impl Journal {
    /// Whether recovery uses the index of this segment.
    fn is_bounded(&self, at: usize) -> bool {
        self.options.durable && self.segments[at].bytes > self.options.index_bytes_least
    }

    /// Whether the index of the current segment has entries.
    pub(super) fn is_indexed(&self) -> bool {
        self.undo.is_some() || self.is_bounded(self.current)
    }

    /// Writes the entries of the records that were just written to the current segment.
    pub(super) fn write_index(&mut self) {
        let at = self.current;
        if !self.is_indexed() || self.segments[at].log_index.has_gap {
            return;
        }
        let written = self.index_file(at).and_then(|file| {
            let segment = &mut self.segments[at];
            let in_memory = segment.is_in_memory();
            segment.log_index.append(&*file, &self.entries.bytes, in_memory)
        });
        self.segments[at].log_index.has_gap = written.is_err();
    }

    fn index_file(&mut self, at: usize) -> io::Result<Arc<dyn File>> {
        let segment = &mut self.segments[at];
        if let Some(file) = &segment.log_index.file {
            return Ok(file.clone());
        }
        let path = self.dir.join(log_index_name(segment.index));
        let file = match self.storage.open(&path, Open::WRITE) {
            Err(e) if e.kind() == ErrorKind::NotFound => open_or_create(&*self.storage, &path, false)?.0,
            there => there?,
        };
        segment.log_index.file = Some(file.clone());
        Ok(file)
    }

    /// Makes durable that the current segment is used up to this offset, before a record is written up to there.
    pub(super) fn raise_bound(&mut self, end: u64) -> Result<()> {
        let at = self.current;
        if !self.options.durable {
            return Ok(());
        }
        let (bytes, index) = (self.segments[at].bytes, &self.segments[at].log_index);
        let part = (bytes / PARTS).next_multiple_of(BLOCK_BYTES as u64);
        // A segment of which little is used is read as a whole, and so is the one with which an epoch begins: short
        // sessions flush nothing for it.
        let is_little = !self.is_bounded(at) || (!index.entered && end <= part);
        let bound = match index.bound {
            Bound::At(bound) if end <= bound || !holds(invariant::BOUND_RAISED) => return Ok(()),
            Bound::Unknown if is_little => return Ok(()),
            _ if is_little => NO_BOUND,
            _ => (end + part).min(bytes),
        };
        match self.write_bound(at, bound) {
            Ok(()) => {
                self.segments[at].log_index.bound = if bound == NO_BOUND { Bound::Unknown } else { Bound::At(bound) };
                Ok(())
            }
            Err(e) => self.remove_index(at, e),
        }
    }

    fn write_bound(&mut self, at: usize, bound: u64) -> io::Result<()> {
        let file = self.index_file(at)?;
        let segment = &self.segments[at];
        let head = IndexHead {
            epoch: self.epoch,
            first_lsn: match segment.first_lsn {
                0 => RecordHead::lsn_of(&self.buf),
                first_lsn => first_lsn,
            },
            bound,
            bytes: segment.bytes,
            place: place_of(&*file, &file.meta()?),
        };
        write_all_at(&*file, &head.encode(self.header.key), 0)?;
        file.sync_data(sync_point::INDEX_BOUND)
    }

    /// Removes an index whose head could not be written: without one, recovery reads the whole segment.
    fn remove_index(&mut self, at: usize, e: io::Error) -> Result<()> {
        self.segments[at].log_index.give_up();
        let removed = match self.storage.unlink(&self.dir.join(log_index_name(self.segments[at].index))) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            done => done,
        };
        match removed.and_then(|()| self.storage.sync_dir(&self.dir, sync_point::INDEX_REMOVED)) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.fail(Outcome::NotCommitted, e)),
        }
    }
}
