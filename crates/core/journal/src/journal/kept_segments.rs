//! Segments that a truncation gave up, and that readers of older commits or followers still need.
//!
//! They do not count as part of the journal, which gets other segments in their place. The segments that are too many
//! when the readers have ended are removed after the header that no longer lists them.

use super::{Journal, Segment};
use crate::directories::store_dir::segment_name;
use crate::error::Result;
use crate::invariant;
use crate::undo::page::Cell;
use untorn_os::holds;

impl Segment {
    /// Whether commits may overwrite it, with the log truncated behind this checkpoint.
    pub(super) fn is_free(&self, checkpoint_lsn: u64) -> bool {
        self.last_lsn <= checkpoint_lsn && self.kept.is_none()
    }
}

impl Journal {
    /// Keeps the segments that an earlier owner of this boot gave up, if somebody holds a commit or follows the log:
    /// which records they have is not known.
    pub(super) fn keep_former_segments(&mut self) -> Result<()> {
        let Some(undo) = self.undo.as_ref().filter(|_| holds(invariant::FORMER_SEGMENTS_KEPT)) else { return Ok(()) };
        let held = undo.page().holds()?;
        let checkpoint_lsn = self.header.checkpoint_lsn;
        let commits = 0..undo.page().told(Cell::Durable) + 1;
        if undo.needs_segment(&commits, checkpoint_lsn, &held) {
            for segment in self.segments.iter_mut().filter(|segment| segment.last_lsn <= checkpoint_lsn) {
                segment.kept = Some(commits.clone());
            }
        }
        self.free_kept_segments()
    }

    /// Keeps the segments which a truncation has just given up, if somebody needs them. Locks are listed here, after the
    /// header was written: readers that came during the checkpoint need the log before it.
    pub(super) fn keep_segments(&mut self, before: u64) -> Result<()> {
        let Some(undo) = self.undo.clone() else { return Ok(()) };
        let given_up = before + 1..self.header.checkpoint_lsn + 1;
        if !self.segments.iter().any(|segment| given_up.contains(&segment.last_lsn)) {
            return Ok(());
        }
        let held = undo.page().holds()?;
        let durable = undo.page().told(Cell::Durable);
        for segment in self.segments.iter_mut().filter(|segment| given_up.contains(&segment.last_lsn)) {
            let commits = segment.first_lsn..durable + 1;
            segment.kept = undo.needs_segment(&commits, segment.last_lsn, &held).then_some(commits);
        }
        self.free_kept_segments()
    }

    /// Frees the segments that nobody needs any more, and the oldest ones beyond the limit.
    pub fn free_kept_segments(&mut self) -> Result<()> {
        let Some(undo) = self.undo.clone() else { return Ok(()) };
        loop {
            if self.segments.iter().all(|segment| segment.kept.is_none()) {
                return undo.note_segments(0).map(drop);
            }
            let held = undo.page().holds()?;
            for segment in &mut self.segments {
                // Of a segment of an earlier owner, only the checkpoint bounds the commits in it.
                let last = if segment.last_lsn > 0 { segment.last_lsn } else { self.header.checkpoint_lsn };
                segment.kept = segment.kept.take().filter(|commits| undo.needs_segment(commits, last, &held));
            }
            if !undo.note_segments(self.kept_bytes())? {
                break;
            }
        }
        // Followers, and readers of the published commit, get what the limit leaves.
        while !undo.has_room(self.kept_bytes()) && self.free_oldest_segment() {}
        undo.note_segments(self.kept_bytes()).map(drop)
    }

    /// Frees segments because the disk or the journal has no room. Returns whether any was freed.
    pub(super) fn take_kept_segments(&mut self) -> Result<bool> {
        let Some(undo) = self.undo.clone() else { return Ok(false) };
        let before = self.kept_bytes();
        if before == 0 {
            return Ok(false);
        }
        if undo.give_up_one()? {
            self.free_kept_segments()?;
        }
        if self.kept_bytes() == before {
            self.free_oldest_segment();
            undo.note_segments(self.kept_bytes())?;
        }
        Ok(self.kept_bytes() < before)
    }

    fn free_oldest_segment(&mut self) -> bool {
        let kept = self.segments.iter_mut().filter(|segment| segment.kept.is_some());
        match kept.min_by_key(|segment| segment.last_lsn) {
            Some(oldest) => {
                oldest.kept = None;
                true
            }
            None => false,
        }
    }

    /// Bytes of segments that readers need.
    pub fn kept_bytes(&self) -> u64 {
        self.segments.iter().filter(|s| s.kept.is_some()).map(|s| s.bytes + s.appended).sum()
    }

    /// Chooses free segments beyond the journal's limit: the next header no longer lists them.
    pub(super) fn doom_segments(&mut self) {
        self.doomed.clear();
        let (most, checkpoint_lsn) = (self.options.journal_bytes, self.header.checkpoint_lsn);
        let mut allocated = self.allocated_bytes();
        for at in (0..self.segments.len()).rev() {
            let segment = &self.segments[at];
            if allocated <= most {
                return;
            }
            // A journal may be larger than its limit for one large record.
            let is_extra = at != self.current && at > 0 && segment.is_free(checkpoint_lsn) && segment.last_lsn > 0;
            if is_extra && allocated - segment.bytes - segment.appended >= most {
                allocated -= segment.bytes + segment.appended;
                self.doomed.push(segment.index);
            }
        }
    }

    /// Removes the segments that the header, which is durable, no longer lists.
    pub(super) fn remove_doomed(&mut self) {
        for index in std::mem::take(&mut self.doomed) {
            let Some(at) = self.segments.iter().position(|segment| segment.index == index) else { continue };
            let is_free = self.segments[at].is_free(self.header.checkpoint_lsn) && at != self.current;
            // One that cannot be removed is listed again by the next header.
            if is_free && self.storage.unlink(&self.dir.join(segment_name(index))).is_ok() {
                self.segments.remove(at);
                self.current -= usize::from(at < self.current);
                self.unflushed.iter_mut().for_each(|other| *other -= usize::from(at < *other));
            }
        }
    }
}
