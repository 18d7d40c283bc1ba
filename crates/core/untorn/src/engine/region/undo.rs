//! Removes changes from memory: at a rollback, and when a transaction failed.
//!
//! The tracker would find stores made here like any other store, and each rollback and the next commit would examine
//! their pages again. So a page is stored to only where it differs from the content, and the tracker is queried about
//! it afterwards: a page that is then still as it was stored has no new stores.

use super::changes::{BLOCK_BYTES, LOT_PAGES};
use super::{COPIES_BYTES_MAX, Region, STORED_MAX};
use crate::engine::content::{Content, changed_ranges};
use crate::invariant;
use rangemap::RangeSet;
use std::ops::Range;
use untorn_journal::Result;
use untorn_journal::commits::overlay::{Overlay, read_through};
use untorn_journal::format::sized_memory;
use untorn_os::{TrackerKind, holds, value_if_holds};

/// Reported ranges that are restored at once.
const LOT_RANGES: usize = 64;
/// Pages in one part of the file of this size are queried at once.
const NEAR_BYTES: u64 = 2 << 20;

impl Region {
    /// Drops the write set and all stores since the last commit. After an error, memory may still show some of them; no
    /// commit succeeds until this was repeated successfully.
    pub(crate) fn discard(&mut self, content: &mut Content) -> Result<()> {
        let found = self.find_stores(content);
        let mut undone = std::mem::take(&mut self.found);
        std::mem::take(&mut self.taken).into_iter().for_each(|range| undone.insert(range));
        if self.tracker() == TrackerKind::Explicit && !holds(invariant::MARKED_UNDONE) {
            undone = RangeSet::new();
        }
        let (zeros, bytes) = changed_ranges(&[&content.write_set], &(0..self.accessible));
        for range in zeros.iter().chain(bytes.iter()) {
            self.outdate(range);
            undone.insert(range.clone());
        }
        content.discard();
        debug_assert!(self.found.is_empty() && self.taken.is_empty(), "stores are found, and not undone");
        self.undo(content, undone, found)
    }

    /// Removes the changes of an overlay, which is no longer a part of the content, from memory.
    pub(crate) fn undo_overlay(&mut self, content: &Content, overlay: &Overlay) -> Result<()> {
        let (zeros, mut undone) = changed_ranges(&[overlay], &(0..self.accessible));
        zeros.iter().for_each(|range| undone.insert(range.clone()));
        undone.iter().for_each(|range| self.outdate(range));
        self.undo(content, undone, Ok(()))
    }

    /// Removes changes from memory that the caller has just removed from the overlays, and earlier ones that could not
    /// be removed.
    fn undo(&mut self, content: &Content, mut undone: RangeSet<u64>, found: Result<()>) -> Result<()> {
        if let Some((ranges, _)) = self.not_undone.take() {
            ranges.into_iter().for_each(|range| undone.insert(range));
        }
        let done = found.and_then(|()| self.restore(content, &undone));
        self.not_undone = done.as_ref().err().map(|e| (undone, e.clone()));
        done
    }

    fn restore(&mut self, content: &Content, undone: &RangeSet<u64>) -> Result<()> {
        // If the store is closed, memory stays as it is, because another program may own the file now.
        self.data()?;
        let end = self.accessible.min(self.round_up(content.size()));
        self.reach(content, content.size())?;
        debug_assert!(
            self.accessible >= content.size(),
            "{} bytes are accessible of {}",
            self.accessible,
            content.size()
        );
        let mut by_page = RangeSet::new();
        for range in undone.iter() {
            let range = range.start..range.end.min(end);
            if range.is_empty() {
                continue;
            }
            let inner = self.pages_in(&range);
            if inner.end - inner.start > STORED_MAX {
                // Map them again: stored pages would be private, and perhaps take more memory than there is.
                self.load(content, inner.clone())?;
                let edges = [range.start..inner.start, inner.end..range.end];
                edges.into_iter().filter(|edge| !edge.is_empty()).for_each(|edge| by_page.insert(edge));
            } else {
                by_page.insert(range);
            }
        }
        if self.is_explicit() {
            let ranges: Vec<Range<u64>> = by_page.iter().cloned().collect();
            return ranges.chunks(LOT_RANGES).try_for_each(|lot| self.restore_bytes(content, lot));
        }
        let step = self.page() as usize;
        let mut pages: Vec<u64> = by_page.iter().flat_map(|range| self.pages_of(range).step_by(step)).collect();
        pages.dedup();
        pages.chunks(LOT_PAGES).try_for_each(|lot| self.restore_lot(content, lot, &by_page))
    }

    /// Restores the content of ranges, without examining the rest of their pages.
    fn restore_bytes(&mut self, content: &Content, ranges: &[Range<u64>]) -> Result<()> {
        let Ok(copies) = self.copies_of(content, ranges) else {
            // A page that cannot be read may still be stored to, and this way takes little memory.
            return ranges.iter().try_for_each(|range| self.store_content(content, range.clone()));
        };
        let overlays = value_if_holds(invariant::COMMITTED_BYTES_BACK, content.overlays());
        let mut copies = copies.as_slice();
        for range in ranges {
            debug_assert!(range.end <= self.accessible, "{range:?} of {} accessible bytes", self.accessible);
            let (copy, rest) = copies.split_at((range.end - range.start) as usize);
            copies = rest;
            let mut base = sized_memory::zeros(copy.len() as u64, &content.path)?;
            read_through(&overlays, Some(self.data()?), &mut base, range.start)?;
            if let Some(differs) = hull(copy, &base) {
                self.store(content, range.start + differs.start as u64, &base[differs])?;
            }
        }
        Ok(())
    }

    /// Restores the content of these ranges in some of their pages.
    fn restore_lot(&mut self, content: &Content, pages: &[u64], ranges: &RangeSet<u64>) -> Result<()> {
        let page = self.page();
        let Ok(copies) = self.copies(content, pages) else {
            // A page that cannot be read may still be stored to.
            let parts = |at: &u64| {
                ranges
                    .overlapping(&(*at..at + page))
                    .map(|range| range.start.max(*at)..range.end.min(at + page))
                    .collect::<Vec<_>>()
            };
            return pages.iter().flat_map(parts).try_for_each(|part| self.store_content(content, part));
        };
        let mut wrong: Vec<(Range<u64>, Vec<u8>)> = Vec::new();
        let mut bases: Vec<(u64, Box<[u8]>)> = Vec::new();
        self.compare(invariant::COMMITTED_BYTES_BACK, content, pages, &copies, |at, copy, base| {
            for range in ranges.overlapping(&(at..at + page)) {
                let start = range.start.max(at) - at;
                let part = start as usize..(range.end.min(at + page) - at) as usize;
                if let Some(differs) = hull(&copy[part.clone()], &base[part.clone()]) {
                    let differs = part.start + differs.start..part.start + differs.end;
                    wrong.push((at + differs.start as u64..at + differs.end as u64, base[differs].to_vec()));
                    if bases.last().is_none_or(|(last, _)| *last != at) {
                        bases.push((at, base.into()));
                    }
                }
            }
        })?;
        self.copies = copies;
        for (range, bytes) in &wrong {
            let stored = self.mapping.copy_in(range.start, bytes);
            stored.map_err(|e| self.fail(content, "store to the mapping of", e))?;
        }
        let pages: Vec<u64> = bases.iter().map(|(at, _)| *at).collect();
        for (at, base) in bases {
            let known = self.pages.entry(at).or_default();
            if known.is_none() && self.copies_bytes + page <= COPIES_BYTES_MAX {
                self.copies_bytes += page;
                *known = Some(base);
            }
        }
        self.settle(content, &pages)
    }

    /// Makes the tracker forget the stores just made to pages, except pages to which other threads stored, too.
    fn settle(&mut self, content: &Content, pages: &[u64]) -> Result<()> {
        // With the tracker `pagemap`, a page stays found until it is dropped.
        if self.tracker() != TrackerKind::Scan {
            return Ok(());
        }
        let page = self.page();
        for near in pages.chunk_by(|one, other| one / NEAR_BYTES == other / NEAR_BYTES) {
            let mut marked = Vec::new();
            let asked = self.mapping.changed(near[0]..near[near.len() - 1] + page, &mut marked);
            marked.into_iter().for_each(|range| self.is_stored_to(range));
            asked.map_err(|e| self.fail(content, "look for changed pages of", e))?;
        }
        // Copy after the query: stores from now on are found the next time.
        let Ok(copies) = self.copies(content, pages) else { return Ok(()) };
        let mut as_stored = Vec::new();
        self.compare(invariant::COMMITTED_BYTES_BACK, content, pages, &copies, |at, copy, base| {
            if copy == base || !holds(invariant::STORES_SINCE_UNDO_FOUND) {
                as_stored.push(at);
            }
        })?;
        self.copies = copies;
        as_stored.into_iter().for_each(|at| self.found.remove(at..at + page));
        Ok(())
    }
}

/// The range from the first differing byte to the last of two parts of the same length. Blocks are compared first,
/// because most of a page is usually unchanged.
fn hull(one: &[u8], other: &[u8]) -> Option<Range<usize>> {
    let mut blocks = one.chunks(BLOCK_BYTES).zip(other.chunks(BLOCK_BYTES)).enumerate().filter(|(_, (a, b))| a != b);
    let differs = |(a, b): (&u8, &u8)| a != b;
    let (n, (a, b)) = blocks.next()?;
    let start = n * BLOCK_BYTES + a.iter().zip(b).position(differs)?;
    let (n, (a, b)) = blocks.next_back().unwrap_or((n, (a, b)));
    let end = n * BLOCK_BYTES + a.iter().zip(b).rposition(differs)? + 1;
    debug_assert!(start < end && end <= one.len().min(other.len()), "{start}..{end} of {} bytes", one.len());
    Some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hull_reaches_from_the_first_difference_to_the_last() {
        let zeros = vec![0; 3 * BLOCK_BYTES + 100];
        assert_eq!(hull(&zeros, &zeros), None);
        let ends = [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 7, zeros.len() - 1];
        for (n, first) in ends.iter().enumerate() {
            for last in &ends[n..] {
                let mut other = zeros.clone();
                other[*first] = 1;
                other[*last] = 2;
                assert_eq!(hull(&zeros, &other), Some(*first..last + 1));
            }
        }
    }
}
