//! A commit of memory to which threads store while it is made: they stand still for a moment, at any instruction.
//!
//! What was stored before is staged while they run, so that little is left for the moment. In it, pages that were stored to
//! since are found and copied, by calls that allocate nothing and take no lock. What comes behind it works on the copies, and
//! may still change what is staged: sections that had not ended are undone there.

use super::Region;
use super::changes::LOT_PAGES;
use crate::content::{Content, SpillSink};
use crate::invariant;
use std::ops::Range;
use untorn_journal::Result;
use untorn_os::{StillCopy, holds};

/// How often pages are staged that were stored to meanwhile, before the threads are stopped.
const ROUNDS_MOST: usize = 4;
/// With so few pages left another round does not pay.
const FEW_PAGES: u64 = 64;

impl Region {
    fn found_pages(&self) -> u64 {
        self.found.iter().map(|range| (range.end - range.start) / self.page()).sum()
    }

    /// Stages what was stored so far, while threads store.
    pub(crate) fn stage_ahead(&mut self, content: &mut Content, sink: &dyn SpillSink, unit: usize) -> Result<()> {
        self.touched.get_or_insert_default();
        let mut before = u64::MAX;
        for _ in 0..ROUNDS_MOST {
            self.find_stores(content)?;
            let now = self.found_pages();
            if now <= FEW_PAGES || now > before / 2 {
                break;
            }
            before = now;
            self.stage_found(content, sink, unit)?;
        }
        Ok(())
    }

    /// Stages what was stored so far, and makes room for what is copied in the moment that follows.
    pub(crate) fn prepare_copy(&mut self, content: &mut Content, sink: &dyn SpillSink, unit: usize) -> Result<()> {
        self.touched.get_or_insert_default();
        self.check_owed()?;
        self.find_stores(content)?;
        let expected = (2 * self.found_pages() * self.page()) as usize;
        self.stage_found(content, sink, unit)?;
        let has_room = self.still_copy.as_ref().is_some_and(|copy| copy.has_room(self.accessible));
        if !has_room {
            // Somewhat more, as the heap may grow.
            let made = StillCopy::new(self.accessible + self.accessible / 4);
            self.still_copy = Some(made.map_err(|e| self.fail(content, "make room for copies of", e))?);
        }
        if let Some(copy) = &mut self.still_copy {
            copy.clear();
            copy.expect(expected);
        }
        Ok(())
    }

    /// Finds and copies what was stored since. Allocates nothing, and takes no lock.
    pub(crate) fn copy_now(&mut self) -> std::io::Result<()> {
        match &mut self.still_copy {
            Some(copy) => self.mapping.copy_changed(0..self.accessible, copy),
            None => Ok(()),
        }
    }

    /// Stages what was copied.
    pub(crate) fn stage_copied(&mut self, content: &mut Content, sink: &dyn SpillSink, unit: usize) -> Result<()> {
        let Some(copy) = self.still_copy.take() else { return Ok(()) };
        // First of all: the tracker does not find these pages again.
        copy.ranges().iter().for_each(|range| self.found.insert(range.clone()));
        let staged = self.stage_copy(content, sink, unit, &copy);
        self.still_copy = Some(copy);
        staged
    }

    fn stage_copy(&mut self, content: &mut Content, sink: &dyn SpillSink, unit: usize, copy: &StillCopy) -> Result<()> {
        if copy.ranges().is_empty() {
            return Ok(());
        }
        self.check_unchanged(content)?;
        let (page, size) = (self.page(), content.size());
        let pages: Vec<u64> = copy.ranges().iter().flat_map(|range| range.clone().step_by(page as usize)).collect();
        let mut bytes = copy.bytes();
        for pages in pages.chunks(LOT_PAGES) {
            let (lot, rest) = bytes.split_at(pages.len() * page as usize);
            bytes = rest;
            let mut copies = std::mem::take(&mut self.copies);
            copies.clear();
            copies.extend_from_slice(lot);
            self.stage_lot(content, sink, unit, size, pages, copies)?;
        }
        Ok(())
    }

    /// What was staged since the last commit, in whole pages.
    pub(crate) fn touched(&self) -> Vec<Range<u64>> {
        self.touched.iter().flat_map(|touched| touched.iter().cloned()).collect()
    }

    /// What was staged is the commit.
    pub(crate) fn forget_touched(&mut self) {
        self.touched = None;
    }

    /// Other bytes are staged than memory has: the next commit looks at these pages, whether or not they are stored to.
    pub(crate) fn differs_in_memory(&mut self, range: Range<u64>) {
        self.outdate(&range);
        let pages = self.pages_of(&range);
        if let Some(touched) = &mut self.touched {
            touched.insert(pages.clone());
        }
        if holds(invariant::CUT_CARRIES) {
            self.found.insert(pages);
        }
    }
}
