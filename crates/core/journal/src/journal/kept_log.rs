//! Segments and spill files that a truncation gave up, and that readers of older commits or followers still need.
//!
//! Kept segments do not count as part of the journal, which gets other segments in their place. The segments that are
//! too many when the readers have ended are removed after the header that no longer lists them.

use super::Journal;
use super::segment::Segment;
use super::spill_files::{KeptSpill, LiveSpill};
use crate::commits::spill::{Spill, spill_id};
use crate::directories::store_dir::{log_index_name, segment_name};
use crate::error::Result;
use crate::invariant;
use crate::undo::holds::Holds;
use crate::undo::keep::Undo;
use crate::undo::page::Cell;
use std::ops::Range;
use untorn_os::holds;

impl Journal {
    /// Keeps the segments that an earlier owner of this boot gave up, if somebody holds a commit or follows the log:
    /// which records they have is not known.
    pub(super) fn keep_former_log(&mut self) -> Result<()> {
        let Some(undo) = self.undo.as_ref().filter(|_| holds(invariant::FORMER_SEGMENTS_KEPT)) else { return Ok(()) };
        let held = undo.page().holds()?;
        let checkpoint_lsn = self.header.checkpoint_lsn;
        let commits = 0..undo.page().told(Cell::Durable) + 1;
        if !undo.needs_log(&commits, checkpoint_lsn, &held) {
            return Ok(());
        }
        for segment in self.segments.iter_mut().filter(|segment| segment.last_lsn <= checkpoint_lsn) {
            segment.kept = Some(commits.clone());
        }
        self.free_kept_log()
    }

    /// Keeps spill files that an earlier owner gave up and readers may need. Returns whether it did.
    pub fn keep_former_spills(&mut self, names: &[String]) -> Result<bool> {
        let Some(undo) = self.undo.clone() else { return Ok(false) };
        let held = undo.page().holds()?;
        let (commits, last_lsn) = (0..undo.page().told(Cell::Durable) + 1, self.header.checkpoint_lsn);
        if !undo.needs_log(&commits, last_lsn, &held) {
            return Ok(false);
        }
        for id in names.iter().filter_map(|name| spill_id(name)) {
            if let Ok(spill) = Spill::open(&self.storage, &self.dir, id) {
                self.kept_spills.push(KeptSpill { spill, commits: commits.clone(), last_lsn });
            }
        }
        self.free_kept_log()?;
        Ok(true)
    }

    /// Keeps the segments and spill files which a truncation has just given up, if somebody needs them. Locks are listed
    /// here, after the header was written: readers that came during the checkpoint need the log before it.
    pub(super) fn keep_log(&mut self, before: u64, spills: Vec<LiveSpill>) {
        let given_up = before + 1..self.header.checkpoint_lsn + 1;
        let Some(undo) = self.undo.clone() else { return spills.iter().for_each(|e| e.spill.clear_referenced()) };
        if spills.is_empty() && !self.segments.iter().any(|segment| given_up.contains(&segment.last_lsn)) {
            return;
        }
        let held = undo.page().holds();
        let durable = undo.page().told(Cell::Durable);
        // Without a list of readers, everything may be needed.
        let is_needed = |commits: &Range<u64>, last: u64| {
            held.as_ref().map_or(true, |held: &Holds| undo.needs_log(commits, last, held))
        };
        for segment in self.segments.iter_mut().filter(|segment| given_up.contains(&segment.last_lsn)) {
            let commits = segment.readers_commits(durable);
            segment.kept = is_needed(&commits, segment.last_lsn).then_some(commits);
        }
        for LiveSpill { spill, first_lsn, last_lsn } in spills {
            let commits = first_lsn..durable + 1;
            match is_needed(&commits, last_lsn) {
                true => self.kept_spills.push(KeptSpill { spill, commits, last_lsn }),
                false => spill.clear_referenced(),
            }
        }
        if let Err(e) = self.free_kept_log() {
            tracing::warn!(id = "untorn.readers.log_stays", error = %e, "a part of the log stays for readers");
        }
    }

    /// Whether a segment of an empty log is kept, or will be kept when the truncation is finished.
    pub(super) fn is_needed_by_readers(&self, at: usize) -> bool {
        let (segment, Some(undo)) = (&self.segments[at], &self.undo) else { return false };
        let commits = segment.readers_commits(undo.page().told(Cell::Durable));
        let held = undo.page().holds();
        segment.kept.is_some() || held.map_or(true, |held| undo.needs_log(&commits, segment.last_lsn, &held))
    }

    /// Frees the segments and spill files that nobody needs any more, and the oldest ones beyond the limit.
    pub fn free_kept_log(&mut self) -> Result<()> {
        let Some(undo) = self.undo.clone() else { return Ok(()) };
        loop {
            if self.kept_bytes() == 0 {
                return undo.note_log(0).map(drop);
            }
            self.free_unneeded(&undo)?;
            if !undo.note_log(self.kept_bytes())? {
                break;
            }
        }
        // Followers get the space that the limit leaves. Snapshots of the published commit are kept until there is a
        // newer one.
        let held = undo.page().holds()?;
        while !undo.has_room(self.kept_bytes()) && self.free_oldest(&held) {}
        undo.note_log(self.kept_bytes()).map(drop)
    }

    fn free_unneeded(&mut self, undo: &Undo) -> Result<()> {
        let held = undo.page().holds()?;
        for segment in &mut self.segments {
            // Of a segment of an earlier owner, only the checkpoint bounds the commits in it.
            let last = if segment.last_lsn > 0 { segment.last_lsn } else { self.header.checkpoint_lsn };
            segment.kept = segment.kept.take().filter(|commits| undo.needs_log(commits, last, &held));
        }
        let freed = self.kept_spills.extract_if(.., |kept| !undo.needs_log(&kept.commits, kept.last_lsn, &held));
        freed.for_each(|kept| kept.spill.clear_referenced());
        Ok(())
    }

    /// Frees a part of the kept log because the disk or the journal has no room. Returns whether anything was freed.
    pub(super) fn take_kept_log(&mut self) -> Result<bool> {
        let Some(undo) = self.undo.clone() else { return Ok(false) };
        let (before, all) = (self.kept_bytes(), undo.bytes());
        if undo.give_up_one()? {
            self.free_kept_log()?;
        }
        if self.kept_bytes() == before && undo.bytes() == all && !self.free_oldest(&undo.page().holds()?) {
            undo.give_up_published()?;
            self.free_kept_log()?;
        }
        undo.note_log(self.kept_bytes())?;
        Ok(self.kept_bytes() < before || undo.bytes() < all)
    }

    /// Frees the oldest part of the log that is kept for followers only.
    fn free_oldest(&mut self, held: &Holds) -> bool {
        let is_followed = |commits: &Range<u64>| !held.any_in(commits.clone());
        let segments = self.segments.iter().enumerate();
        let segment = segments.filter(|(_, segment)| segment.kept.as_ref().is_some_and(is_followed));
        let segment = segment.map(|(at, segment)| (segment.last_lsn, at)).min();
        let spills = self.kept_spills.iter().enumerate().filter(|(_, kept)| is_followed(&kept.commits));
        let spill = spills.map(|(at, kept)| (kept.last_lsn, at)).min();
        match (segment, spill) {
            (Some((lsn, at)), spill) if spill.is_none_or(|(of_spill, _)| lsn <= of_spill) => {
                self.segments[at].kept = None
            }
            (_, Some((_, at))) => self.kept_spills.swap_remove(at).spill.clear_referenced(),
            _ => return false,
        }
        true
    }

    /// Bytes of the log that are kept for readers.
    pub fn kept_bytes(&self) -> u64 {
        let segments = self.segments.iter().filter(|s| s.kept.is_some()).map(|s| s.bytes + s.appended);
        segments.chain(self.kept_spills.iter().map(|kept| kept.spill.len())).sum()
    }

    /// Chooses free segments beyond the journal's limit: the next header no longer lists them.
    pub(super) fn doom_segments(&mut self) {
        self.doomed.clear();
        let (most, checkpoint_lsn) = (self.options.journal_bytes, self.header.checkpoint_lsn);
        let mut excess = self.allocated_bytes().saturating_sub(most);
        // The header names a segment with which the next epoch begins.
        let is_named = |segment: &Segment| segment.index == self.header.start_segment;
        let others = (0..self.segments.len()).filter(|at| *at != self.current && !is_named(&self.segments[*at]));
        // A journal may be larger than its limit for one large record, so the small ones go first.
        let mut free: Vec<&Segment> =
            others.map(|at| &self.segments[at]).filter(|s| s.is_free(checkpoint_lsn)).collect();
        free.sort_by_key(|segment| segment.bytes + segment.appended);
        for segment in free {
            let bytes = segment.bytes + segment.appended;
            if bytes <= excess {
                excess -= bytes;
                self.doomed.push(segment.index);
            }
        }
    }

    /// Removes the segments that the header, which is durable, no longer lists.
    pub(super) fn remove_doomed(&mut self) {
        for index in std::mem::take(&mut self.doomed) {
            debug_assert_ne!(index, self.header.start_segment, "the segment that the header names is removed");
            let Some(at) = self.segments.iter().position(|segment| segment.index == index) else { continue };
            let is_free = self.segments[at].is_done(self.header.checkpoint_lsn) && at != self.current;
            // One that cannot be removed is listed again by the next header.
            if is_free && self.storage.unlink(&self.dir.join(segment_name(index))).is_ok() {
                let _ = self.storage.unlink(&self.dir.join(log_index_name(index)));
                self.segments.remove(at);
                self.current -= usize::from(at < self.current);
                // It may have had a durable mark.
                self.unflushed.retain(|other| *other != at);
                self.unflushed.iter_mut().for_each(|other| *other -= usize::from(at < *other));
            }
        }
    }
}
