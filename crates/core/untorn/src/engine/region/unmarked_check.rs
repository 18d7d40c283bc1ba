//! For debugging with the tracker `explicit`: finds stores that the program did not report.
//!
//! The mapping is tracked as well, and before a commit the pages that were stored to are compared with the content, as
//! with the other trackers. Differences that were not reported are errors.

use super::Region;
use super::changes::LOT_PAGES;
use super::marked::{self, Checked, UnmarkedCheck};
use crate::engine::content::Content;
use crate::invariant;
use std::fmt::Write;
use std::ops::Range;
use untorn_journal::{Error, Result};

/// Differing bytes with at most this many equal bytes in between are one place, because some bytes of a stored number
/// may not change.
const NEAR_BYTES: u64 = 8;
/// Limit for the places that an error names.
const NAMED_MOST: usize = 8;
/// Limit for the places of one mapping that are printed.
const PRINTED_MOST: usize = 100;

impl Region {
    /// Checks before a commit that all stores were reported.
    ///
    /// # Errors
    /// [`Error::Invalid`] names places that were not reported; nothing is staged.
    pub(crate) fn check_unmarked(&mut self, content: &Content) -> Result<()> {
        let Some(mut checked) = self.checked.take() else { return Ok(()) };
        let found = self.find_unmarked(content, &mut checked);
        checked.commits += 1;
        let refused = found.and_then(|unmarked| match checked.how {
            _ if unmarked.is_empty() => Ok(()),
            UnmarkedCheck::Refuse => Err(self.refuse_unmarked(content, &unmarked, checked.commits)),
            UnmarkedCheck::Warn => {
                self.print_unmarked(content, &unmarked, &mut checked);
                Ok(())
            }
        });
        self.checked = Some(checked);
        refused
    }

    fn find_unmarked(&mut self, content: &Content, checked: &mut Checked) -> Result<Vec<Range<u64>>> {
        let mut pages = Vec::new();
        let asked = self.mapping.changed(0..self.accessible, &mut pages);
        pages.into_iter().for_each(|range| checked.pages.insert(range));
        asked.map_err(|e| self.fail(content, "look for changed pages of", e))?;
        checked.pages.remove(self.accessible..u64::MAX);
        let page = self.page();
        let pages: Vec<u64> = checked.pages.iter().flat_map(|range| range.clone().step_by(page as usize)).collect();
        let mut unmarked: Vec<Range<u64>> = Vec::new();
        for lot in pages.chunks(LOT_PAGES) {
            let copies = self.copies(content, lot)?;
            // Queried after the copies were made, so that a thread that stores and reports meanwhile is not blamed.
            self.find_stores(content)?;
            let size = content.size();
            self.compare(invariant::COMPARE_WITH_VIEW, content, lot, &copies, |at, copy, base| {
                for (offset, _) in (at..size).zip(copy.iter().zip(base)).filter(|(_, (a, b))| a != b) {
                    match unmarked.last_mut() {
                        _ if marked::contains(&self.taken, offset) => {}
                        Some(last) if offset - last.end <= NEAR_BYTES => last.end = offset + 1,
                        _ => unmarked.push(offset..offset + 1),
                    }
                }
            })?;
            self.copies = copies;
        }
        checked.pages = unmarked.iter().map(|range| self.pages_of(range)).collect();
        Ok(unmarked)
    }

    /// A description of one place: its bytes, address, offset and page.
    fn place(&self, range: &Range<u64>) -> String {
        let (len, page) = (range.end - range.start, range.start / self.page());
        let address = self.address() as usize + range.start as usize;
        format!("{len} bytes at address {address:#x} (offset {}, page {page})", range.start)
    }

    fn refuse_unmarked(&self, content: &Content, unmarked: &[Range<u64>], commit: u64) -> Error {
        let mut places = String::new();
        for (n, range) in unmarked.iter().take(NAMED_MOST).enumerate() {
            let _ = write!(places, "{}{}", if n == 0 { "" } else { ", " }, self.place(range));
        }
        if unmarked.len() > NAMED_MOST {
            let _ = write!(places, " and {} other places", unmarked.len() - NAMED_MOST);
        }
        Error::invalid(format!(
            "{}: the program stored to these bytes, but did not mark them dirty, before commit {commit} of this \
             mapping: {places}. The commit was not made: call `mark_dirty` for these stores, and commit again",
            content.path.display()
        ))
    }

    fn print_unmarked(&self, content: &Content, unmarked: &[Range<u64>], checked: &mut Checked) {
        for range in unmarked {
            let printed = checked.printed.len();
            if printed < PRINTED_MOST && checked.printed.insert(range.start) {
                let (path, commit) = (content.path.display(), checked.commits);
                let last = if printed + 1 == PRINTED_MOST { "; more places are not printed" } else { "" };
                eprintln!("untorn: {path}: not marked dirty before commit {commit}: {}{last}", self.place(range));
            }
        }
    }
}
