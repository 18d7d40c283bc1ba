//! Which complete sections can not be rolled back any more, while the program runs.
//!
//! Most sections are stable when they end, and never come here. One that has seen what another one did that had not ended
//! waits until that one has. Sections may have seen each other, so none is waited for: whenever one ends, as many as can become
//! stable together do.

use super::section_log::{PLACES, Place, SectionId};
use std::collections::VecDeque;

/// What is done once a section can not be rolled back any more.
pub(crate) type Then = Box<dyn FnOnce() + Send>;

/// A section that is complete.
#[derive(Default)]
pub(crate) struct Complete {
    pub number: u64,
    pub depends: Vec<SectionId>,
    pub then: Vec<Then>,
    /// Blocks to be freed, and where in the log that stands.
    pub frees: Vec<(usize, usize)>,
    /// It changed more than its log had room for.
    pub unlogged: bool,
}

/// Sections of threads that had no place come under this number; nothing depends on them by it.
const NO_PLACE: usize = PLACES;

/// Complete sections that are not stable, by place, in order.
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

    /// Something to be done once everything of a place that waits is stable. Returned, if nothing does.
    pub(crate) fn add_then(&mut self, place: Option<Place>, then: Then) -> Option<Then> {
        match self.waiting[place.map_or(NO_PLACE, usize::from)].back_mut() {
            Some(last) => {
                last.then.push(then);
                None
            }
            None => Some(then),
        }
    }

    /// Takes out what becomes stable, each with its place, in order. `is_stable`: of what is not here.
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

    /// Nothing waits any more.
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
        // A circle of two, one behind each, and one that waits for a section that has not ended.
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
