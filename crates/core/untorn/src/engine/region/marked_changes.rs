//! From reported ranges to staged changes: copy these bytes once, and stage them.

use super::Region;
use super::changes::Copies;
use super::marked::tidy;
use crate::engine::content::{Content, SpillSink};
use crate::invariant;
use bytes::Bytes;
use std::ops::Range;
use untorn_journal::Result;
use untorn_journal::commits::overlay::{Source, read_through};
use untorn_journal::format::sized_memory;
use untorn_os::{Piece, holds, value_if_holds};

/// Bytes and ranges that are copied and staged at once.
const LOT_BYTES: u64 = 1 << 20;
const LOT_RANGES: usize = 1 << 14;
/// Limit for the bytes copied at one moment; the rest is staged before the program continues.
const COPIES_MOST: u64 = 64 << 20;

pub(super) fn len_of(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// The first of these ranges, at most one lot; the last one may be partial.
fn first_lot(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let (mut lot, mut bytes) = (Vec::new(), 0);
    for range in ranges.iter().take(LOT_RANGES) {
        let range = range.start..range.end.min(range.start + LOT_BYTES - bytes);
        bytes += range.end - range.start;
        lot.push(range);
        if bytes == LOT_BYTES {
            break;
        }
    }
    debug_assert!(len_of(&lot) <= LOT_BYTES && lot.len() <= ranges.len(), "{} bytes in {} ranges", bytes, lot.len());
    lot
}

impl Region {
    /// Without the invariant, extends ranges to whole lines, which the other trackers compare. Exactly the reported
    /// bytes must be staged.
    fn add_lines(&mut self) {
        if !holds(invariant::UNMARKED_STAYS_OUT) {
            for range in &mut self.taken {
                *range = range.start / 64 * 64..range.end.next_multiple_of(64).min(self.accessible);
            }
            tidy(&mut self.taken);
        }
    }

    /// Stages the reported bytes, as they are in memory now.
    pub(super) fn stage_marked(&mut self, content: &mut Content, sink: &dyn SpillSink, unit: usize) -> Result<()> {
        self.add_lines();
        let mut taken = std::mem::take(&mut self.taken);
        let (mut staged, mut done) = (0, Ok(()));
        while staged < taken.len() && done.is_ok() {
            let lot = first_lot(&taken[staged..]);
            done =
                self.copies_of(content, &lot).and_then(|bytes| self.stage_marked_lot(content, sink, unit, &lot, bytes));
            // Ranges that cannot be staged stay, for the next commit.
            if done.is_ok() || !holds(invariant::MARKED_UNTIL_STAGED) {
                staged += lot.len();
                let (whole, last) = (&mut taken[staged - 1], &lot[lot.len() - 1]);
                if last.end < whole.end {
                    whole.start = last.end;
                    staged -= 1;
                }
            }
        }
        debug_assert!(self.taken.is_empty(), "ranges were taken while others are staged: {:?}", self.taken);
        debug_assert!(done.is_err() || staged == taken.len(), "{staged} of {} ranges are staged", taken.len());
        taken.drain(..staged);
        self.taken = taken;
        done
    }

    /// Copies all reported bytes, as of this moment.
    pub(super) fn copy_marked(&mut self, content: &mut Content, sink: &dyn SpillSink, unit: usize) -> Result<Copies> {
        self.find_stores(content)?;
        if len_of(&self.taken) > COPIES_MOST {
            self.check_unchanged(content)?;
            self.stage_marked(content, sink, unit)?;
        }
        self.add_lines();
        let ranges = self.taken.clone();
        let bytes = self.copies_of(content, &ranges)?;
        Ok(Copies { pages: Vec::new(), ranges, bytes })
    }

    /// Stages copies of all ranges that were taken.
    pub(super) fn stage_marked_copies(
        &mut self,
        content: &mut Content,
        sink: &dyn SpillSink,
        unit: usize,
        copies: Copies,
    ) -> Result<()> {
        if copies.ranges.is_empty() {
            return Ok(());
        }
        self.check_unchanged(content)?;
        self.stage_marked_lot(content, sink, unit, &copies.ranges, copies.bytes)?;
        self.taken.clear();
        Ok(())
    }

    /// Stages bytes of reported ranges. Other bytes on the same page or line are not included.
    fn stage_marked_lot(
        &mut self,
        content: &mut Content,
        sink: &dyn SpillSink,
        unit: usize,
        ranges: &[Range<u64>],
        bytes: Vec<u8>,
    ) -> Result<()> {
        debug_assert_eq!(bytes.len() as u64, len_of(ranges), "bytes of {} ranges", ranges.len());
        let (page, size) = (self.page(), content.size());
        let bytes = Bytes::from(bytes);
        let mut staged: Vec<(Range<u64>, Source)> = Vec::with_capacity(ranges.len());
        let mut from = 0;
        for range in ranges {
            let len = (range.end - range.start) as usize;
            // Bytes beyond the end of the file are never a part of it.
            let inside = range.start..range.end.min(size);
            if inside.start < inside.end {
                let bytes = bytes.slice(from..from + (inside.end - inside.start) as usize);
                match unit {
                    1 => self.differing(content, inside, &bytes, &mut staged)?,
                    _ => staged.push((inside.clone(), Source::Bytes { bytes, origin: inside.start })),
                }
            }
            from += len;
        }
        content.write_set.insert_all(staged);
        for range in ranges {
            let pages = self.pages_of(range).step_by(page as usize);
            pages.for_each(|at| _ = self.pages.entry(at).or_default());
        }
        content.bound_memory(sink)
    }

    /// Appends the parts of a range that differ from the content, byte by byte. Bytes of a transaction on its way,
    /// which may still fail, must not get into the next commit with bytes that were reported beside them.
    fn differing(
        &self,
        content: &Content,
        range: Range<u64>,
        bytes: &Bytes,
        into: &mut Vec<(Range<u64>, Source)>,
    ) -> Result<()> {
        let mut base = sized_memory::zeros(bytes.len() as u64, &content.path)?;
        let overlays = value_if_holds(invariant::COMPARE_WITH_VIEW, content.overlays());
        read_through(&overlays, Some(self.data()?), &mut base, range.start)?;
        let mut at = 0;
        while let Some(skipped) = bytes[at..].iter().zip(&base[at..]).position(|(a, b)| a != b) {
            let start = at + skipped;
            let end = start + bytes[start..].iter().zip(&base[start..]).take_while(|(a, b)| a != b).count();
            let origin = range.start + start as u64;
            let source = Source::Bytes { bytes: bytes.slice(start..end), origin };
            into.push((origin..range.start + end as u64, source));
            at = end;
        }
        Ok(())
    }

    /// Copies of the bytes of ranges, one after the other.
    pub(super) fn copies_of(&self, content: &Content, ranges: &[Range<u64>]) -> Result<Vec<u8>> {
        let mut bytes = sized_memory::zeros(len_of(ranges), &content.path)?;
        self.copy_ranges_out(content, ranges, &mut bytes)?;
        Ok(bytes)
    }

    fn copy_ranges_out(&self, content: &Content, ranges: &[Range<u64>], mut into: &mut [u8]) -> Result<()> {
        let mut pieces = Vec::with_capacity(ranges.len());
        for range in ranges {
            let (piece, rest) = into.split_at_mut((range.end - range.start) as usize);
            pieces.push(Piece { offset: range.start, into: piece });
            into = rest;
        }
        debug_assert!(into.is_empty(), "{} bytes more than {} ranges have", into.len(), ranges.len());
        self.mapping.copy_out(&mut pieces).map_err(|e| self.fail(content, "read the mapping of", e))
    }
}
