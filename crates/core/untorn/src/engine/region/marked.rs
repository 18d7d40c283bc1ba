//! Explicit dirty ranges: with the tracker `explicit`, a commit stages exactly the bytes that the program reported.
//!
//! Threads report often, and commits are rare. So each thread adds ranges to one of several lists, under a lock that
//! other threads rarely need. A list that has grown is sorted and joined, so that its length depends on the ranges, not
//! on the number of calls.

use super::mark_hooks::Hooked;
use crate::engine::waiting::concurrency::{AtomicU64, Mutex};
use rangemap::RangeSet;
use std::cell::Cell;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of lists that the threads share. Each thread uses one.
const LISTS: usize = 16;
/// Length at which a list is sorted and joined, and then again at twice the remaining length.
const TIDY_AT: usize = 1024;

/// The reported ranges of a mapping that no commit has staged.
pub(crate) struct Marked {
    lists: Box<[List]>,
    /// Accessible bytes, from the beginning of the file.
    end: AtomicU64,
    /// Reports of the program's hooks, if it has any.
    hooked: Option<Hooked>,
}

/// Aligned, to be on separate cache lines.
#[repr(align(128))]
#[derive(Default)]
struct List(Mutex<Ranges>);

#[derive(Default)]
struct Ranges {
    ranges: Vec<Range<u64>>,
    tidy_at: usize,
}

/// The list that this thread uses.
fn list_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    MINE.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT.fetch_add(1, Ordering::Relaxed) % LISTS);
        }
        mine.get()
    })
}

impl Marked {
    /// Makes the lists. Without `on`, reports are ignored, because another tracker finds the stores.
    pub(super) fn new(on: bool) -> Marked {
        let lists = if on { LISTS } else { 0 };
        Marked { lists: (0..lists).map(|_| List::default()).collect(), end: AtomicU64::new(0), hooked: None }
    }

    /// Includes stores that the program's hooks report for a mapping at this address, if it has hooks.
    pub(super) fn hear_hooks(&mut self, base: usize, address_space: u64) -> std::io::Result<()> {
        self.hooked = Hooked::new(base, address_space)?;
        Ok(())
    }

    pub(crate) fn is_on(&self) -> bool {
        !self.lists.is_empty()
    }

    pub(super) fn set_end(&self, end: u64) {
        self.end.store(end, Ordering::Release);
    }

    /// Bytes that can be reported, from the beginning of the file: whole pages.
    fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Adds a range of the file, which must lie before the end.
    #[inline]
    pub(super) fn note(&self, range: Range<u64>) {
        if self.is_on() && range.start < range.end {
            self.lists[list_of_thread()].0.lock().note(range);
        }
    }

    /// Adds `len` bytes at an address, if they lie before the end; `base` is the address of the file's first byte.
    #[inline]
    pub(crate) fn mark_dirty(&self, base: usize, address: usize, len: usize) -> bool {
        let start = address.wrapping_sub(base) as u64;
        match start.checked_add(len as u64) {
            Some(end) if end <= self.end() => {
                self.note(start..end);
                true
            }
            _ => false,
        }
    }

    /// Takes all reported ranges before `end`, and adds them to ranges that are in order and neither overlap nor touch.
    pub(super) fn take(&self, end: u64, into: &mut Vec<Range<u64>>) {
        let taken = into.len();
        for list in &self.lists {
            let mut list = list.0.lock();
            into.append(&mut list.ranges);
            list.tidy_at = TIDY_AT;
            list.ranges.shrink_to(4 * TIDY_AT);
        }
        if let Some(hooked) = &self.hooked {
            hooked.take(end, into);
        }
        if into.len() > taken {
            tidy(into);
            clip(into, end);
        }
        debug_assert!(into.last().is_none_or(|last| last.end <= end), "{:?} is behind {end}", into.last());
    }
}

impl Ranges {
    fn note(&mut self, range: Range<u64>) {
        // Usually the same object again, or the one behind it.
        if let Some(last) = self.ranges.last_mut()
            && range.start <= last.end
            && last.start <= range.end
        {
            *last = last.start.min(range.start)..last.end.max(range.end);
            return;
        }
        if self.ranges.len() >= self.tidy_at.max(TIDY_AT) {
            tidy(&mut self.ranges);
            self.tidy_at = 2 * self.ranges.len();
        }
        self.ranges.push(range);
    }
}

/// Sorts ranges and joins those that overlap or touch.
pub(super) fn tidy(ranges: &mut Vec<Range<u64>>) {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let meet = next.start <= last.end;
        if meet {
            last.end = last.end.max(next.end);
        }
        meet
    });
    debug_assert!(ranges.is_sorted_by(|one, next| one.end < next.start), "ranges touch: {ranges:?}");
}

/// Cuts ordered ranges at an end.
pub(super) fn clip(ranges: &mut Vec<Range<u64>>, end: u64) {
    ranges.truncate(ranges.partition_point(|range| range.start < end));
    if let Some(last) = ranges.last_mut() {
        last.end = last.end.min(end);
    }
}

/// Removes bytes from ordered ranges.
pub(super) fn remove(ranges: &mut Vec<Range<u64>>, gone: &Range<u64>) {
    let first = ranges.partition_point(|range| range.end <= gone.start);
    let end = ranges.partition_point(|range| range.start < gone.end).max(first);
    let parts = |range: &Range<u64>| [range.start..gone.start, gone.end..range.end];
    let left: Vec<Range<u64>> = ranges[first..end].iter().flat_map(parts).filter(|part| !part.is_empty()).collect();
    ranges.splice(first..end, left);
    debug_assert!(ranges.is_sorted_by(|one, next| one.end <= next.start), "ranges overlap: {ranges:?}");
    debug_assert!(
        gone.is_empty() || !ranges.iter().any(|range| range.start < gone.end && gone.start < range.end),
        "a part of {gone:?} is left: {ranges:?}"
    );
}

/// Whether one of these ordered ranges contains a byte.
pub(super) fn contains(ranges: &[Range<u64>], offset: u64) -> bool {
    ranges.get(ranges.partition_point(|range| range.end <= offset)).is_some_and(|range| range.start <= offset)
}

/// Reaction to an unreported store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnmarkedCheck {
    /// The commit is refused.
    Refuse,
    /// The store is printed.
    Warn,
}

/// State of the check of a mapping for such stores.
pub(super) struct Checked {
    pub(super) how: UnmarkedCheck,
    /// Pages that were stored to and may have unreported bytes.
    pub(super) pages: RangeSet<u64>,
    /// Places that were printed, by offset.
    pub(super) printed: HashSet<u64>,
    pub(super) commits: u64,
}

impl Checked {
    pub(super) fn new(how: UnmarkedCheck) -> Checked {
        Checked { how, pages: RangeSet::new(), printed: HashSet::new(), commits: 0 }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn taken(marked: &Marked, end: u64) -> Vec<Range<u64>> {
        let mut into = Vec::new();
        marked.take(end, &mut into);
        into
    }

    #[test]
    fn ranges_are_joined_and_taken_once() {
        let marked = Marked::new(true);
        [5..9, 9..12, 100..101, 7..8, 300..400, 50..60, 250..350].into_iter().for_each(|range| marked.note(range));
        assert_eq!(taken(&marked, 360), [5..12, 50..60, 100..101, 250..360]);
        assert_eq!(taken(&marked, 360), []);
        let off = Marked::new(false);
        off.note(1..2);
        assert_eq!(taken(&off, 360), []);
    }

    #[test]
    fn ranges_in_order_are_a_set_of_bytes() {
        for seed in 0..300 {
            let rng = &mut fastrand::Rng::with_seed(seed);
            let range = |rng: &mut fastrand::Rng| {
                let start = rng.u64(..100);
                start..start + rng.u64(1..20)
            };
            let marked = Marked::new(true);
            let (mut ranges, mut model) = (Vec::new(), [false; 140]);
            for _ in 0..20 {
                let bytes = range(rng);
                let (within, is_marked) = (bytes.start as usize..bytes.end as usize, rng.u8(..3) > 0);
                match is_marked {
                    true => marked.note(bytes),
                    false => remove(&mut ranges, &bytes),
                }
                model[within].fill(is_marked);
                marked.take(u64::MAX, &mut ranges);
                let found: Vec<bool> = (0..140).map(|offset| contains(&ranges, offset)).collect();
                assert_eq!(found, model, "seed {seed}: {ranges:?}");
                assert!(ranges.is_sorted_by(|one, next| one.start < one.end && one.end <= next.start), "{ranges:?}");
            }
            let end = rng.u64(..140);
            clip(&mut ranges, end);
            let found: Vec<bool> = (0..140).map(|offset| contains(&ranges, offset)).collect();
            model[end as usize..].fill(false);
            assert_eq!(found, model, "seed {seed}: {ranges:?}");
        }
    }

    #[test]
    fn a_list_grows_with_the_ranges_and_not_with_the_calls() {
        let marked = Marked::new(true);
        for call in 0..100_000u64 {
            let at = call * 7919 % 1000 * 16;
            marked.note(at..at + 8);
        }
        assert!(marked.lists.iter().map(|list| list.0.lock().ranges.len()).sum::<usize>() <= 2 * TIDY_AT);
        assert_eq!(taken(&marked, u64::MAX), (0..1000).map(|n| n * 16..n * 16 + 8).collect::<Vec<_>>());
    }

    #[test]
    fn every_thread_is_heard() {
        let marked = Marked::new(true);
        std::thread::scope(|scope| {
            for thread in 0..40u64 {
                let marked = &marked;
                scope.spawn(move || {
                    (0..1000).for_each(|n| marked.note((n * 40 + thread) * 2..(n * 40 + thread) * 2 + 1))
                });
            }
        });
        assert_eq!(taken(&marked, u64::MAX).len(), 40_000);
    }
}
