//! Room of the pack: extents whose sizes are powers of two, each at a multiple of its size, as a buddy system.
//!
//! Free room is not recorded: all room that no row has is free.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

/// The smallest extent.
const UNIT: u64 = 64;
/// The most bytes of an extent.
pub(crate) const EXTENT_MAX: usize = 64 << 10;
/// Room is added, and given back, in blocks of this size: 64 << 14.
pub(crate) const BLOCK: u64 = 1 << 20;
const BLOCK_EXPONENT: usize = 14;

/// Position and length of bytes in the pack. They occupy the next power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Extent {
    pub offset: u64,
    pub len: NonZeroU32,
}

impl Extent {
    /// Number of its bytes.
    pub fn len(self) -> usize {
        self.len.get() as usize
    }

    /// End of its bytes.
    pub fn end(self) -> u64 {
        self.offset.saturating_add(u64::from(self.len.get()))
    }

    fn exponent(self) -> usize {
        exponent_for(self.len())
    }

    /// End of the room that it occupies.
    pub fn room_end(self) -> u64 {
        self.offset.saturating_add(UNIT << self.exponent())
    }

    /// Whether an extent can have this position and length.
    pub fn is_possible(self) -> bool {
        self.len() <= EXTENT_MAX
            && self.offset.is_multiple_of(UNIT << self.exponent())
            && self.offset <= i64::MAX as u64 - BLOCK
    }

    /// The extent for other bytes in its place, if `len` bytes occupy the same room.
    pub fn with_len(self, len: usize) -> Option<Extent> {
        let len = NonZeroU32::new(u32::try_from(len).ok()?)?;
        (exponent_for(len.get() as usize) == self.exponent()).then_some(Extent { len, ..self })
    }

    /// Its first bytes, at most `most`; `None` if there are none.
    pub fn with_first(self, most: u64) -> Option<Extent> {
        let len = NonZeroU32::new(u64::from(self.len.get()).min(most) as u32)?;
        Some(Extent { len, ..self })
    }
}

fn exponent_for(len: usize) -> usize {
    (len as u64).div_ceil(UNIT).next_power_of_two().trailing_zeros() as usize
}

/// Free room, by exponent of the size.
pub(crate) struct Extents {
    free: [BTreeSet<u64>; BLOCK_EXPONENT + 1],
    end: u64,
}

impl Extents {
    /// Finds the free room around used extents; `None` if two of them overlap, or one is impossible.
    pub fn around(mut used: Vec<Extent>) -> Option<Extents> {
        used.sort_unstable();
        let mut extents = Extents { free: Default::default(), end: 0 };
        let mut at = 0;
        for extent in used {
            if !extent.is_possible() || extent.offset < at {
                return None;
            }
            extents.fill(at, extent.offset);
            at = extent.room_end();
        }
        extents.end = at.next_multiple_of(BLOCK);
        extents.fill(at, extents.end);
        Some(extents)
    }

    /// Frees a range, as the largest pieces that lie at multiples of their sizes.
    fn fill(&mut self, mut at: u64, end: u64) {
        debug_assert!(
            at <= end && at.is_multiple_of(UNIT) && end.is_multiple_of(UNIT),
            "room from {at} to {end} is not of whole units"
        );
        while at < end {
            let aligned = (at / UNIT).trailing_zeros() as usize;
            let fits = ((end - at) / UNIT).ilog2() as usize;
            let exponent = aligned.min(fits).min(BLOCK_EXPONENT);
            self.free[exponent].insert(at);
            at += UNIT << exponent;
        }
    }

    /// Allocates room for 1 to [`EXTENT_MAX`] bytes: the first of the smallest free pieces, so that used extents lie
    /// together.
    pub fn give(&mut self, len: usize) -> Option<Extent> {
        let len = NonZeroU32::new(u32::try_from(len).ok().filter(|len| *len as usize <= EXTENT_MAX)?)?;
        let exponent = exponent_for(len.get() as usize);
        let found = (exponent..=BLOCK_EXPONENT).find(|larger| !self.free[*larger].is_empty());
        let (offset, larger) = match found {
            Some(larger) => (self.free[larger].pop_first()?, larger),
            None => {
                self.end += BLOCK;
                (self.end - BLOCK, BLOCK_EXPONENT)
            }
        };
        // The upper halves stay free.
        for half in exponent..larger {
            self.free[half].insert(offset + (UNIT << half));
        }
        let extent = Extent { offset, len };
        debug_assert!(
            extent.is_possible() && self.is_used(extent) && extent.room_end() <= self.end,
            "{extent:?} is given in a pack of {} bytes",
            self.end
        );
        Some(extent)
    }

    /// Frees an extent; returns its block if all of the block is free now.
    pub fn take_back(&mut self, extent: Extent) -> Option<u64> {
        debug_assert!(self.is_used(extent), "{extent:?} is freed, and is not in use");
        let (mut offset, mut exponent) = (extent.offset, extent.exponent());
        while exponent < BLOCK_EXPONENT && self.free[exponent].remove(&(offset ^ UNIT << exponent)) {
            offset &= !(UNIT << exponent);
            exponent += 1;
        }
        self.free[exponent].insert(offset);
        debug_assert!(
            offset <= extent.offset && extent.room_end() <= offset + (UNIT << exponent),
            "{extent:?} is freed as {} bytes at {offset}",
            UNIT << exponent
        );
        (exponent == BLOCK_EXPONENT).then_some(offset)
    }

    /// Allocates an extent again that was just freed.
    pub fn give_again(&mut self, extent: Extent) {
        let lowest = extent.exponent();
        let start = |exponent: usize| extent.offset & !((UNIT << exponent) - 1);
        let within = (lowest..=BLOCK_EXPONENT).find(|exponent| self.free[*exponent].remove(&start(*exponent)));
        debug_assert!(within.is_some(), "{extent:?} is not free");
        let Some(within) = within else { return };
        for half in lowest..within {
            self.free[half].insert(start(half) ^ UNIT << half);
        }
        debug_assert!(self.is_used(extent), "{extent:?} is given again, and a part of it is free");
    }

    /// Whether no part of an extent's room is free.
    fn is_used(&self, extent: Extent) -> bool {
        let room = extent.offset..extent.room_end();
        self.free.iter().enumerate().all(|(exponent, free)| match exponent < extent.exponent() {
            true => free.range(room.clone()).next().is_none(),
            false => !free.contains(&(extent.offset & !((UNIT << exponent) - 1))),
        })
    }

    /// Whether exactly these extents are in use; for tests.
    pub fn are_around(&self, used: Vec<Extent>) -> bool {
        let Some(mut other) = Extents::around(used) else { return false };
        while other.end < self.end {
            other.free[BLOCK_EXPONENT].insert(other.end);
            other.end += BLOCK;
        }
        other.end == self.end && other.free == self.free
    }

    /// Whether all of a block is free.
    pub fn is_free(&self, block: u64) -> bool {
        self.free[BLOCK_EXPONENT].contains(&block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    fn bytes_free(extents: &Extents) -> u64 {
        extents.free.iter().enumerate().map(|(exponent, of)| (of.len() as u64) << exponent).sum::<u64>() * UNIT
    }

    fn overlap(used: &[Extent]) -> bool {
        let mut used = used.to_vec();
        used.sort_unstable();
        used.windows(2).any(|pair| pair[0].offset + (UNIT << pair[0].exponent()) > pair[1].offset)
    }

    #[test]
    fn what_is_given_is_free_no_more_until_it_is_taken_back() {
        let mut rng = Rng::with_seed(1);
        let (mut extents, mut used) = (Extents::around(Vec::new()).unwrap(), Vec::<Extent>::new());
        for step in 0..4000 {
            let len = (1 + rng.usize(..EXTENT_MAX)) >> rng.u8(..16);
            match rng.u8(..4) {
                0 | 1 if used.len() < 300 => used.push(extents.give(len.max(1)).unwrap()),
                2 if !used.is_empty() => {
                    extents.take_back(used.swap_remove(rng.usize(..used.len())));
                }
                3 if used.len() > 3 => {
                    // A commit that the store refused: its allocations and frees are undone.
                    let before = bytes_free(&extents);
                    let (a, b) = (used[0], used[1]);
                    let (end, new) = (extents.end, extents.give(len.max(1)).unwrap());
                    extents.take_back(a);
                    extents.take_back(b);
                    let other = extents.give(len.max(1)).unwrap();
                    for extent in [new, other] {
                        extents.take_back(extent);
                    }
                    [a, b].into_iter().for_each(|extent| extents.give_again(extent));
                    assert_eq!(bytes_free(&extents), before + extents.end - end, "step {step}");
                }
                _ => {}
            }
            assert!(!overlap(&used), "step {step}");
            let taken: u64 = used.iter().map(|extent| UNIT << extent.exponent()).sum();
            assert_eq!(bytes_free(&extents) + taken, extents.end, "step {step}");
            assert!(step % 50 > 0 || extents.are_around(used.clone()), "step {step}: free room is what no row has");
        }
        let blocks: Vec<u64> = used.drain(..).filter_map(|extent| extents.take_back(extent)).collect();
        assert_eq!(bytes_free(&extents), extents.end);
        assert!(blocks.iter().all(|block| extents.is_free(*block)));
    }

    #[test]
    fn what_overlaps_or_cannot_be_is_refused() {
        let extent = |offset, len| Extent { offset, len: NonZeroU32::new(len).unwrap() };
        assert!(Extents::around(vec![extent(0, 65), extent(128, 64)]).is_some());
        assert!(Extents::around(vec![extent(0, 65), extent(64, 64)]).is_none());
        assert!(Extents::around(vec![extent(64, 64), extent(64, 64)]).is_none());
        assert!(Extents::around(vec![extent(64, 65)]).is_none(), "at no multiple of its size");
        assert!(Extents::around(vec![extent(0, (64 << 10) + 1)]).is_none());
        assert!(Extents::around(vec![extent(u64::MAX - 63, 1)]).is_none());
    }
}
