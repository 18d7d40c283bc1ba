//! Room of the pack: extents of powers of two, each at a multiple of its size, as a buddy system.
//!
//! Which room is free is nowhere written down: it is what no row has.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

/// The smallest extent.
const UNIT: u64 = 64;
/// The most bytes that an extent has.
pub(crate) const EXTENT_MAX: usize = 64 << 10;
/// Room is added, and given back, in blocks of so many bytes: 64 << 14.
pub(crate) const BLOCK: u64 = 1 << 20;
const BLOCK_EXPONENT: usize = 14;

/// Where bytes lie in the pack, and how many. What they take is the next power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Extent {
    pub offset: u64,
    pub len: NonZeroU32,
}

impl Extent {
    /// Bytes that are its own.
    pub fn len(self) -> usize {
        self.len.get() as usize
    }

    /// Where the bytes end.
    pub fn end(self) -> u64 {
        self.offset.saturating_add(u64::from(self.len.get()))
    }

    fn exponent(self) -> usize {
        exponent_for(self.len())
    }

    /// Where its room ends, which may be larger.
    pub fn room_end(self) -> u64 {
        self.offset.saturating_add(UNIT << self.exponent())
    }

    /// Whether it can be one.
    pub fn is_possible(self) -> bool {
        self.len() <= EXTENT_MAX
            && self.offset.is_multiple_of(UNIT << self.exponent())
            && self.offset <= i64::MAX as u64 - BLOCK
    }

    /// Where other bytes can lie in its place: as many as these, or so few or many more that they take the same room.
    pub fn with_len(self, len: usize) -> Option<Extent> {
        let len = NonZeroU32::new(u32::try_from(len).ok()?)?;
        (exponent_for(len.get() as usize) == self.exponent()).then_some(Extent { len, ..self })
    }

    /// Its first bytes, at most so many; `None` if that is none.
    pub fn with_first(self, most: u64) -> Option<Extent> {
        let len = NonZeroU32::new(u64::from(self.len.get()).min(most) as u32)?;
        Some(Extent { len, ..self })
    }
}

fn exponent_for(len: usize) -> usize {
    (len as u64).div_ceil(UNIT).next_power_of_two().trailing_zeros() as usize
}

/// What is free, by exponents.
pub(crate) struct Extents {
    free: [BTreeSet<u64>; BLOCK_EXPONENT + 1],
    end: u64,
}

impl Extents {
    /// All but these are free; `None` if two of them overlap, or one cannot be.
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

    /// The largest pieces that lie at multiples of their sizes, one after the other.
    fn fill(&mut self, mut at: u64, end: u64) {
        while at < end {
            let aligned = (at / UNIT).trailing_zeros() as usize;
            let fits = ((end - at) / UNIT).ilog2() as usize;
            let exponent = aligned.min(fits).min(BLOCK_EXPONENT);
            self.free[exponent].insert(at);
            at += UNIT << exponent;
        }
    }

    /// Room for bytes, at most [`EXTENT_MAX`] and at least one: the first of the smallest that there is, so that what is
    /// used lies together.
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
        Some(Extent { offset, len })
    }

    /// An extent is free; the block that it lies in, if all of that is.
    pub fn take_back(&mut self, extent: Extent) -> Option<u64> {
        let (mut offset, mut exponent) = (extent.offset, extent.exponent());
        while exponent < BLOCK_EXPONENT && self.free[exponent].remove(&(offset ^ UNIT << exponent)) {
            offset &= !(UNIT << exponent);
            exponent += 1;
        }
        self.free[exponent].insert(offset);
        (exponent == BLOCK_EXPONENT).then_some(offset)
    }

    /// An extent that was just taken back is used all the same.
    pub fn give_again(&mut self, extent: Extent) {
        let lowest = extent.exponent();
        let start = |exponent: usize| extent.offset & !((UNIT << exponent) - 1);
        let within = (lowest..=BLOCK_EXPONENT).find(|exponent| self.free[*exponent].remove(&start(*exponent)));
        let Some(within) = within else { return };
        for half in lowest..within {
            self.free[half].insert(start(half) ^ UNIT << half);
        }
    }

    /// Whether the same is free as when these alone are used; for tests.
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
                    // A commit that could not be asked for: what it gave and took is as before.
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
