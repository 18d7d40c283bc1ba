//! Moves ranges of an overlay from memory to spill files.

use super::{Overlay, Source};
use crate::commits::spill::{Spill, SpillSpace, append_run};
use crate::error::Result;
use bytes::Bytes;
use rangemap::RangeSet;
use std::ops::Range;
use std::sync::Arc;

/// Smaller ranges are collected, and written to a spill file together, in writes of up to `TOGETHER_BYTES`.
const SMALL_BYTES: u64 = 4096;
const TOGETHER_BYTES: u64 = 60 << 10;

impl Overlay {
    /// Moves bytes from memory to a spill file; small ranges stay. If that fails, some ranges have moved. Bytes that
    /// moved before cost nothing.
    pub fn spill(&mut self, space: &mut SpillSpace, least_bytes: u64) -> Result<()> {
        self.map();
        let candidates: RangeSet<u64> = self.in_memory.drain(..).collect();
        self.in_memory.extend(candidates.iter().cloned());
        let (mut stay, mut memory_bytes) = (Vec::new(), 0);
        let (mut small, mut small_bytes) = (Vec::new(), 0);
        for within in candidates {
            let pieces = self.ranges.overlapping(&within);
            let pieces: Vec<_> =
                pieces.filter_map(|(range, source)| Some((range.clone(), source.slice(range)?))).collect();
            for (range, bytes) in pieces {
                let len = bytes.len() as u64;
                if len < least_bytes {
                    memory_bytes += len;
                    stay.push(range);
                } else if len < SMALL_BYTES {
                    small_bytes += len;
                    small.push((range, bytes));
                    if small_bytes >= TOGETHER_BYTES {
                        self.spill_together(space, &mut small)?;
                        small_bytes = 0;
                    }
                } else {
                    let (at, crc) = space.put(&bytes, range.start)?;
                    self.insert_spilled(space.spill(), range, at, crc);
                }
            }
        }
        self.spill_together(space, &mut small)?;
        self.in_memory = stay;
        self.memory_bytes = memory_bytes;
        debug_assert_eq!(self.memory_bytes, self.inline_bytes(), "bytes in memory are in no list");
        debug_assert!(
            self.ranges().all(|(range, source)| source.slice(range).is_none_or(|b| (b.len() as u64) < least_bytes)),
            "a range of {least_bytes} bytes or more stays in memory"
        );
        Ok(())
    }

    /// Moves runs of adjacent bytes from memory to the end of a spill file, each of at least this many bytes. If that
    /// fails, some have moved.
    pub fn spill_runs(&mut self, spill: &Arc<Spill>, least_bytes: u64) -> Result<()> {
        self.map();
        let candidates: RangeSet<u64> = self.in_memory.iter().cloned().collect();
        for within in candidates.iter().filter(|within| within.end - within.start >= least_bytes) {
            let pieces = self.ranges.overlapping(within);
            let pieces: Vec<_> =
                pieces.filter_map(|(range, source)| Some((range.clone(), source.slice(range)?))).collect();
            for run in pieces.chunk_by(|(one, _), (next, _)| one.end == next.start) {
                let range = run[0].0.start..run[run.len() - 1].0.end;
                let len = range.end - range.start;
                if len >= least_bytes {
                    let bytes: Vec<&[u8]> = run.iter().map(|(_, bytes)| &bytes[..]).collect();
                    let (at, crc) = append_run(spill, &bytes, range.start)?;
                    self.insert_spilled(spill, range, at, crc);
                    self.memory_bytes -= len;
                }
            }
        }
        debug_assert!(
            self.memory_bytes >= self.inline_bytes(),
            "{} bytes were given, and {} are in memory",
            self.memory_bytes,
            self.inline_bytes()
        );
        Ok(())
    }

    /// Writes many small ranges to the spill file with one write, because a write for each would take long.
    fn spill_together(&mut self, space: &mut SpillSpace, ranges: &mut Vec<(Range<u64>, Bytes)>) -> Result<()> {
        if ranges.is_empty() {
            return Ok(());
        }
        let pieces: Vec<&[u8]> = ranges.iter().map(|(_, bytes)| &bytes[..]).collect();
        let places = space.put_together(&pieces)?;
        for ((range, _), (at, crc)) in ranges.drain(..).zip(places) {
            self.insert_spilled(space.spill(), range, at, crc);
        }
        Ok(())
    }

    fn insert_spilled(&mut self, spill: &Arc<Spill>, range: Range<u64>, at: u64, crc: u64) {
        let (spill, origin, len) = (spill.clone(), range.start, range.end - range.start);
        self.ranges.insert(range, Source::Spill { spill, at, origin, len, crc });
    }
}
