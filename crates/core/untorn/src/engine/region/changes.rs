//! From stores in memory to staged changes: find the pages, copy them once, compare, stage the differences.

use super::{COPIES_BYTES_MAX, Region, marked};
use crate::engine::content::{Content, SpillSink, edited};
use crate::invariant;
use bytes::Bytes;
use rangemap::RangeSet;
use std::ops::Range;
use std::path::Path;
use untorn_journal::commits::overlay::{Overlay, Source, read_through};
use untorn_journal::format::sized_memory;
use untorn_journal::{Context, Error, Result};
use untorn_os::{Invariant, Piece, TrackerKind, holds, value_if_holds};

/// Pages that are copied and compared at once, so that both sides stay in the processor's cache.
pub(super) const LOT_PAGES: usize = 32;
/// Bytes that are compared first, because most of a page is usually unchanged.
pub(super) const BLOCK_BYTES: usize = 512;

/// Limit for the bytes copied at one moment; the rest is compared before the program continues.
const COPIES_MOST: usize = 64 << 20;
/// Memory for such copies that is kept for the next commit.
const KEPT_BYTES: usize = 8 << 20;
/// With more found pages than this, those that were only read are excluded before copying.
const UNSURE_MOST: usize = 2048;

/// Pages that were stored to, as of one moment.
pub(crate) struct Copies {
    pub(super) pages: Vec<u64>,
    /// Used instead of pages with the tracker `explicit`.
    pub(super) ranges: Vec<Range<u64>>,
    pub(super) bytes: Vec<u8>,
}

/// A store that happened unexpectedly during a commit.
pub(crate) struct Race {
    pub address: usize,
    pub offset: u64,
}

impl Region {
    /// Queries the pages that were stored to, and notes them, because the tracker reports each of them only once.
    pub(crate) fn find_stores(&mut self, content: &Content) -> Result<()> {
        if self.is_explicit() {
            self.marked.take(self.accessible, &mut self.taken);
            return Ok(());
        }
        let mut found = Vec::new();
        let mut asked = self.mapping.changed(0..self.accessible, &mut found);
        if asked.is_ok() && self.tracker() == TrackerKind::Scan && !self.live {
            // The tracker also reports pages of the file that were read for the first time.
            let mut stored = Vec::new();
            asked = found.iter().try_for_each(|range| self.stored_to(range, &mut stored));
            if asked.is_ok() || !holds(invariant::FOUND_ONCE) {
                found = stored;
            }
        }
        found.into_iter().for_each(|range| self.is_stored_to(range));
        asked.map_err(|e| self.fail(content, "look for changed pages of", e))
    }

    /// Notes pages that the tracker has reported.
    pub(super) fn is_stored_to(&mut self, range: Range<u64>) {
        self.ahead.forget(&range, self.page());
        self.found.insert(range);
    }

    /// Pages that were stored to and are not staged yet.
    pub(crate) fn stored(&mut self, content: &Content) -> Result<Vec<Range<u64>>> {
        self.find_stores(content)?;
        // Pages that a failed commit staged are examined again.
        self.touched.take().into_iter().flatten().for_each(|range| self.found.insert(range));
        let pages: RangeSet<u64> = self.unstaged().map(|range| self.pages_of(range)).collect();
        Ok(pages.into_iter().collect())
    }

    /// Ranges that were found or reported, and are not staged yet.
    fn unstaged(&self) -> impl Iterator<Item = &Range<u64>> {
        self.found.iter().chain(&self.taken)
    }

    /// Appends the pages of a range that do not show the file any more.
    fn stored_to(&self, range: &Range<u64>, into: &mut Vec<Range<u64>>) -> std::io::Result<()> {
        let page = self.page();
        let mut at = range.start;
        while at < range.end {
            let unsure = |at: &u64| *at < range.end && !self.pages.contains_key(at) && self.shown.contains(at);
            let run = (at..).step_by(page as usize).take_while(unsure).count() as u64 * page;
            if run > 0 {
                self.mapping.private(at..at + run, into)?;
                at += run;
            } else {
                into.push(at..at + page);
                at += page;
            }
        }
        Ok(())
    }

    /// Checks that no other program has changed the data file, because pages would show its changes.
    pub(super) fn check_unchanged(&self, content: &Content) -> Result<()> {
        let Some(last) = content.last_stat.filter(|_| content.applying.is_none()) else { return Ok(()) };
        let now = self.data()?.meta().context("look at", &content.path)?;
        if !edited(&now, &last) {
            return Ok(());
        }
        let what = if now.size < last.size { "truncated" } else { "changed" };
        Err(Error::Conflict {
            path: content.path.clone(),
            detail: format!("another program {what} the file while it was mapped"),
        })
    }

    /// Turns stores into staged changes, in whole units.
    pub(crate) fn stage_stores(&mut self, content: &mut Content, sink: &dyn SpillSink, unit: usize) -> Result<()> {
        self.check_undone()?;
        self.find_stores(content)?;
        self.stage_found(content, sink, unit)
    }

    pub(super) fn check_undone(&self) -> Result<()> {
        match self.not_undone.as_ref().filter(|_| holds(invariant::UNDONE_IS_NOT_COMMITTED)) {
            Some((_, e)) => Err(e.clone()),
            None => Ok(()),
        }
    }

    /// Copies all pages that were stored to, as of this moment. The caller stops the program for this, and no longer.
    /// `looked`: the caller has just queried these pages, and the program has been stopped since.
    pub(crate) fn copy_stores(
        &mut self,
        content: &mut Content,
        sink: &dyn SpillSink,
        unit: usize,
        looked: bool,
    ) -> Result<Copies> {
        self.check_undone()?;
        if self.is_explicit() {
            return self.copy_marked(content, sink, unit);
        }
        if !looked {
            let mut found = Vec::new();
            let asked = self.mapping.changed(0..self.accessible, &mut found);
            found.iter().for_each(|range| self.is_stored_to(range.clone()));
            asked.map_err(|e| self.fail(content, "look for changed pages of", e))?;
        }
        let page = self.page();
        let count = |region: &Region| region.found.iter().map(|r| (r.end - r.start) / page).sum::<u64>() as usize;
        if count(self) > UNSURE_MOST {
            self.leave_out_unstored(content)?;
        }
        if count(self) > COPIES_MOST / page as usize {
            self.stage_found(content, sink, unit)?;
        }
        let pages: Vec<u64> = self.found.iter().flat_map(|r| r.clone().step_by(page as usize)).collect();
        let mut bytes = std::mem::take(&mut self.copies_at_once);
        let len = pages.len() * page as usize;
        if bytes.len() < len && sized_memory::resize(&mut bytes, len, &content.path).is_err() {
            // Without this memory the program stays stopped for longer, but the commit is made.
            self.stage_found(content, sink, unit)?;
            return Ok(Copies { pages: Vec::new(), ranges: Vec::new(), bytes: Vec::new() });
        }
        self.copy_out(content, &pages, &mut bytes[..len])?;
        Ok(Copies { pages, ranges: Vec::new(), bytes })
    }

    /// Removes found pages that still show the file, because they were only read.
    fn leave_out_unstored(&mut self, content: &Content) -> Result<()> {
        if self.tracker() == TrackerKind::Scan && !self.live {
            let (found, mut stored) = (std::mem::take(&mut self.found), Vec::new());
            let asked = found.iter().try_for_each(|range| self.stored_to(range, &mut stored));
            if let Err(e) = asked {
                self.found = found;
                return Err(self.fail(content, "look for changed pages of", e));
            }
            stored.into_iter().for_each(|range| self.found.insert(range));
        }
        Ok(())
    }

    /// Stages copies of pages that were neither marked nor staged since they were copied.
    pub(crate) fn stage_copies(
        &mut self,
        content: &mut Content,
        sink: &dyn SpillSink,
        unit: usize,
        copies: Copies,
    ) -> Result<()> {
        if self.is_explicit() {
            return self.stage_marked_copies(content, sink, unit, copies);
        }
        if !copies.pages.is_empty() {
            self.check_unchanged(content)?;
            self.leave_out_unstored(content)?;
        }
        let (page, size) = (self.page(), content.size());
        let copy_of = |n: usize| &copies.bytes[n * page as usize..][..page as usize];
        let stored: Vec<usize> = (0..copies.pages.len()).filter(|n| self.found.contains(&copies.pages[*n])).collect();
        for lot in stored.chunks(LOT_PAGES) {
            let pages: Vec<u64> = lot.iter().map(|n| copies.pages[*n]).collect();
            let mut lot_copies = std::mem::take(&mut self.copies);
            lot_copies.clear();
            sized_memory::reserve(&mut lot_copies, lot.len() * page as usize, &content.path)?;
            lot.iter().for_each(|n| lot_copies.extend_from_slice(copy_of(*n)));
            self.stage_lot(content, sink, unit, size, &pages, lot_copies)?;
        }
        self.keep_buffer(copies.bytes);
        Ok(())
    }

    /// Keeps the memory of copies for the next commit, unless it is large.
    fn keep_buffer(&mut self, bytes: Vec<u8>) {
        if bytes.len() <= KEPT_BYTES {
            self.copies_at_once = bytes;
        }
    }

    pub(super) fn stage_found(&mut self, content: &mut Content, sink: &dyn SpillSink, unit: usize) -> Result<()> {
        if self.unstaged().next().is_none() {
            return Ok(());
        }
        self.check_unchanged(content)?;
        if self.is_explicit() {
            return self.stage_marked(content, sink, unit);
        }
        let (page, size) = (self.page(), content.size());
        loop {
            let pages = self.found.iter().flat_map(|r| r.clone().step_by(page as usize));
            let pages: Vec<u64> = pages.take(LOT_PAGES).collect();
            if pages.is_empty() {
                return Ok(());
            }
            let copies = self.copies(content, &pages)?;
            self.stage_lot(content, sink, unit, size, &pages, copies)?;
        }
    }

    /// Stages copies of found pages. `pages` has all found pages between the first and the last.
    pub(super) fn stage_lot(
        &mut self,
        content: &mut Content,
        sink: &dyn SpillSink,
        unit: usize,
        size: u64,
        pages: &[u64],
        copies: Vec<u8>,
    ) -> Result<()> {
        let (Some(first), Some(last)) = (pages.first(), pages.last()) else { return Ok(()) };
        let page = self.page();
        debug_assert!(
            copies.len() == pages.len() * page as usize && pages.is_sorted_by(|one, next| one < next),
            "{} bytes of pages {pages:?}",
            copies.len()
        );
        let done = *first..*last + page;
        debug_assert!(done.end <= self.accessible, "pages {done:?} of {} accessible bytes", self.accessible);
        let mut stage = Stage { size, unit, ranges: Vec::new(), bytes: Vec::new(), has_memory: true };
        self.expect_private(content, pages.len())?;
        self.compare(invariant::COMPARE_WITH_VIEW, content, pages, &copies, |at, copy, base| {
            stage.compare(at, copy, base)
        })?;
        if !stage.has_memory {
            return Err(sized_memory::none(copies.len(), &content.path));
        }
        let copies = if holds(invariant::ONE_COPY) { copies } else { self.copies(content, pages)? };
        self.keep(pages, &copies, &stage.ranges);
        self.copies = copies;
        stage.into(&mut content.write_set);
        if let Some(touched) = &mut self.touched {
            touched.extend(pages.iter().map(|at| *at..at + page));
        }
        self.found.remove(done);
        content.bound_memory(sink)
    }

    /// Copies pages out, once.
    pub(super) fn copies(&mut self, content: &Content, pages: &[u64]) -> Result<Vec<u8>> {
        let page = self.page() as usize;
        let mut copies = std::mem::take(&mut self.copies);
        sized_memory::resize(&mut copies, pages.len() * page, &content.path)?;
        self.copy_out(content, pages, &mut copies)?;
        Ok(copies)
    }

    fn copy_out(&self, content: &Content, pages: &[u64], into: &mut [u8]) -> Result<()> {
        debug_assert_eq!(into.len(), pages.len() * self.page() as usize, "room for copies of {} pages", pages.len());
        let into = into.chunks_exact_mut(self.page() as usize);
        let mut pieces: Vec<Piece<'_>> = pages.iter().zip(into).map(|(at, into)| Piece { offset: *at, into }).collect();
        self.mapping.copy_out(&mut pieces).map_err(|e| self.fail(content, "read the mapping of", e))
    }

    /// Calls `each` with every page's offset, its copy, and the content there. The invariant `care` ensures that the
    /// content includes the overlays.
    pub(super) fn compare(
        &self,
        care: Invariant,
        content: &Content,
        pages: &[u64],
        copies: &[u8],
        mut each: impl FnMut(u64, &[u8], &[u8]),
    ) -> Result<()> {
        let page = self.page();
        let copy = |n: usize| &copies[n * page as usize..][..page as usize];
        let overlays = value_if_holds(care, content.overlays());
        let known = |at: &u64| self.pages.get(at).filter(|_| holds(care)).and_then(Option::as_deref);
        let mut base = Vec::new();
        let mut i = 0;
        while i < pages.len() {
            if let Some(base) = known(&pages[i]) {
                each(pages[i], copy(i), base);
                i += 1;
                continue;
            }
            // Adjacent pages are read at once.
            let next =
                |n: usize| pages.get(i + n).is_some_and(|at| *at == pages[i] + n as u64 * page && known(at).is_none());
            let run = (1..).take_while(|n| next(*n)).count() + 1;
            sized_memory::resize(&mut base, run * page as usize, &content.path)?;
            read_through(&overlays, Some(self.data()?), &mut base, pages[i])?;
            for (n, base) in base.chunks_exact(page as usize).enumerate() {
                each(pages[i + n], copy(i + n), base);
            }
            i += run;
        }
        Ok(())
    }

    /// Updates the copies that are kept for the next comparison with changes that are being staged.
    fn keep(&mut self, pages: &[u64], copies: &[u8], changes: &[Range<u64>]) {
        let page = self.page();
        for (at, copy) in pages.iter().zip(copies.chunks_exact(page as usize)) {
            let known = self.pages.entry(*at).or_default();
            if let Some(known) = known {
                let first = changes.partition_point(|range| range.end <= *at);
                for range in changes[first..].iter().take_while(|range| range.start < at + page) {
                    let range = (range.start.max(*at) - at) as usize..(range.end.min(at + page) - at) as usize;
                    known[range.clone()].copy_from_slice(&copy[range]);
                }
            } else if self.copies_bytes + page <= COPIES_BYTES_MAX
                && let Ok(copy) = sized_memory::copy(copy, Path::new(""))
            {
                self.copies_bytes += page;
                *known = Some(copy.into());
            }
        }
        debug_assert!(
            self.copies_bytes <= COPIES_BYTES_MAX.min(self.pages.len() as u64 * page),
            "{} bytes are copies of {} pages",
            self.copies_bytes,
            self.pages.len()
        );
    }

    /// A store since the last staging, if there was one.
    pub(crate) fn race(&mut self, content: &Content) -> Result<Option<Race>> {
        self.find_stores(content)?;
        let (page, base) = (self.page(), self.mapping.address() as usize);
        let mut pages: Vec<u64> =
            self.unstaged().flat_map(|range| self.pages_of(range).step_by(page as usize)).collect();
        pages.dedup();
        for pages in pages.chunks(LOT_PAGES) {
            let copies = self.copies(content, pages)?;
            let mut race = None;
            let expected = |offset: &u64| !self.is_explicit() || marked::contains(&self.taken, *offset);
            self.compare(invariant::COMPARE_WITH_VIEW, content, pages, &copies, |at, copy, base| {
                let mut bytes = (at..).zip(copy.iter().zip(base));
                let differs = bytes.find(|(offset, (a, b))| a != b && expected(offset)).map(|(offset, _)| offset);
                race = race.or(differs.filter(|offset| *offset < content.size()));
            })?;
            self.copies = copies;
            if let Some(offset) = race {
                return Ok(Some(Race { address: base + offset as usize, offset }));
            }
        }
        Ok(None)
    }
}

/// Lines that differ, for the write set.
struct Stage {
    size: u64,
    unit: usize,
    ranges: Vec<Range<u64>>,
    bytes: Vec<u8>,
    /// Whether there was memory for all differences so far.
    has_memory: bool,
}

impl Stage {
    fn compare(&mut self, at: u64, copy: &[u8], base: &[u8]) {
        let len = copy.len().min(self.size.saturating_sub(at) as usize);
        for block in (0..len).step_by(BLOCK_BYTES) {
            let end = (block + BLOCK_BYTES).min(len);
            if copy[block..end] == base[block..end] {
                continue;
            }
            for line in (block..end).step_by(self.unit) {
                let end = (line + self.unit).min(end);
                if copy[line..end] != base[line..end] {
                    self.push(at + line as u64..at + end as u64, &copy[line..end]);
                }
            }
        }
    }

    fn push(&mut self, range: Range<u64>, bytes: &[u8]) {
        self.has_memory &= self.bytes.try_reserve(bytes.len()).is_ok();
        if !self.has_memory {
            return;
        }
        match self.ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.ranges.push(range),
        }
        self.bytes.extend_from_slice(bytes);
    }

    fn into(self, write_set: &mut Overlay) {
        debug_assert_eq!(
            self.ranges.iter().map(|range| range.end - range.start).sum::<u64>(),
            self.bytes.len() as u64,
            "bytes of {} ranges",
            self.ranges.len()
        );
        debug_assert!(
            self.ranges.last().is_none_or(|last| last.end <= self.size),
            "{:?} of a file of {} bytes",
            self.ranges.last(),
            self.size
        );
        let bytes = Bytes::from(self.bytes);
        let mut at = 0;
        let with_bytes = |range: Range<u64>| {
            let len = (range.end - range.start) as usize;
            let source = Source::Bytes { bytes: bytes.slice(at..at + len), origin: range.start };
            at += len;
            (range, source)
        };
        write_set.insert_all(self.ranges.into_iter().map(with_bytes).collect());
    }
}
