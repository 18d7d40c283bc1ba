//! One crash state: a moment, and the fate of each write that no flush covered.

use super::recording::{Recording, apply};
use crate::device::{Event, Image};
use std::collections::BTreeMap;

/// The unit that a disk writes completely or not at all.
pub const SECTOR_BYTES: usize = 512;

/// The fate of one write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is there completely.
    Kept,
    /// It is lost completely.
    Lost,
    /// For each sector, whether it is there.
    Torn(Vec<bool>),
}

impl Fate {
    /// Whether any part of it is there.
    pub fn left_something(&self) -> bool {
        match self {
            Fate::Kept => true,
            Fate::Lost => false,
            Fate::Torn(sectors) => sectors.contains(&true),
        }
    }
}

/// A power cut, and the writes that it left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The seed from which it was drawn.
    pub seed: u64,
    /// Events before the cut.
    pub cut: usize,
    /// The fate of each write since the last flush, by its event.
    pub fates: BTreeMap<usize, Fate>,
}

/// The way in which a state is drawn: which of the unflushed writes stay.
#[derive(Clone, Copy)]
enum Manner {
    /// No write.
    Nothing,
    /// Each at random, with this probability in percent.
    Each(u8),
    /// All but one.
    AllButOne,
    /// Only one.
    OnlyOne,
    /// All writes before a certain one, and a part of that one.
    Prefix,
}

impl State {
    /// Draws a state. None if no write was pending at the drawn moment.
    pub fn draw(recording: &Recording, seed: u64) -> Option<State> {
        let mut random = fastrand::Rng::with_seed(seed);
        let window = recording.window();
        let cut = if random.bool() {
            random.usize(window)
        } else {
            // A flush that covers little counts as much as one that covers a lot.
            let is_end = |n: &usize| recording.events.get(*n).is_none_or(|event| *event == Event::Flush);
            let ends: Vec<usize> = window.clone().filter(is_end).collect();
            let end = ends[random.usize(..ends.len())];
            random.usize(recording.flushed(end).max(window.start)..=end)
        };
        let since = recording.flushed(cut);
        // The kernel relies on its superblock being written completely: fsck, not mount, repairs a torn one.
        let superblock = recording.fs.superblock();
        let pending: Vec<(usize, usize)> = (since..cut)
            .filter_map(|n| match &recording.events[n] {
                Event::Write { offset, .. } if superblock.contains(offset) => Some((n, 0)),
                Event::Write { bytes, .. } => Some((n, bytes.len())),
                _ => None,
            })
            .collect();
        if pending.is_empty() {
            return None;
        }
        let manner = match random.u8(..8) {
            0 => Manner::Nothing,
            1 => Manner::Each(10),
            2 | 3 => Manner::Each(50),
            4 => Manner::Each(90),
            5 => Manner::AllButOne,
            6 => Manner::OnlyOne,
            _ => Manner::Prefix,
        };
        let tears = random.bool();
        let chosen = random.usize(..pending.len());
        let mut fate = |n: usize, length: usize| {
            let kept = match manner {
                Manner::Nothing => false,
                Manner::Each(percent) => random.u8(..100) < percent,
                Manner::AllButOne => n != chosen,
                Manner::OnlyOne => n == chosen,
                Manner::Prefix => n < chosen,
            };
            let torn = match manner {
                Manner::Nothing => false,
                Manner::Each(_) => tears && random.u8(..4) == 0,
                _ => tears && n == chosen,
            };
            match (torn && length > SECTOR_BYTES, kept) {
                (true, _) => tear(length.div_ceil(SECTOR_BYTES), &mut random),
                (false, true) => Fate::Kept,
                (false, false) => Fate::Lost,
            }
        };
        let fates = pending.iter().enumerate().map(|(n, (event, length))| (*event, fate(n, *length))).collect();
        Some(State { seed, cut, fates })
    }

    /// The disk in this state, made from the disk at the last flush.
    pub fn image(&self, recording: &Recording, flushed: &Image) -> Image {
        let mut image = flushed.clone();
        for (event, fate) in &self.fates {
            let Event::Write { offset, bytes } = &recording.events[*event] else { continue };
            match fate {
                Fate::Lost => {}
                Fate::Kept => image.write(*offset, bytes),
                Fate::Torn(sectors) => {
                    let parts = bytes.chunks(SECTOR_BYTES).zip(sectors).enumerate();
                    for (n, (part, _)) in parts.filter(|(_, (_, there))| **there) {
                        image.write(offset + (n * SECTOR_BYTES) as u64, part);
                    }
                }
            }
        }
        image
    }

    /// The disk if every write before the cut had reached it.
    pub fn full(&self, recording: &Recording, flushed: &Image) -> Image {
        let mut image = flushed.clone();
        apply(&mut image, &recording.events[recording.flushed(self.cut)..self.cut]);
        image
    }

    /// Whether a write is there, and an earlier one is not.
    pub fn is_reordered(&self) -> bool {
        let mut lost = false;
        self.fates.values().any(|fate| {
            let found = lost && fate.left_something();
            lost |= *fate != Fate::Kept;
            found
        })
    }

    /// This state on a disk that does not tear: partial writes become complete.
    pub fn with_whole_writes(&self) -> State {
        let mut whole = self.clone();
        whole.fates.values_mut().filter(|fate| matches!(fate, Fate::Torn(_))).for_each(|fate| *fate = Fate::Kept);
        whole
    }

    /// Whether a write is there only in part.
    pub fn is_torn(&self) -> bool {
        self.fates.values().any(|fate| matches!(fate, Fate::Torn(_)))
    }
}

/// Keeps some sectors and loses at least one.
fn tear(sectors: usize, random: &mut fastrand::Rng) -> Fate {
    let mut there: Vec<bool> = match random.u8(..3) {
        0 => {
            let first = random.usize(..sectors);
            (0..sectors).map(|n| n < first).collect()
        }
        1 => {
            let first = random.usize(..sectors);
            (0..sectors).map(|n| n > first).collect()
        }
        _ => (0..sectors).map(|_| random.bool()).collect(),
    };
    if there.iter().all(|t| *t) {
        let lost = random.usize(..sectors);
        there[lost] = false;
    }
    Fate::Torn(there)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::FileSystem;
    use std::collections::HashSet;

    fn recording() -> Recording {
        let write = |offset: u64, byte, length| Event::Write { offset, bytes: vec![byte; length].into() };
        let mark = Event::Mark(super::super::recording::BEGIN.into());
        let events = vec![
            write(0, 9, 512),
            mark,
            write(4096, 1, 1024),
            Event::Flush,
            write(8192, 2, 512),
            write(4096, 3, 2048),
            Event::Line("three".into()),
        ];
        let base = Image::empty(1 << 20);
        Recording { fs: FileSystem::Xfs, base, events, said_before: Vec::new() }
    }

    #[test]
    fn what_was_flushed_stays_and_every_part_of_the_rest_may() {
        let recording = recording();
        let (mut seen, mut torn, mut reordered) = (HashSet::new(), false, false);
        for seed in 0..20_000 {
            let Some(state) = State::draw(&recording, seed) else { continue };
            assert_eq!(Some(&state), State::draw(&recording, seed).as_ref(), "seed {seed}");
            let flushed = recording.image(recording.flushed(state.cut));
            let image = state.image(&recording, &flushed);
            let at = |offset: u64| {
                let page = image.pages().find(|(at, _)| *at == offset / 4096 * 4096);
                page.map_or(0, |(_, page)| page[(offset % 4096) as usize])
            };
            if state.cut >= 4 {
                assert_eq!(at(0), 9, "seed {seed}");
                assert!((at(4096) == 1 || at(4096) == 3) && at(4096 + 1024) % 3 == 0, "seed {seed}");
            }
            seen.insert((state.cut, at(4096), at(4096 + 512), at(4096 + 1024), at(8192)));
            torn |= state.is_torn();
            reordered |= state.is_reordered();
        }
        assert!(torn && reordered);
        let at_the_end = seen.iter().filter(|state| state.0 == 7).count();
        assert_eq!(at_the_end, 16, "three sectors that matter, and another write");
    }
}
