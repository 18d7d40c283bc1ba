//! Prefetch: reads that start before anybody waits for their result, so that scattered pieces come from the disk
//! together and not one after the other.

use crate::commits::log_reader::LogSegment;
use crate::commits::overlay::{Overlay, Source, joined};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use untorn_os::{BLOCK_BYTES, File};

/// Longer ranges need no prefetch, because sequential reads are fast enough.
const LONG_BYTES: u64 = 256 << 10;
/// Gaps of at most this size between two reads are read as well, because that costs less than a separate read.
const GAP_BYTES: u64 = 32 << 10;

/// Prefetches the parts of these ranges that the overlays have in the log.
pub fn prefetch_log<'a>(overlays: &[&Overlay], ranges: impl Iterator<Item = &'a Range<u64>>) {
    let mut places = BTreeMap::<*const LogSegment, (&Arc<LogSegment>, Vec<Range<u64>>)>::new();
    for range in ranges {
        for (_, source) in overlays.iter().flat_map(|overlay| overlay.overlapping(range)) {
            if let Source::Log { segment, at, len, .. } = source {
                places.entry(Arc::as_ptr(segment)).or_insert_with(|| (segment, Vec::new())).1.push(*at..at + len);
            }
        }
    }
    for (segment, pieces) in places.into_values() {
        blocks_of(pieces).into_iter().for_each(|blocks| segment.begin_read(blocks));
    }
}

/// Prefetches the data file's contents in these ranges, up to its end.
pub fn prefetch_file<'a>(file: &dyn File, end: u64, ranges: impl Iterator<Item = &'a Range<u64>>) {
    let short = ranges.filter(|range| range.end - range.start <= LONG_BYTES);
    let within = short.map(|range| range.start..range.end.min(end)).filter(|range| !range.is_empty());
    blocks_of(within.collect()).into_iter().for_each(|blocks| file.begin_read(blocks));
}

/// The whole blocks that these ranges touch, with small gaps closed.
fn blocks_of(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let block = BLOCK_BYTES as u64;
    for range in &mut ranges {
        *range = range.start - range.start % block..range.end.next_multiple_of(block);
    }
    ranges.sort_by_key(|range| range.start);
    joined(&ranges, GAP_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_read_and_what_is_far_apart_is_two() {
        let far = GAP_BYTES + 3 * BLOCK_BYTES as u64;
        assert_eq!(blocks_of(vec![far + 5..far + 6, 10..20, 4095..4097]), [0..8192, far..far + 4096]);
        assert_eq!(blocks_of(vec![]), []);
    }
}
