//! Early copies of pages, made before the program's threads are stopped. A copy is good until its page is stored to,
//! which the tracker reports. The copies are only a shortcut: each page with a good copy is also noted as found and not
//! staged.

use crate::invariant;
use std::collections::HashMap;
use std::ops::Range;
use untorn_os::holds;

/// Memory that is kept for the next commit.
const KEPT_BYTES: usize = 8 << 20;

#[derive(Default)]
pub(super) struct Ahead {
    copies: HashMap<u64, Copy>,
    bytes: Vec<u8>,
}

struct Copy {
    /// Offset in `bytes`.
    at: usize,
    good: bool,
}

impl Ahead {
    /// Whether there is a good copy of the page at an offset.
    pub(super) fn has(&self, page: u64) -> bool {
        self.copies.get(&page).is_some_and(|copy| copy.good)
    }

    /// Number of bytes of all copies, if these pages were copied, too.
    pub(super) fn bytes_with(&self, pages: &[u64], page_bytes: usize) -> usize {
        let new = pages.iter().filter(|page| !self.copies.contains_key(page)).count();
        self.bytes.len() + new * page_bytes
    }

    /// Makes room for a copy of each of these pages, which are in order, and marks the copies as good. Returns `None`
    /// if there is no memory.
    pub(super) fn add(&mut self, pages: &[u64], page_bytes: usize) -> Option<Vec<&mut [u8]>> {
        debug_assert!(pages.is_sorted_by(|one, next| one < next), "a page comes twice: {pages:?}");
        let more = self.bytes_with(pages, page_bytes) - self.bytes.len();
        self.bytes.try_reserve(more).ok()?;
        let mut places = Vec::with_capacity(pages.len());
        let mut end = self.bytes.len();
        for page in pages {
            let copy = self.copies.entry(*page).or_insert_with(|| {
                end += page_bytes;
                Copy { at: end - page_bytes, good: false }
            });
            copy.good = true;
            places.push(copy.at);
        }
        self.bytes.resize(end, 0);
        debug_assert_eq!(self.bytes.len(), self.copies.len() * page_bytes, "room of {} copies", self.copies.len());
        let base = self.bytes.as_mut_ptr();
        // SAFETY: places of pages lie within the bytes and apart from each other, and no page comes twice.
        Some(places.into_iter().map(|at| unsafe { std::slice::from_raw_parts_mut(base.add(at), page_bytes) }).collect())
    }

    /// Marks the copies of pages that were stored to as outdated.
    pub(super) fn forget(&mut self, range: &Range<u64>, page_bytes: u64) {
        if !holds(invariant::CUT_COPIES_ANEW) {
            return;
        }
        if (range.end - range.start) / page_bytes < self.copies.len() as u64 {
            for page in range.clone().step_by(page_bytes as usize) {
                if let Some(copy) = self.copies.get_mut(&page) {
                    copy.good = false;
                }
            }
        } else {
            let within = self.copies.iter_mut().filter(|(page, _)| range.contains(page));
            within.for_each(|(_, copy)| copy.good = false);
        }
    }

    /// Marks the copies of all pages as outdated for which `is_good` is false.
    pub(super) fn retain(&mut self, is_good: impl Fn(u64) -> bool) {
        self.copies.iter_mut().for_each(|(page, copy)| copy.good &= is_good(*page));
        if self.copies.values().all(|copy| !copy.good) {
            self.clear();
        }
    }

    /// The good copies.
    pub(super) fn copies(&self, page_bytes: usize) -> impl Iterator<Item = (u64, &[u8])> {
        let good = self.copies.iter().filter(|(_, copy)| copy.good);
        good.map(move |(page, copy)| (*page, &self.bytes[copy.at..copy.at + page_bytes]))
    }

    pub(super) fn clear(&mut self) {
        self.copies.clear();
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(ahead: &mut Ahead, pages: &[u64], bytes: &[u8]) {
        ahead.add(pages, 8).expect("memory").into_iter().zip(bytes).for_each(|(room, byte)| room.fill(*byte));
    }

    #[test]
    fn a_copy_is_good_until_its_page_is_stored_to() {
        let mut ahead = Ahead::default();
        add(&mut ahead, &[0, 8, 40], &[1, 2, 3]);
        ahead.forget(&(8..16), 8);
        assert_eq!(ahead.bytes_with(&[8, 16], 8), 32);
        add(&mut ahead, &[8, 16], &[4, 5]);
        ahead.forget(&(24..1 << 40), 8);
        let mut all: Vec<(u64, u8)> = ahead.copies(8).map(|(page, copy)| (page, copy[7])).collect();
        all.sort_unstable();
        assert_eq!(all, [(0, 1), (8, 4), (16, 5)]);
        assert!(ahead.has(16) && !ahead.has(40));
        ahead.retain(|page| page > 8);
        assert!(!ahead.has(8) && ahead.has(16));
        ahead.retain(|_| false);
        assert_eq!(ahead.bytes_with(&[], 8), 0);
    }
}
