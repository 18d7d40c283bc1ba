//! Log that slots need when it is truncated: its files get second names, and are not written again.

use super::Journal;
use super::segment::{Segment, is_linked};
use crate::directories::store_dir::segment_name;
use crate::error::{Error, Result};
use crate::invariant;
use crate::slots::slot_log::SlotLog;
use crate::sync_point;
use untorn_os::holds;

impl Journal {
    /// The slots, and the log that is kept for them.
    pub fn slots(&self) -> &SlotLog {
        &self.slots
    }

    /// Gives second names to the segments and spill files with commits up to `to` that a slot needs, before a header
    /// truncates the log there. Frees the kept files that no slot needs any more.
    ///
    /// # Errors
    /// The list of epochs cannot be written. That a slot loses the log is no error.
    pub(super) fn keep_for_slots(&mut self, to: u64) -> Result<()> {
        let Some(after) = self.slots.needed_behind(to)? else { return self.look_at_links() };
        if after < to && holds(invariant::KEPT_FOR_SLOTS) {
            match self.link_log(after, to) {
                Ok(()) => self.slots.hold_caps(to),
                Err(e) => {
                    tracing::warn!(id = "untorn.slot.log_not_kept", error = %e, "log that slots need cannot be kept");
                    self.slots.lose(to)?;
                }
            }
        }
        self.look_at_links()
    }

    fn link_log(&mut self, after: u64, to: u64) -> std::io::Result<()> {
        let checkpoint_lsn = self.header.checkpoint_lsn;
        for (at, segment) in self.segments.iter_mut().enumerate() {
            let is_truncated = segment.last_lsn > checkpoint_lsn.max(after) && segment.first_lsn <= to;
            if is_truncated && segment.first_lsn > 0 {
                if self.unflushed.contains(&at) {
                    // A durable mark that a power cut took would leave a gap.
                    segment.flush(sync_point::KEPT_MARKS)?;
                }
                self.slots.keep_segment(&self.dir.join(segment_name(segment.index)), segment.first_lsn)?;
            }
        }
        for live in &self.spills {
            if after < live.last_lsn && live.last_lsn <= to && holds(invariant::KEPT_SPILLS) {
                self.slots.keep_spill(&self.dir, live.spill.id, live.last_lsn)?;
            }
        }
        Ok(())
    }

    /// Notes which segments have second names now.
    fn look_at_links(&mut self) -> Result<()> {
        if self.slots.is_used() {
            self.segments.iter_mut().for_each(|segment| segment.linked = is_linked(&*segment.file));
        }
        Ok(())
    }

    /// Frees all log that is kept for slots, because the disk has no room. Returns whether any was freed.
    pub fn lose_slots(&mut self) -> Result<bool> {
        let freed = self.slots.lose(self.header.checkpoint_lsn)?;
        self.look_at_links()?;
        Ok(freed)
    }

    /// Keeps all log that slots need, before a header empties the log, and goes on in a segment that is not kept.
    pub(super) fn keep_all_for_slots(&mut self) -> Result<()> {
        self.keep_for_slots(self.last_lsn())?;
        self.doomed.clear();
        if self.segments[self.current].linked && holds(invariant::KEPT_AT_CLOSE) {
            let last_lsn = self.last_lsn();
            let is_fresh = |s: &Segment| s.is_free(last_lsn) && s.bytes > 0 && s.first_block_crc.is_some();
            let at = match self.segments.iter().position(is_fresh) {
                Some(at) => at,
                None => match self.add_segment(self.options.segment_bytes_first) {
                    Err(Error::NoSpace { .. }) => {
                        self.slots.lose(last_lsn)?;
                        self.look_at_links()?;
                        return Ok(());
                    }
                    added => added?,
                },
            };
            self.begin_segment(at);
        }
        self.doom_kept(self.last_lsn());
        Ok(())
    }

    /// Chooses the kept segments whose commits are all truncated behind `to`: they lose their names in the journal when a
    /// header no longer lists them.
    pub(super) fn doom_kept(&mut self, to: u64) {
        let others = self.segments.iter().enumerate().filter(|(at, _)| *at != self.current);
        let kept = others.filter(|(_, segment)| segment.linked && segment.last_lsn <= to && segment.kept.is_none());
        let kept: Vec<u32> = kept.map(|(_, segment)| segment.index).collect();
        self.doomed.extend(kept.into_iter().filter(|index| !self.doomed.contains(index)).collect::<Vec<_>>());
    }

    /// Whether a segment is a part of the journal: neither kept for readers, nor for slots alone.
    pub(super) fn is_part(&self, at: usize) -> bool {
        let segment = &self.segments[at];
        let is_for_slots = segment.linked && segment.last_lsn <= self.header.checkpoint_lsn && at != self.current;
        segment.kept.is_none() && !is_for_slots
    }
}
