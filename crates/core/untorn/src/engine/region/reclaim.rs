//! Drops private pages that no overlay knows, so that memory follows actual use.

use super::{COPIES_BYTES_MAX, PAGES_AT_ONCE, Region};
use crate::engine::content::{Content, changed_ranges};
use crate::invariant;
use rangemap::RangeSet;
use untorn_journal::Result;
use untorn_os::{TrackerKind, value_if_holds};

impl Region {
    /// Whether more pages are private than the program allowed.
    pub(crate) fn is_over(&self) -> bool {
        self.dirty_max.is_some_and(|most| self.pages.len() as u64 * self.page() > most)
    }

    /// Whether so many pages are private that looking for clean ones pays.
    pub(crate) fn wants_reclaim(&self) -> bool {
        !self.live && (self.is_over() || self.pages.len() as u64 * self.page() > self.reclaim_bytes)
    }

    /// Drops private pages without bytes in an overlay. The caller has just staged all stores, and nobody stores.
    pub(crate) fn reclaim(&mut self, content: &Content) -> Result<()> {
        let (page, end) = (self.page(), self.file_end(content).min(self.accessible));
        // Live memory is the only copy of stores since the last commit.
        if end == 0 || self.live {
            return Ok(());
        }
        self.marked.take(self.accessible, &mut self.taken);
        let mut free = RangeSet::new();
        let pages = self.pages.keys().filter(|at| **at < end);
        pages.for_each(|at| free.insert(*at..at + page));
        self.shown.gaps(&(0..end)).for_each(|gap| free.insert(gap));
        let (zeros, bytes) =
            changed_ranges(&value_if_holds(invariant::KNOWN_PAGES_STAY, content.overlays()), &(0..end));
        for range in zeros.iter().chain(bytes.iter()).chain(self.found.iter()).chain(&self.taken) {
            free.remove(self.pages_of(range));
        }
        let fail = |e| self.fail(content, "drop pages of", e);
        // Map them again: dropping pages by advice leaves marks of the tracker that look like pages in swap.
        free.iter().try_for_each(|range| self.mapping.show(range.clone())).map_err(fail)?;
        for range in free.iter() {
            self.shown.insert(range.clone());
            self.drop_pages(range);
        }
        // Pages in use stay private, so another search pays when their number has doubled.
        debug_assert_eq!(
            self.pages.values().flatten().count() as u64 * page,
            self.copies_bytes,
            "copies of {} pages",
            self.pages.len()
        );
        self.assert_within();
        self.reclaim_bytes = (2 * self.pages.len() as u64 * page).max(self.reclaim_bytes_min());
        Ok(())
    }

    /// The least limit for reclaiming. With the tracker `pagemap` it is small, because every commit compares all
    /// private pages.
    pub(super) fn reclaim_bytes_min(&self) -> u64 {
        match self.tracker() {
            TrackerKind::Scan | TrackerKind::Explicit => COPIES_BYTES_MAX,
            TrackerKind::PageMap => PAGES_AT_ONCE as u64 * self.page(),
        }
    }
}
