//! Room on the disk: the journal grows only as far as the data files can still take its commits, and gives segments back
//! when they cannot.

use super::Journal;
use super::held_back::HeldBack;
use crate::error::Result;
use crate::format::BLOCK_BYTES;
use crate::sync_point;

impl Journal {
    /// Bytes that data files may need for the commits that wait for a checkpoint.
    fn waiting_bytes(&self) -> u64 {
        self.pending_bytes() + self.pending_spill_bytes()
    }

    /// Bytes of new commits for which the data files have room, besides the commits that wait; without a limit if that is
    /// not known.
    fn room_for_data(&self) -> u64 {
        let room = |free: u64| free.saturating_sub(self.waiting_bytes());
        self.storage.space().map_or(u64::MAX, |space| room(space.available_bytes))
    }

    /// Whether the data files have room for a commit of this many bytes, which lie in a spill file or will, too.
    pub fn has_room_for(&self, bytes: u64) -> bool {
        self.room_for_data() >= bytes
    }

    /// Whether the checkpoint for which the journal waited has failed.
    fn may_fill_disk(&self) -> bool {
        self.held_back == Some(HeldBack { checkpoint_lsn: self.header.checkpoint_lsn, is_over: true })
    }

    /// Waits for a checkpoint, which needs the room that commits would take. Returns false if nothing waits for one, or if
    /// it has failed.
    fn hold_back(&mut self) -> bool {
        let holds_back = self.pending_bytes() > 0 && !self.may_fill_disk();
        if holds_back {
            self.held_back = Some(HeldBack { checkpoint_lsn: self.header.checkpoint_lsn, is_over: false });
        }
        holds_back
    }

    /// Bytes of the current segment that commits may use, where this process may write files of `most` bytes: the data
    /// files need room for them, too.
    pub(super) fn limited_bytes(&self, most: u64) -> u64 {
        let usable = self.segments[self.current].bytes.min(most);
        if self.may_fill_disk() { usable } else { usable.min(self.limit) }
    }

    /// Whether commits may go on at the beginning of a free segment, beginning with one of this many bytes. Without
    /// commits that wait, one may in any case: it may be the one that makes room.
    pub(super) fn begin_if_room(&mut self, at: usize, bytes: u64) -> bool {
        let room = self.room_for_data();
        if room < bytes && self.hold_back() {
            return false;
        }
        self.begin_segment(at);
        self.limit = (room - room % BLOCK_BYTES as u64).max(bytes.next_multiple_of(BLOCK_BYTES as u64));
        true
    }

    /// The size of a new segment, of at most `wanted` bytes and at least `least`, that leaves the data files room for its
    /// commits. `None` if a checkpoint comes first.
    pub(super) fn size_that_fits(&mut self, wanted: u64, least: u64) -> Option<u64> {
        let room = self.room_for_data();
        if room / 2 >= wanted {
            return Some(wanted);
        }
        if self.hold_back() {
            return None;
        }
        let half = room / 2;
        Some(wanted.min(half - half % BLOCK_BYTES as u64).max(least.next_multiple_of(BLOCK_BYTES as u64)))
    }

    /// Lets the journal take the room after all for which it waited, because the checkpoint has failed. Returns false if
    /// it did not wait, or was let before.
    pub fn end_holding_back(&mut self) -> bool {
        let waits = HeldBack { checkpoint_lsn: self.header.checkpoint_lsn, is_over: false };
        let waited = self.held_back == Some(waits);
        if waited {
            self.held_back = Some(HeldBack { is_over: true, ..waits });
        }
        waited
    }

    /// Removes the segments that have no commits, because a data file finds no room. The header that no longer lists
    /// them is durable first. Returns whether it removed any.
    pub fn give_back(&mut self) -> Result<bool> {
        if self.failed.is_some() {
            return Ok(false);
        }
        if self.lose_slots()? {
            return Ok(true);
        }
        self.doom_all_free();
        if self.doomed.is_empty() {
            return Ok(false);
        }
        let write = self.header_write(self.next_header(), sync_point::HEADER);
        if let Err(e) = write.write() {
            self.doomed.clear();
            // After a failed flush, the written header may be in the page cache only.
            return if e.is_failed_flush() { Err(e) } else { Ok(false) };
        }
        let before = self.segments.len();
        self.finish_truncate(write);
        Ok(self.segments.len() < before)
    }

    /// Frees the log that is kept for slots, because the data files have no room for a commit of this many bytes. Returns
    /// whether they have then.
    pub fn lose_slots_for(&mut self, bytes: u64) -> Result<bool> {
        // Segments that were kept are a part of the journal again.
        Ok(self.lose_slots()? && (self.has_room_for(bytes) || self.give_back()? && self.has_room_for(bytes)))
    }

    /// Chooses all free segments but the current one, that with which the next epoch begins, and the smallest other one:
    /// commits that wait can be restated only from one segment to another.
    fn doom_all_free(&mut self) {
        self.doomed.clear();
        let checkpoint_lsn = self.header.checkpoint_lsn;
        let others = (0..self.segments.len()).filter(|at| *at != self.current);
        let mut free: Vec<usize> = others.filter(|at| self.segments[*at].is_free(checkpoint_lsn)).collect();
        free.sort_by_key(|at| (self.usable_bytes(*at) < self.reserved, self.segments[*at].bytes));
        let doomed = free.into_iter().skip(1).map(|at| self.segments[at].index);
        self.doomed = doomed.filter(|index| *index != self.header.start_segment).collect();
    }
}
