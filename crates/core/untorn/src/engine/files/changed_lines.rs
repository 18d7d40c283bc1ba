//! Writes of which only the changed lines are logged.

use crate::engine::content::SpillSink;
use crate::engine::files::file_state::{FileState, LINE_BYTES, checked_range};
use std::ops::Range;
use untorn_journal::Result;
use untorn_journal::commits::overlay::read_in_memory;
use untorn_journal::format::sized_memory;

/// Longer writes than this are hardly of pages that have few changes.
const COMPARED_BYTES_MAX: usize = 64 << 10;

impl FileState {
    /// Writes the lines that differ from the present ones. Returns whether there are any.
    pub(crate) fn write_changed_at(&mut self, sink: &dyn SpillSink, bytes: &[u8], offset: u64) -> Result<bool> {
        let range = checked_range(offset, bytes.len() as u64)?;
        let present_end = range.end.min(self.content.size()).max(offset);
        let mut present = sized_memory::zeros(present_end - offset, self.path())?;
        self.read_at(&mut present, offset)?;
        let runs = changed_lines(bytes, &present, offset);
        self.check_writable()?;
        if range.end > self.content.size() {
            self.check_growth(sink, range.end, "write")?;
        }
        self.write_runs(sink, &runs, bytes, offset)?;
        Ok(!runs.is_empty())
    }

    /// Writes like [`Self::write_at`], without lines that stay the same, if overlays have the present bytes in memory.
    /// They then have all of the written range afterwards, too.
    pub(crate) fn write_over_at(&mut self, sink: &dyn SpillSink, bytes: &[u8], offset: u64) -> Result<()> {
        self.check_writable()?;
        let range = checked_range(offset, bytes.len() as u64)?;
        // If a commit on its way fails, its bytes may go, and these must stay.
        let is_settled = self.region.is_none() && self.content.committing.is_empty();
        let is_page = !range.is_empty() && bytes.len() <= COMPARED_BYTES_MAX && range.end <= self.content.size();
        let present = || read_in_memory(&self.content.overlays(), range);
        match (is_settled && is_page).then(present).flatten() {
            Some(present) => self.write_runs(sink, &changed_lines(bytes, &present, offset), bytes, offset),
            None => self.write_at(sink, bytes, Some(offset)).map(drop),
        }
    }

    /// Writes parts of `bytes`, of which the first byte is at `offset`.
    fn write_runs(&mut self, sink: &dyn SpillSink, runs: &[Range<usize>], bytes: &[u8], offset: u64) -> Result<()> {
        self.content.make_room(sink, runs.iter().map(|run| run.len() as u64).sum())?;
        for run in runs {
            self.write_at(sink, &bytes[run.clone()], Some(offset + run.start as u64))?;
        }
        Ok(())
    }
}

/// The parts of `bytes` whose lines differ from those of `present`, which may be shorter; the first byte of both is at
/// `offset`.
fn changed_lines(bytes: &[u8], present: &[u8], offset: u64) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut start = 0;
    while start < bytes.len() {
        let line_left = LINE_BYTES - (offset + start as u64) as usize % LINE_BYTES;
        let end = (start + line_left).min(bytes.len());
        if present.get(start..end) != Some(&bytes[start..end]) {
            match runs.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => runs.push(start..end),
            }
        }
        start = end;
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(bytes: &[u8], present: &[u8], offset: u64) -> Vec<(usize, usize)> {
        changed_lines(bytes, present, offset).into_iter().map(|run| (run.start, run.end)).collect()
    }

    #[test]
    fn lines_are_those_of_the_file() {
        let present = [7; 300];
        let mut bytes = present;
        assert!(changed_lines(&bytes, &present, 100).is_empty());
        // The first line of the file that begins behind offset 100 is at 128.
        bytes[27] = 0;
        bytes[28] = 0;
        assert_eq!(changed(&bytes, &present, 100), [(0, 92)]);
        bytes[299] = 0;
        assert_eq!(changed(&bytes, &present, 100), [(0, 92), (284, 300)]);
        assert_eq!(changed(&[1; 70], &[], 0), [(0, 70)]);
        assert_eq!(changed(&present, &present[..100], 0), [(64, 300)]);
    }
}
