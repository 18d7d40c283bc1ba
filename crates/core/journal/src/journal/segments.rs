//! Segments of the journal: the choice of the next one for commits, and the creation of new ones.

use super::Journal;
use super::medium::Medium;
use super::segment::Segment;
use super::segment_index::SegmentIndex;
use crate::directories::store_dir::{create_segment, segment_name};
use crate::error::{Context, Error, Result};
use crate::format::{BLOCK_BYTES, crc64, encode_length};
use crate::sync_point;
use std::io;
use std::sync::Arc;
use untorn_os::{File, write_all_allowed_at};

impl Journal {
    /// Bytes of a segment that this process may write now. Its file-size limit may be lower than when the segment was
    /// made.
    pub(super) fn usable_bytes(&self, at: usize) -> u64 {
        self.segments[at].bytes.min(self.segment_bytes_here())
    }

    /// The largest segment that this process may write to (`RLIMIT_FSIZE`).
    pub(super) fn segment_bytes_here(&self) -> u64 {
        let limit = self.storage.file_size_limit();
        limit - limit % BLOCK_BYTES as u64
    }

    /// The largest current segment that this process may write to: there is no limit for stores to memory.
    pub(super) fn most_bytes_here(&self) -> u64 {
        match self.segments[self.current].is_in_memory() {
            true => u64::MAX,
            false => self.segment_bytes_here(),
        }
    }

    /// Refuses a record that fits into no segment of `most` bytes, which is the most that this process may write
    /// (`RLIMIT_FSIZE`). Nothing is written; with a higher limit the commit can succeed.
    pub(super) fn check_file_size_limit(&self, bytes: u64, most: u64) -> Result<()> {
        if bytes <= most {
            return Ok(());
        }
        let limit = self.storage.file_size_limit();
        let detail = format!(
            "this process may write files of {limit} bytes at most (RLIMIT_FSIZE, `ulimit -f`), and the commit needs \
             {bytes} in a segment of the journal in {}",
            self.dir.display()
        );
        Err(Error::NoSpace { detail })
    }

    /// Writes the buffer, whose records end at `records_end`, to the current segment. Where nothing waits for the disk,
    /// [`Journal::segment_bytes_here`] has just allowed its end.
    pub(super) fn write_buffer(&mut self, records_end: usize) -> io::Result<()> {
        let segment = &mut self.segments[self.current];
        match self.options.durable {
            true => segment.write(&self.buf, records_end, self.position),
            false => write_all_allowed_at(&*segment.file, &self.buf, self.position),
        }
    }

    /// Switches to a free segment with this much room, and makes one if the journal may grow.
    pub(super) fn switch_segment(&mut self, bytes: u64) -> Result<bool> {
        let checkpoint_lsn = self.header.checkpoint_lsn;
        let current = self.current;
        if self.position > 0 && self.segments[current].is_free(checkpoint_lsn) && self.usable_bytes(current) >= bytes {
            return Ok(self.begin_if_room(current, bytes));
        }
        let free = (0..self.segments.len())
            .filter(|at| *at != current)
            .filter(|at| self.segments[*at].is_free(checkpoint_lsn))
            .filter(|at| !self.doomed.contains(&self.segments[*at].index))
            .find(|at| self.usable_bytes(*at) >= bytes + self.reserved_here(*at));
        if let Some(at) = free {
            return Ok(self.begin_if_room(at, bytes));
        }
        let allocated = self.allocated_bytes();
        // Fourfold growth keeps the number of flushes for new segments small.
        let wanted =
            (3 * allocated).min(self.options.segment_bytes_max()).max(bytes.next_multiple_of(BLOCK_BYTES as u64));
        let left = self.options.journal_bytes.saturating_sub(allocated);
        let size = wanted.min(left - left % BLOCK_BYTES as u64).min(self.segment_bytes_here());
        if size < bytes {
            return self.replace_small_segments(bytes);
        }
        let Some(size) = self.size_that_fits(size, bytes) else { return Ok(false) };
        match self.add_segment(size) {
            Ok(at) => Ok(self.begin_if_room(at, bytes)),
            // Readers and slots get the space that commits leave.
            Err(Error::NoSpace { .. }) if self.take_kept_log()? || self.lose_slots()? => self.switch_segment(bytes),
            // If a checkpoint can free a segment, the caller runs one; otherwise it gets this error.
            Err(Error::NoSpace { .. }) if self.pending_bytes() > 0 => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Goes on at the beginning of a segment.
    pub(super) fn begin_segment(&mut self, at: usize) {
        (self.current, self.position) = (at, 0);
        let segment = &mut self.segments[at];
        segment.log_index.begin();
        (segment.first_lsn, segment.former) = (0, false);
        self.limit = u64::MAX;
    }

    /// Cuts segments back to their lengths before commits were appended to them, because the journal is empty. Returns
    /// the last of them: where the storage keeps order, its flush makes all cuts durable. They must be durable before
    /// anything is appended again: an earlier length must not cover a new record.
    pub(super) fn cut_segments(&mut self) -> Option<Arc<dyn File>> {
        let mut last = None;
        for at in 0..self.segments.len() {
            // Bytes that readers or slots need stay; the next owner finds a longer segment, as after a crash.
            if self.segments[at].appended == 0 || self.segments[at].linked || self.is_needed_by_readers(at) {
                continue;
            }
            let segment = &mut self.segments[at];
            // The attribute comes first, so that the segment is never shorter than its attribute says.
            let said = segment.file.set_attribute(&encode_length(segment.index, segment.bytes));
            if said.and_then(|()| segment.file.set_len(segment.bytes)).is_ok() {
                segment.appended = 0;
                last = Some(segment.file.clone());
            }
        }
        last
    }

    pub(super) fn add_segment(&mut self, bytes: u64) -> Result<usize> {
        debug_assert!(bytes > 0 && bytes.is_multiple_of(BLOCK_BYTES as u64), "a segment of {bytes} bytes");
        let index = (0..).find(|index| self.segments.iter().all(|s| s.index != *index)).expect("a free index");
        let durable = self.options.durable;
        let create = || create_segment(&*self.storage, &self.dir, index, bytes, durable, sync_point::SEGMENT_CONTENTS);
        let file = match create() {
            // An earlier attempt failed, and its file could not be removed.
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {
                let path = self.dir.join(segment_name(index));
                self.storage.unlink(&path).context("remove", &path)?;
                create()?
            }
            created => created?,
        };
        if durable && let Err(e) = self.storage.sync_dir(&self.dir, sync_point::SEGMENT_NAME) {
            // The next attempt makes the segment under the same name.
            let _ = self.storage.unlink(&self.dir.join(segment_name(index)));
            return Err(Error::io("flush", &self.dir, e));
        }
        // The attribute follows the flush of the length itself, and is flushed with the first commit, so that no crash
        // leaves a segment that claims a length it never had. If there is no room for it, the next header has the
        // length.
        let length_due = file.set_attribute(&encode_length(index, bytes)).is_ok();
        let at = self.segments.partition_point(|s| s.index < index);
        let first_block_crc = Some(crc64(&[0; BLOCK_BYTES]));
        let medium = Medium::allowed(self.options.memory);
        let mut segment = Segment { first_block_crc, length_due, medium, ..Segment::new(index, bytes, file) };
        if durable && bytes > self.options.index_bytes_least {
            // An index that could not be removed with its segment.
            segment.log_index = SegmentIndex::found(&*self.storage, &self.dir, index, self.header.key, true);
        }
        self.segments.insert(at, segment);
        if at <= self.current && self.segments.len() > 1 {
            self.current += 1;
        }
        self.unflushed.iter_mut().for_each(|other| *other += usize::from(at <= *other));
        Ok(at)
    }

    /// Adds a segment to a journal of which none is free. On a full disk, slots lose their log for it.
    pub(super) fn add_first_segment(&mut self) -> Result<usize> {
        match self.add_segment(self.options.segment_bytes_first) {
            Err(Error::NoSpace { .. }) if self.lose_slots()? => {
                let is_free = |s: &Segment| s.bytes > 0 && s.is_free(self.header.checkpoint_lsn);
                match self.segments.iter().position(is_free) {
                    Some(at) => Ok(at),
                    None => self.add_segment(self.options.segment_bytes_first),
                }
            }
            added => added,
        }
    }
}
