//! The effects of syncs, and of failed syncs.

use super::disk_options::{Failed, Profile};
use super::disk_state::{State, Unreadable};
use super::effect::{Effect, chosen_by_directory_sync, chosen_by_file_sync};
use super::inodes::Slot;
use std::ops::Range;
use std::sync::Arc;
use std::thread::ThreadId;

impl State {
    /// Makes the chosen effects durable.
    fn settle(&mut self, mut chosen: Vec<bool>) {
        self.flush_device(&mut chosen);
        if !chosen.contains(&true) {
            return;
        }
        self.clip_overtaken(&mut chosen);
        let mut left = Vec::new();
        for (effect, chosen) in self.pending.iter().zip(&chosen) {
            if *chosen {
                effect.apply_whole(&mut self.durable);
            } else {
                left.push(effect.clone());
            }
        }
        self.pending = Arc::new(left);
        let waits = |bad: &Unreadable| {
            let is_of_it = |e: &Effect| {
                let overlaps =
                    |(range, _): (Range<u64>, bool)| range.start < bad.range.end && bad.range.start < range.end;
                e.slot() == bad.slot && e.contents().is_some_and(overlaps)
            };
            self.pending.iter().any(|e| is_of_it(e))
        };
        let still = self.unreadable.iter().filter(|bad| !bad.is_written || waits(bad)).cloned().collect();
        self.unreadable = still;
        self.share();
    }

    /// A size that becomes durable before an earlier write of the same file must not be undone when that write lands
    /// later, and bytes that a truncation cut off must not come back.
    fn clip_overtaken(&mut self, chosen: &mut [bool]) {
        for i in 0..chosen.len() {
            let Effect::Size { slot, to: Some(size), .. } = *self.pending[i] else { continue };
            if !chosen[i] {
                continue;
            }
            for (j, chosen) in chosen[..i].iter_mut().enumerate() {
                let Some((Range { start: from, end: to }, grows)) = self.pending[j].contents() else { continue };
                if *chosen || self.pending[j].slot() != slot {
                    continue;
                }
                if from < size && size < to {
                    *chosen = true;
                } else if grows || from >= size {
                    let effect = Arc::make_mut(&mut Arc::make_mut(&mut self.pending)[j]);
                    match effect {
                        Effect::Write { patches, grows, .. } => {
                            *grows = false;
                            if from >= size {
                                patches.clear();
                            }
                        }
                        Effect::Store(stored) => stored.bytes = Arc::new([]),
                        _ => {}
                    }
                }
            }
        }
    }

    /// Shares the images if nothing is pending: then disk and cache are the same, and the next copies are cheap.
    fn share(&mut self) {
        if self.pending.is_empty() && !self.diverged {
            self.durable = self.live.clone();
        }
    }

    fn file_sync_choice(&self, slot: Slot, all: bool) -> Vec<bool> {
        if self.live.get(slot).is_some_and(|inode| inode.is_directory()) {
            return chosen_by_directory_sync(&self.pending, slot, self.options.profile);
        }
        chosen_by_file_sync(&self.pending, slot, all, self.options.profile)
    }

    pub fn sync_file(&mut self, slot: Slot, all: bool) {
        self.settle(self.file_sync_choice(slot, all));
        self.settle_time(slot);
    }

    /// Makes durable what a thread has stored to the lines of a file, and what lies below it.
    pub fn fence(&mut self, slot: Slot, thread: ThreadId) {
        let is_own =
            |e: &Effect| matches!(e, Effect::Store(stored) if stored.slot == slot && stored.by == Some(thread));
        let mut fenced: Vec<Range<u64>> = Vec::new();
        let is_fenced = |e: &Arc<Effect>| {
            let Some((range, _)) = e.contents().filter(|_| e.slot() == slot) else { return false };
            let lies_below = fenced.iter().any(|over| range.start < over.end && over.start < range.end);
            let chosen = is_own(e) || lies_below;
            fenced.extend(chosen.then_some(range));
            chosen
        };
        // From the last one on: the later ones lie over the earlier ones.
        let mut chosen: Vec<bool> = self.pending.iter().rev().map(is_fenced).collect();
        chosen.reverse();
        self.settle(chosen);
    }

    /// Sends the contents of a file to the cache of the device. Without an ordered log, this has no effect.
    pub fn write_out(&mut self, slot: Slot) {
        if matches!(self.options.profile, Profile::Ext4 | Profile::Xfs) && self.waits(slot) {
            self.push(Effect::WrittenOut { slot });
        }
    }

    /// Adds to a flush all data in the cache of the device. A size that came with contents is an entry of the log, and
    /// becomes durable only with the log.
    fn flush_device(&self, chosen: &mut [bool]) {
        let log_end = chosen.iter().zip(&*self.pending).rposition(|(chosen, effect)| *chosen && effect.is_logged());
        for (out_at, effect) in self.pending.iter().enumerate() {
            let Effect::WrittenOut { slot: out } = **effect else { continue };
            let mut all = true;
            for (at, effect) in self.pending[..out_at].iter().enumerate() {
                if let Some((_, grows)) = effect.contents().filter(|_| effect.slot() == out) {
                    // A later write of the file includes sectors of an earlier one, and replaces them.
                    chosen[at] |= all && (!grows || log_end.is_some_and(|end| out_at < end));
                    all &= chosen[at];
                }
            }
            chosen[out_at] = all;
        }
    }

    fn settle_time(&mut self, slot: Slot) {
        if let Some(live) = self.live.get(slot) {
            self.durable.set_time(slot, live.mtime_ns);
        }
    }

    pub fn sync_directory(&mut self, slot: Slot) {
        self.settle(chosen_by_directory_sync(&self.pending, slot, self.options.profile));
    }

    pub fn sync_file_system(&mut self) {
        self.settle(vec![true; self.pending.len()]);
    }

    /// Fails the writeback of one file, or of all. Writes through the cache are marked clean and forgotten. A direct
    /// write may or may not survive, so it stays pending, and so does each write on byte-addressable memory: there is no
    /// page cache, and a file system that cannot log a new size takes no more writes.
    pub fn fail_writeback(&mut self, slot: Option<Slot>, how: Failed) {
        let of_file = |e: &Effect| slot.is_none_or(|slot| e.slot() == slot);
        let has_cache = !self.options.lines;
        let is_cached = |e: &Effect| has_cache && matches!(e, Effect::Write { direct: false, .. });
        let is_hit = |e: &Effect| of_file(e) && e.is_write() && (how == Failed::Landed || is_cached(e));
        let count = self.pending.iter().filter(|e| is_hit(e)).count();
        let landing = match how {
            Failed::Lost => 0,
            Failed::Half => count / 2,
            Failed::Landed => count,
        };
        if matches!(self.options.profile, Profile::Ext4 | Profile::Xfs) {
            // A new size that lands comes after the earlier entries of the log.
            let lands = self.pending.iter().enumerate().filter(|(_, e)| is_hit(e)).take(landing);
            if let Some((end, _)) = lands.filter(|(_, e)| e.resizes()).last() {
                self.settle(self.pending.iter().enumerate().map(|(at, e)| at < end && e.is_logged()).collect());
            }
        }
        let hit: Vec<bool> = self.pending.iter().map(|e| is_hit(e)).collect();
        let mut left = Vec::new();
        let mut seen = 0;
        for (effect, hit) in self.pending.iter().zip(&hit) {
            if !hit {
                left.push(effect.clone());
                continue;
            }
            if seen < landing {
                effect.apply_whole(&mut self.durable);
            } else {
                self.diverged = true;
            }
            seen += 1;
        }
        self.pending = Arc::new(left);
        self.share();
    }

    /// Whether a file has contents that are waiting to be written.
    pub fn waits(&self, slot: Slot) -> bool {
        self.pending.iter().any(|e| e.is_write() && e.slot() == slot)
    }
}
