//! Finds out which complete sections have become stable (they cannot be rolled back any more) while the program runs.
//!
//! Most sections are stable when they end, and never come here. A section that has seen changes of an unfinished
//! section waits until that one has ended. Sections may have seen each other, so no section waits for a single other
//! one: whenever one ends, the largest possible set becomes stable together.

use super::section_log::{PLACES, Place, SectionId};
use std::collections::VecDeque;

/// A callback for the time when a section is stable.
pub(crate) type Then = Box<dyn FnOnce() + Send>;

/// A section that is complete.
#[derive(Default)]
pub(crate) struct Complete {
    pub number: u64,
    pub depends: Vec<SectionId>,
    pub then: Vec<Then>,
    /// Blocks to be freed, each with the offset of its record in the log.
    pub frees: Vec<(usize, usize)>,
    /// The section changed more than its log had room for.
    pub unlogged: bool,
}

/// The index for sections of threads without a place; no section can depend on them by this number.
const NO_PLACE: usize = PLACES;

/// Complete sections that are not stable yet, by place, in order.
pub(crate) struct Stability {
    waiting: [VecDeque<Complete>; PLACES + 1],
}

impl Stability {
    pub(crate) const fn new() -> Stability {
        Stability { waiting: [const { VecDeque::new() }; PLACES + 1] }
    }

    pub(crate) fn add(&mut self, place: Option<Place>, section: Complete) {
        self.waiting[place.map_or(NO_PLACE, usize::from)].push_back(section);
    }

    /// Adds a callback for the time when all waiting sections of a place are stable. Returns it if none waits.
    pub(crate) fn add_then(&mut self, place: Option<Place>, then: Then) -> Option<Then> {
        match self.waiting[place.map_or(NO_PLACE, usize::from)].back_mut() {
            Some(last) => {
                last.then.push(then);
                None
            }
            None => Some(then),
        }
    }

    /// Takes out the sections that become stable, each with its place, in order. `is_stable` answers for sections that
    /// do not wait here.
    pub(crate) fn settle(&mut self, is_stable: impl Fn(&SectionId) -> bool) -> Vec<(Option<Place>, Complete)> {
        let mut limits: [usize; PLACES + 1] = std::array::from_fn(|place| self.waiting[place].len());
        loop {
            let mut is_final = true;
            for place in 0..limits.len() {
                if limits[place] == 0 {
                    continue;
                }
                let is_there = |on: &SectionId| {
                    let place = on.place as usize;
                    let last = limits[place].checked_sub(1).map(|last| self.waiting[place][last].number);
                    last.is_some_and(|last| last >= on.number) || is_stable(on)
                };
                let all_there = |section: &&Complete| section.depends.iter().all(is_there);
                let limit = self.waiting[place].iter().take(limits[place]).take_while(all_there).count();
                is_final &= limit == limits[place];
                limits[place] = limit;
            }
            if is_final {
                break;
            }
        }
        let mut settled = Vec::new();
        for (place, limit) in limits.into_iter().enumerate().filter(|(_, limit)| *limit > 0) {
            let name = (place != NO_PLACE).then_some(place as Place);
            settled.extend(self.waiting[place].drain(..limit).map(|section| (name, section)));
        }
        settled
    }

    /// Removes all waiting sections.
    pub(crate) fn clear(&mut self) {
        self.waiting.iter_mut().for_each(VecDeque::clear);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(number: u64, depends: &[(Place, u64)]) -> Complete {
        let depends = depends.iter().map(|(place, number)| SectionId { place: *place, number: *number }).collect();
        Complete { number, depends, ..Complete::default() }
    }

    fn settled(stability: &mut Stability, stable: &[(Place, u64)]) -> Vec<(Option<Place>, u64)> {
        let is_stable = |on: &SectionId| stable.iter().any(|(place, last)| on.place == *place && on.number <= *last);
        stability.settle(is_stable).into_iter().map(|(place, section)| (place, section.number)).collect()
    }

    #[test]
    fn as_many_as_can_become_stable_together() {
        let mut stability = Stability::new();
        // Two sections that depend on each other, one that depends on each of them, and one that waits for an
        // unfinished section.
        stability.add(Some(1), section(5, &[(2, 7)]));
        stability.add(Some(1), section(6, &[(3, 1)]));
        stability.add(Some(2), section(7, &[(1, 5), (4, 2)]));
        stability.add(None, section(0, &[(1, 6)]));
        assert_eq!(settled(&mut stability, &[]), []);
        assert_eq!(settled(&mut stability, &[(4, 2)]), [(Some(1), 5), (Some(2), 7)]);
        assert_eq!(settled(&mut stability, &[(3, 2)]), [(Some(1), 6), (None, 0)]);
        assert!(stability.add_then(Some(1), Box::new(|| {})).is_some());
    }
}
