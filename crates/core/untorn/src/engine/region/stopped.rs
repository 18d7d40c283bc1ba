//! Commits memory to which threads store meanwhile, by stopping them briefly, each at an arbitrary instruction.
//!
//! Pages that were stored to are copied while the threads run, repeatedly, until few pages are stored to in between.
//! During the stop, these are found and copied, by calls that allocate nothing and take no lock. Later steps work on
//! the copies, and may still change the staged state: sections that had not ended are undone there.

use super::Region;
use super::ahead::Ahead;
use super::changes::LOT_PAGES;
use super::marked::tidy;
use crate::engine::content::{Content, SpillSink};
use crate::invariant;
use std::ops::Range;
use untorn_journal::Result;
use untorn_journal::format::sized_memory;
use untorn_os::{Piece, StillCopy, TrackerKind, holds};

/// Limit for the rounds of copying before the threads are stopped.
const ROUNDS_MOST: usize = 6;
/// With at most this many pages left, another round does not pay.
const FEW_PAGES: usize = 64;
/// More bytes than this are staged before the threads are stopped, instead of copied. Staging takes longer.
const AHEAD_BYTES: usize = 128 << 20;

impl Region {
    /// The found pages without a copy.
    fn uncopied(&self) -> Vec<u64> {
        let pages = self.found.iter().flat_map(|range| range.clone().step_by(self.page() as usize));
        pages.filter(|page| !self.ahead.has(*page)).collect()
    }

    fn copy_ahead(&mut self, content: &Content, pages: &[u64]) -> Result<()> {
        let page = self.page() as usize;
        let Some(room) = self.ahead.add(pages, page) else {
            self.ahead.clear();
            return Err(sized_memory::none(pages.len() * page, &content.path));
        };
        let mut pieces: Vec<Piece<'_>> = pages.iter().zip(room).map(|(at, into)| Piece { offset: *at, into }).collect();
        let copied = self.mapping.copy_out(&mut pieces);
        copied.map_err(|e| {
            self.ahead.clear();
            self.fail(content, "read the mapping of", e)
        })
    }

    /// Copies bytes stored so far, while threads store.
    pub(crate) fn stage_ahead(&mut self, content: &mut Content, sink: &dyn SpillSink, unit: usize) -> Result<()> {
        tidy(self.touched.get_or_insert_default());
        // Keep the copies of an earlier attempt that are still good.
        self.ahead.retain(|page| self.found.contains(&page));
        // Without tracking of stores, everything is copied during the stop.
        if self.tracker() != TrackerKind::Scan {
            return Ok(());
        }
        for _ in 0..ROUNDS_MOST {
            self.find_stores(content)?;
            let pages = self.uncopied();
            if self.ahead.bytes_with(&pages, self.page() as usize) > AHEAD_BYTES {
                self.ahead.clear();
                self.stage_found(content, sink, unit)?;
            } else {
                self.copy_ahead(content, &pages)?;
            }
            if pages.len() <= FEW_PAGES {
                break;
            }
        }
        Ok(())
    }

    /// Copies bytes stored so far, and allocates room for `most` pages, which are copied during the stop that follows.
    /// Returns false if more pages were stored to; these should be copied ahead in another round.
    pub(crate) fn prepare_copy(&mut self, content: &mut Content, most: u64) -> Result<bool> {
        self.touched.get_or_insert_default();
        self.check_undone()?;
        if self.tracker() == TrackerKind::Scan {
            self.find_stores(content)?;
            let pages = self.uncopied();
            // Too many to copy here, because threads may wait for locks that the caller holds.
            if pages.len() as u64 > most {
                return Ok(false);
            }
            self.copy_ahead(content, &pages)?;
        }
        let has_room = self.still_copy.as_ref().is_some_and(|copy| copy.has_room(self.accessible));
        if !has_room {
            // Somewhat more than needed now, because the heap may grow.
            let room = self.accessible + self.accessible / 4;
            let made = StillCopy::new(room).map_err(|_| sized_memory::none(room as usize, &content.path));
            self.still_copy = Some(made?);
        }
        let expected = most.saturating_mul(self.page()) as usize;
        if let Some(copy) = &mut self.still_copy {
            copy.clear();
            copy.expect(expected);
        }
        Ok(true)
    }

    /// Finds and copies the pages stored to since then, if there are at most `most`; otherwise (false) it only finds
    /// them. Allocates nothing, and takes no lock.
    pub(crate) fn copy_now(&mut self, most: u64) -> std::io::Result<bool> {
        match &mut self.still_copy {
            Some(copy) => self.mapping.copy_changed(0..self.accessible, most, copy),
            None => Ok(true),
        }
    }

    /// Stages the copied pages.
    pub(crate) fn stage_copied(&mut self, content: &mut Content, sink: &dyn SpillSink, unit: usize) -> Result<()> {
        let Some(copy) = self.still_copy.take() else { return Ok(()) };
        let mut ahead = std::mem::take(&mut self.ahead);
        // Note these pages first, because the tracker does not report them again.
        for range in copy.ranges() {
            ahead.forget(range, self.page());
            self.found.insert(range.clone());
        }
        let is_whole = copy.is_whole();
        let staged = match is_whole {
            true => self.stage_copy(content, sink, unit, &copy, &ahead),
            // The commit is not made, and the next one examines these pages.
            false => Ok(()),
        };
        if is_whole {
            ahead.clear();
        }
        (self.still_copy, self.ahead) = (Some(copy), ahead);
        staged
    }

    fn stage_copy(
        &mut self,
        content: &mut Content,
        sink: &dyn SpillSink,
        unit: usize,
        copy: &StillCopy,
        ahead: &Ahead,
    ) -> Result<()> {
        let (page, size) = (self.page(), content.size());
        let in_the_moment = copy.ranges().iter().flat_map(|range| range.clone().step_by(page as usize));
        let in_the_moment = in_the_moment.zip(copy.bytes().chunks_exact(page as usize));
        let mut copies: Vec<(u64, &[u8])> = in_the_moment.chain(ahead.copies(page as usize)).collect();
        if copies.is_empty() {
            return Ok(());
        }
        self.check_unchanged(content)?;
        copies.sort_unstable_by_key(|(at, _)| *at);
        debug_assert!(
            copies.is_sorted_by(|(one, _), (next, _)| one < next),
            "a page was copied during the stop and before it: {:?}",
            copies.iter().map(|(at, _)| at).collect::<Vec<_>>()
        );
        debug_assert!(copies.iter().all(|(at, _)| self.found.contains(at)), "a copy of a page that was not found");
        for lot in copies.chunks(LOT_PAGES) {
            let pages: Vec<u64> = lot.iter().map(|(at, _)| *at).collect();
            let mut bytes = std::mem::take(&mut self.copies);
            bytes.clear();
            sized_memory::reserve(&mut bytes, lot.len() * page as usize, &content.path)?;
            lot.iter().for_each(|(_, copy)| bytes.extend_from_slice(copy));
            self.stage_lot(content, sink, unit, size, &pages, bytes)?;
        }
        Ok(())
    }

    /// Ranges staged since the last commit, in whole pages.
    pub(crate) fn touched(&self) -> Vec<Range<u64>> {
        let mut touched = self.touched.clone().unwrap_or_default();
        tidy(&mut touched);
        touched
    }

    /// Notes that the staged ranges are committed.
    pub(crate) fn forget_touched(&mut self) {
        self.touched = None;
    }

    /// Notes that staged bytes differ from memory: the next commit examines these pages, even without new stores.
    pub(crate) fn differs_in_memory(&mut self, range: Range<u64>) {
        self.outdate(&range);
        let pages = self.pages_of(&range);
        if let Some(touched) = &mut self.touched {
            touched.push(pages.clone());
        }
        if holds(invariant::CUT_CARRIES) {
            self.found.insert(pages);
        }
    }
}
