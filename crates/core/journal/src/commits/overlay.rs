//! Changes of one file's contents, newest over older.
//!
//! An overlay holds ranges (bytes, zeros, or a range of a spill file) and perhaps a new size. Overlays lie over each
//! other and over the data file; one can be merged into the one below. A truncation leaves an endless range of zeros
//! behind the new end, so that a later extension reads zeros, and not bytes that the data file still holds.

mod spilling;

use crate::commits::log_reader::LogSegment;
use crate::commits::spill::Spill;
use crate::error::{Context, Error, Result};
use crate::format::sized_memory;
use crate::invariant;
use bytes::Bytes;
use rangemap::{RangeMap, RangeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use untorn_os::{File, holds, read_full_at};

/// End of an endless range: the tail of a truncated file.
pub const NO_END: u64 = u64::MAX;

/// A list of at most this many ranges in memory is not worth compacting.
const IN_MEMORY_MIN: usize = 64;

/// Gaps of at most this size between two reads are read as well, because that costs less than a separate read.
const GAP_BYTES: u64 = 8 << 10;

/// Place of a range's bytes. `origin` is the file offset of the source's first byte, so that cutting a range needs no
/// arithmetic.
#[derive(Clone, Debug)]
pub enum Source {
    /// Memory.
    Bytes {
        /// The bytes.
        bytes: Bytes,
        /// File offset of the first of them.
        origin: u64,
    },
    /// Zeros.
    Zero,
    /// A range of a spill file.
    Spill {
        /// The spill file.
        spill: Arc<Spill>,
        /// Offset of the first byte in the spill file.
        at: u64,
        /// File offset of that byte.
        origin: u64,
        /// Length of the range as it was written, in bytes.
        len: u64,
        /// Checksum of the range as it was written.
        crc: u64,
    },
    /// A piece of a record that is not applied, in a segment of the journal.
    Log {
        /// The segment.
        segment: Arc<LogSegment>,
        /// Offset of the first byte in the segment.
        at: u64,
        /// File offset of that byte.
        origin: u64,
        /// Length of the piece, in bytes.
        len: u64,
        /// Checksum of the piece.
        crc: u64,
    },
    /// Committed bytes that the disk cannot read.
    Unreadable(Arc<Error>),
}

impl PartialEq for Source {
    fn eq(&self, other: &Source) -> bool {
        match (self, other) {
            (Source::Zero, Source::Zero) => true,
            (Source::Bytes { bytes: a, origin: x }, Source::Bytes { bytes: b, origin: y }) => {
                x == y && a.len() == b.len() && a.as_ptr() == b.as_ptr()
            }
            // Compare the length, too: the remainder of a cut range differs from new bytes in the place of the part
            // that was cut.
            (
                Source::Spill { spill: a, at: i, origin: x, len: m, .. },
                Source::Spill { spill: b, at: j, origin: y, len: n, .. },
            ) => Arc::ptr_eq(a, b) && (i, x, m) == (j, y, n),
            (
                Source::Log { segment: a, at: i, origin: x, len: m, .. },
                Source::Log { segment: b, at: j, origin: y, len: n, .. },
            ) => Arc::ptr_eq(a, b) && (i, x, m) == (j, y, n),
            (Source::Unreadable(a), Source::Unreadable(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl Eq for Source {}

impl Source {
    /// The bytes of a range, if they are in memory.
    pub fn slice(&self, range: &Range<u64>) -> Option<Bytes> {
        match self {
            Source::Bytes { bytes, origin } => {
                Some(bytes.slice((range.start - origin) as usize..(range.end - origin) as usize))
            }
            _ => None,
        }
    }

    /// Copies bytes of the source, starting at file offset `from`, into `buf`.
    pub fn copy_to(&self, buf: &mut [u8], from: u64) -> Result<()> {
        match self {
            Source::Bytes { bytes, origin } => {
                let at = (from - origin) as usize;
                buf.copy_from_slice(&bytes[at..at + buf.len()]);
                Ok(())
            }
            Source::Zero => {
                buf.fill(0);
                Ok(())
            }
            Source::Spill { spill, at, origin, len, crc } => {
                spill.check_used(*at, *len, *crc)?;
                spill.read(buf, at + (from - origin))
            }
            Source::Log { segment, at, origin, len, crc } => {
                let piece = segment.read(*at, *len, *crc)?;
                buf.copy_from_slice(&piece[(from - origin) as usize..][..buf.len()]);
                Ok(())
            }
            Source::Unreadable(e) => Err((**e).clone()),
        }
    }

    /// Whether the source has all bytes of a range. Only zeros have no end.
    fn has(&self, range: &Range<u64>) -> bool {
        let (origin, len) = match self {
            Source::Bytes { bytes, origin } => (*origin, bytes.len() as u64),
            Source::Spill { origin, len, .. } | Source::Log { origin, len, .. } => (*origin, *len),
            Source::Zero => return true,
            Source::Unreadable(_) => return range.end != NO_END,
        };
        origin <= range.start && range.end - origin <= len
    }

    /// The journal segment that holds the bytes, and the end of their piece in it.
    pub fn log_place(&self) -> Option<(&LogSegment, u64)> {
        match self {
            Source::Log { segment, at, len, .. } => Some((&**segment, at + len)),
            _ => None,
        }
    }
}

/// Changes of one file that lie over its older contents.
#[derive(Clone, Debug, Default)]
pub struct Overlay {
    /// Ranges that were inserted in order, while nothing else was inserted. Either this or the map is empty.
    run: Vec<(Range<u64>, Source)>,
    ranges: RangeMap<u64, Source>,
    /// The file's size, if this overlay changes it.
    pub size: Option<u64>,
    memory_bytes: u64,
    /// Ranges that cover all bytes in memory. They may overlap, and cover other bytes, too.
    in_memory: Vec<Range<u64>>,
}

impl Overlay {
    /// Sets the sources of ranges, which are in order and disjoint. This is much faster than single inserts if the
    /// overlay has no range behind the start of the first.
    pub fn insert_all(&mut self, ranges: Vec<(Range<u64>, Source)>) {
        debug_assert!(
            ranges.iter().all(|(range, source)| !range.is_empty() && source.has(range)),
            "a range is empty, or its source has less: {ranges:?}"
        );
        debug_assert!(
            ranges.is_sorted_by(|(one, _), (next, _)| one.end <= next.start),
            "ranges overlap, or are not in order: {ranges:?}"
        );
        debug_assert!(
            self.run.is_empty() || self.ranges.is_empty(),
            "{} ranges in a run, and {} others",
            self.run.len(),
            self.ranges.len()
        );
        let is_behind = |(last, _): &(Range<u64>, _)| ranges.first().is_none_or(|(first, _)| last.end <= first.start);
        if !self.ranges.is_empty() || !self.run.last().is_none_or(is_behind) {
            ranges.into_iter().for_each(|(range, source)| self.insert(range, source));
            return;
        }
        for (range, source) in &ranges {
            self.note_memory(range, source);
        }
        if self.run.is_empty() {
            self.run = ranges;
        } else {
            self.run.extend(ranges);
        }
        debug_assert!(
            self.run.is_sorted_by(|(one, _), (next, _)| one.end <= next.start),
            "the run is not in order: {:?}",
            self.run
        );
    }

    fn note_memory(&mut self, range: &Range<u64>, source: &Source) {
        if let Source::Bytes { .. } = source {
            self.memory_bytes += range.end - range.start;
            self.in_memory.push(range.clone());
        }
    }

    /// The ranges as a map, for changing them.
    fn map(&mut self) -> &mut RangeMap<u64, Source> {
        for (range, source) in std::mem::take(&mut self.run) {
            self.ranges.insert(range, source);
        }
        &mut self.ranges
    }

    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.size.is_none() && self.has_no_ranges()
    }

    /// Bytes of memory that were given to the overlay, including those that were overwritten since.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// The ranges in order.
    pub fn ranges(&self) -> impl Iterator<Item = (&Range<u64>, &Source)> {
        self.run.iter().map(|(range, source)| (range, source)).chain(self.ranges.iter())
    }

    /// How many ranges there are.
    pub fn ranges_len(&self) -> usize {
        self.run.len() + self.ranges.len()
    }

    /// The ranges that touch a range, in order.
    pub fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = (&Range<u64>, &Source)> + use<'_> {
        let (first, end) = (self.run.partition_point(|(one, _)| one.end <= range.start), range.end);
        let run = self.run[first..].iter().take_while(move |(one, _)| one.start < end);
        run.map(|(range, source)| (range, source)).chain(self.ranges.overlapping(range.clone()))
    }

    /// Bytes that differ from the layer below, without the endless tail.
    pub fn changed_bytes(&self) -> u64 {
        self.ranges().filter(|(r, _)| r.end != NO_END).map(|(r, _)| r.end - r.start).sum()
    }

    /// Bytes that differ from the layer below and are not zeros, wherever they are kept.
    pub fn stored_bytes(&self) -> u64 {
        self.ranges().filter(|(_, source)| **source != Source::Zero).map(|(r, _)| r.end - r.start).sum()
    }

    /// Sets the source of a range. Does not change the size.
    pub fn insert(&mut self, range: Range<u64>, source: Source) {
        if range.is_empty() {
            return;
        }
        debug_assert!(source.has(&range), "{source:?} has less than {range:?}");
        self.note_memory(&range, &source);
        let is_behind = self.run.last().is_none_or(|(last, _)| last.end <= range.start);
        if self.ranges.is_empty() && is_behind {
            // Programs often write in order.
            self.run.push((range, source));
        } else {
            self.map().insert(range, source);
        }
    }

    /// Sets the size, and hides the contents beyond it, of this overlay and of the layers below.
    pub fn truncate(&mut self, size: u64) {
        debug_assert!(size < NO_END, "a file of {size} bytes");
        self.map().insert(size..NO_END, Source::Zero);
        self.size = Some(size);
    }

    /// Lays a newer overlay over this one.
    pub fn merge(&mut self, newer: &Overlay) {
        if self.is_empty() {
            *self = newer.clone();
            return;
        }
        let ranges = self.map();
        for (range, source) in newer.ranges() {
            ranges.insert(range.clone(), source.clone());
        }
        self.size = newer.size.or(self.size);
        self.memory_bytes += newer.memory_bytes;
        self.in_memory.extend_from_slice(&newer.in_memory);
        if self.in_memory.len() > 2 * self.ranges.len() + IN_MEMORY_MIN {
            let in_memory = self.ranges.iter().filter(|(_, source)| matches!(source, Source::Bytes { .. }));
            self.in_memory = in_memory.map(|(range, _)| range.clone()).collect();
            debug_assert!(
                self.memory_bytes >= self.inline_bytes(),
                "{} bytes were given, and {} are in memory",
                self.memory_bytes,
                self.inline_bytes()
            );
        }
    }

    /// Bytes of ranges that are in memory.
    pub fn inline_bytes(&self) -> u64 {
        let in_memory = self.ranges().filter(|(_, source)| matches!(source, Source::Bytes { .. }));
        in_memory.map(|(range, _)| range.end - range.start).sum()
    }

    /// The spill files that hold ranges of the overlay, each once.
    pub fn spills(&self) -> Vec<Arc<Spill>> {
        let mut found: Vec<Arc<Spill>> = Vec::new();
        for (_, source) in self.ranges() {
            if let Source::Spill { spill, .. } = source
                && !found.iter().any(|e| Arc::ptr_eq(e, spill))
            {
                found.push(spill.clone());
            }
        }
        found
    }

    /// Whether any range lies in a segment of the journal.
    pub fn lies_in_log(&self) -> bool {
        self.ranges().any(|(_, source)| matches!(source, Source::Log { .. }))
    }

    /// Splits the overlay into the part that must be in the data file before the log is truncated behind this LSN, and
    /// the part that may follow later because its segments stay. Ranges outside of the log may be newer than that LSN;
    /// they go into the first part, since writing them early does no harm.
    pub fn split_at(&self, lsn: u64) -> (Overlay, Overlay) {
        let stays = |(_, source): &(&Range<u64>, &Source)| match source {
            Source::Log { segment, .. } => segment.outlives(lsn),
            _ => !holds(invariant::PORTION_OUT_OF_LOG),
        };
        let (rest, portion): (Vec<_>, Vec<_>) = self.ranges().partition(stays);
        debug_assert_eq!(rest.len() + portion.len(), self.ranges_len(), "ranges are lost at {lsn}");
        let overlay_of = |ranges: Vec<(&Range<u64>, &Source)>| {
            let mut overlay = Overlay { size: self.size, ..Overlay::default() };
            overlay.insert_all(ranges.into_iter().map(|(range, source)| (range.clone(), source.clone())).collect());
            overlay
        };
        (overlay_of(portion), overlay_of(rest))
    }

    /// Whether the overlay has no ranges; it may have a size.
    pub fn has_no_ranges(&self) -> bool {
        self.run.is_empty() && self.ranges.is_empty()
    }

    /// A copy of the overlay with all ranges from the journal's segments loaded into memory.
    pub fn without_log(&self) -> Result<Overlay> {
        let mut overlay = Overlay { size: self.size, ..Overlay::default() };
        for (range, source) in self.ranges() {
            let mut source = source.clone();
            if let Source::Log { segment, .. } = &source {
                let mut bytes = sized_memory::zeros(range.end - range.start, segment.path())?;
                source.copy_to(&mut bytes, range.start)?;
                source = Source::Bytes { bytes: bytes.into(), origin: range.start };
            }
            overlay.insert(range.clone(), source);
        }
        debug_assert!(!overlay.lies_in_log(), "ranges stay in the log");
        debug_assert_eq!(overlay.changed_bytes(), self.changed_bytes(), "bytes left the log and were lost");
        Ok(overlay)
    }

    /// A copy of the overlay that keeps only visible bytes in memory: a range may be a slice of much longer bytes.
    pub fn trimmed(&self) -> Overlay {
        let of_its_own = |(range, source): (&Range<u64>, &Source)| match source.slice(range) {
            Some(bytes) => {
                // If there is no memory for a copy, the longer bytes stay.
                let own = sized_memory::copy(&bytes, Path::new("")).map_or(bytes, Bytes::from);
                (range.clone(), Source::Bytes { bytes: own, origin: range.start })
            }
            None => (range.clone(), source.clone()),
        };
        let mut trimmed = Overlay { size: self.size, ..Overlay::default() };
        trimmed.insert_all(self.ranges().map(of_its_own).collect());
        debug_assert_eq!(trimmed.changed_bytes(), self.changed_bytes(), "a copy lacks bytes");
        trimmed
    }

    /// The error of a range that the disk cannot read, if there is such a range.
    pub fn unreadable(&self) -> Option<&Error> {
        self.ranges().find_map(|(_, source)| match source {
            Source::Unreadable(e) => Some(&**e),
            _ => None,
        })
    }

    /// A copy of the overlay without unreadable ranges.
    pub fn without_unreadable(&self) -> Overlay {
        let mut overlay = Overlay { size: self.size, ..Overlay::default() };
        for (range, source) in self.ranges().filter(|(_, source)| !matches!(source, Source::Unreadable(_))) {
            overlay.insert(range.clone(), source.clone());
        }
        overlay
    }

    /// The ranges of a spill file that the overlay refers to.
    pub fn used_of(&self, file: &Spill) -> RangeSet<u64> {
        let used = self.ranges().filter_map(|(range, source)| match source {
            Source::Spill { spill, at, origin, .. } if std::ptr::eq(&**spill, file) => {
                Some(at + (range.start - origin)..at + (range.end - origin))
            }
            _ => None,
        });
        used.filter(|_| holds(invariant::SPILLED_BYTES_STAY)).collect()
    }

    /// Whether the overlay by itself has all bytes of a range.
    pub fn covers(&self, range: &Range<u64>) -> bool {
        let mut at = range.start;
        for (found, _) in self.overlapping(range) {
            if found.start > at {
                return false;
            }
            at = found.end;
        }
        at >= range.end
    }
}

/// Reads through overlays, the newest first, down to the data file; bytes beyond its end are zeros. The caller has
/// clipped `buf` to the size of the view. Stack and time do not depend on the number of overlays below the newest ones
/// that have the bytes.
pub fn read_through(overlays: &[&Overlay], base: Option<&dyn File>, buf: &mut [u8], offset: u64) -> Result<()> {
    let (pieces, missing) = pieces_of(overlays, offset..offset + buf.len() as u64);
    let within = |range: &Range<u64>| (range.start - offset) as usize..(range.end - offset) as usize;
    // One read that includes bytes under overlay pieces costs less than several reads. If the disk cannot read those
    // bytes, the missing ranges are read one by one.
    let read = |ranges: &[Range<u64>], buf: &mut [u8]| {
        ranges.iter().try_for_each(|range| read_base(base, &mut buf[within(range)], range.start))
    };
    match read(&joined(&missing, GAP_BYTES), buf) {
        Err(_) if !pieces.is_empty() => read(&missing, buf)?,
        done => done?,
    }
    pieces.into_iter().try_for_each(|(part, source)| source.copy_to(&mut buf[within(&part)], part.start))
}

/// The bytes of a range, if overlays have all of them in memory.
pub fn read_in_memory(overlays: &[&Overlay], range: Range<u64>) -> Option<Vec<u8>> {
    let (mut pieces, missing) = pieces_of(overlays, range.clone());
    let are_in_memory = pieces.iter().all(|(_, source)| matches!(source, Source::Bytes { .. } | Source::Zero));
    if !missing.is_empty() || !are_in_memory {
        return None;
    }
    pieces.sort_unstable_by_key(|(part, _)| part.start);
    let mut bytes = Vec::new();
    bytes.try_reserve_exact((range.end - range.start) as usize).ok()?;
    for (part, source) in pieces {
        match source.slice(&part) {
            Some(piece) => bytes.extend_from_slice(&piece),
            None => bytes.resize(bytes.len() + (part.end - part.start) as usize, 0),
        }
    }
    Some(bytes)
}

/// A part of a range, and the source of its bytes.
type Piece<'a> = (Range<u64>, &'a Source);

/// The parts of a range that overlays have, and those that none of them has, in order.
fn pieces_of<'a>(overlays: &[&'a Overlay], all: Range<u64>) -> (Vec<Piece<'a>>, Vec<Range<u64>>) {
    let bytes = all.end - all.start;
    let mut missing: Vec<Range<u64>> = Vec::from_iter((!all.is_empty()).then_some(all));
    let mut pieces: Vec<Piece<'a>> = Vec::new();
    for overlay in overlays.iter().filter(|overlay| !overlay.has_no_ranges()) {
        if missing.is_empty() {
            break;
        }
        let mut below = Vec::with_capacity(missing.len());
        for range in &missing {
            let mut at = range.start;
            for (found, source) in overlay.overlapping(range) {
                let part = found.start.max(range.start)..found.end.min(range.end);
                if at < part.start {
                    below.push(at..part.start);
                }
                at = part.end;
                pieces.push((part, source));
            }
            if at < range.end {
                below.push(at..range.end);
            }
        }
        missing = below;
    }
    debug_assert_eq!(
        pieces.iter().map(|(part, _)| part.end - part.start).sum::<u64>()
            + missing.iter().map(|range| range.end - range.start).sum::<u64>(),
        bytes,
        "each byte has one place"
    );
    (pieces, missing)
}

/// Ranges, sorted by start, joined where the gap between them has at most this many bytes.
pub(crate) fn joined(ranges: &[Range<u64>], gap_bytes: u64) -> Vec<Range<u64>> {
    debug_assert!(ranges.is_sorted_by_key(|range| range.start), "ranges are not in order: {ranges:?}");
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end + gap_bytes => last.end = last.end.max(range.end),
            _ => joined.push(range.clone()),
        }
    }
    debug_assert!(joined.is_sorted_by(|one, next| one.end < next.start), "joined ranges touch: {joined:?}");
    joined
}

/// Reads the data file; bytes behind its end are zeros.
fn read_base(base: Option<&dyn File>, buf: &mut [u8], offset: u64) -> Result<()> {
    let n = match base {
        Some(file) => read_full_at(file, buf, offset).context("read", "the data file")?,
        None => 0,
    };
    buf[n..].fill(0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commits::spill::SpillSpace;
    use untorn_os::BLOCK_BYTES;

    fn bytes(text: &'static [u8], origin: u64) -> Source {
        Source::Bytes { bytes: Bytes::from_static(text), origin }
    }

    fn text(overlays: &[&Overlay], len: usize) -> String {
        let mut buf = vec![b'?'; len];
        read_through(overlays, None, &mut buf, 0).unwrap();
        String::from_utf8(buf).unwrap().replace('\0', ".")
    }

    #[test]
    fn newer_lies_over_older() {
        let mut old = Overlay::default();
        old.insert(0..6, bytes(b"abcdef", 0));
        let mut new = Overlay::default();
        new.insert(2..4, bytes(b"XY", 2));
        assert_eq!(text(&[&new, &old], 8), "abXYef..");
        old.merge(&new);
        assert_eq!(text(&[&old], 8), "abXYef..");
        assert_eq!(old.changed_bytes(), 6);
    }

    #[test]
    fn cut_tail_reads_zero_after_extension() {
        let mut old = Overlay::default();
        old.insert(0..6, bytes(b"abcdef", 0));
        let mut new = Overlay::default();
        new.truncate(3);
        new.insert(5..6, bytes(b"Z", 5));
        new.size = Some(6);
        assert_eq!(text(&[&new, &old], 6), "abc..Z");
        old.merge(&new);
        assert_eq!(text(&[&old], 6), "abc..Z");
        assert_eq!(old.size, Some(6));
    }

    #[test]
    fn any_number_of_overlays_takes_no_stack() {
        let work = std::thread::Builder::new().stack_size(128 << 10).spawn(|| {
            let overlays: Vec<Overlay> = (0..30_000u64)
                .map(|n| {
                    let mut overlay = Overlay::default();
                    overlay.insert(n % 50 * 2..n % 50 * 2 + 1, bytes(b"x", n % 50 * 2));
                    overlay
                })
                .collect();
            let newest_first: Vec<&Overlay> = overlays.iter().rev().collect();
            assert_eq!(text(&newest_first, 101), "x.".repeat(50) + ".");
        });
        work.unwrap().join().unwrap();
    }

    #[test]
    fn very_many_small_ranges_are_spilled_by_few_writes_and_gaps_are_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let storage: Arc<dyn untorn_os::Storage> = untorn_os::Linux::open(dir.path()).unwrap();
        let mut space =
            SpillSpace::new(Spill::create(&storage, std::path::Path::new("")).unwrap(), 64, BLOCK_BYTES as u64);
        let mut overlay = Overlay::default();
        let fill = |overlay: &mut Overlay, step: usize, byte: u8| {
            for at in (0..160_000u64).step_by(step) {
                let source = Source::Bytes { bytes: vec![byte; 8].into(), origin: at };
                overlay.insert(at..at + 8, source);
            }
        };
        fill(&mut overlay, 16, b'a');
        let before = storage.counters().writes;
        overlay.spill(&mut space, 1).unwrap();
        let writes = storage.counters().writes - before;
        assert!(writes <= 3, "{writes} writes of 10,000 ranges");
        let again = |overlay: &mut Overlay, space: &mut SpillSpace| {
            let used = overlay.used_of(space.spill());
            space.set_used(&used);
            overlay.spill(space, 1).unwrap();
        };
        // Change some of them again and again, so that free space lies in small gaps everywhere.
        let rng = &mut fastrand::Rng::with_seed(1);
        for _ in 0..60 {
            for at in (0..160_000u64).step_by(16).filter(|_| rng.u8(..10) == 0) {
                overlay.insert(at..at + 8, Source::Bytes { bytes: vec![b'b'; 8].into(), origin: at });
            }
            again(&mut overlay, &mut space);
        }
        assert!(space.spill().len() <= 160_000, "{} bytes for 80,000", space.spill().len());
        fill(&mut overlay, 16, b'a');
        // Change every second one.
        for round in 0..6 {
            fill(&mut overlay, 32, b'b' + round);
            again(&mut overlay, &mut space);
        }
        assert!(space.spill().len() <= 160_000, "{} bytes for 80,000", space.spill().len());
        assert_eq!(text(&[&overlay], 48), "gggggggg........aaaaaaaa........gggggggg........");
    }

    #[test]
    fn what_goes_where_a_part_of_a_range_was_is_another_range() {
        let dir = tempfile::tempdir().unwrap();
        let storage: Arc<dyn untorn_os::Storage> = untorn_os::Linux::open(dir.path()).unwrap();
        let mut space = SpillSpace::new(Spill::create(&storage, std::path::Path::new("")).unwrap(), 1, 1);
        let mut overlay = Overlay::default();
        overlay.insert(0..10, bytes(b"abcdefghij", 0));
        overlay.spill(&mut space, 1).unwrap();
        overlay.insert(0..6, bytes(b"ABCDEF", 0));
        let used = overlay.used_of(space.spill());
        space.set_used(&used);
        overlay.spill(&mut space, 1).unwrap();
        assert_eq!(space.spill().len(), 10, "the space of `abcdef` is used again");
        assert_eq!(text(&[&overlay], 10), "ABCDEFghij");
        let lens: Vec<u64> = overlay.ranges().map(|(range, _)| range.end - range.start).collect();
        assert_eq!(lens, [6, 4], "each has a checksum of its own");
    }

    #[test]
    fn what_is_spilled_reads_the_same_and_is_all_there_was() {
        let dir = tempfile::tempdir().unwrap();
        let storage: Arc<dyn untorn_os::Storage> = untorn_os::Linux::open(dir.path()).unwrap();
        for seed in 0..200 {
            let rng = &mut fastrand::Rng::with_seed(seed);
            let mut space =
                SpillSpace::new(Spill::create(&storage, std::path::Path::new("")).unwrap(), 64, BLOCK_BYTES as u64);
            let (mut overlay, mut model) = (Overlay::default(), vec![0; 4096]);
            for n in 1..60 {
                let mut newer = Overlay::default();
                if rng.u8(..3) == 0 {
                    // Insert many ranges at once: into empty space, over others, or behind them.
                    let (mut ranges, mut at) = (Vec::new(), rng.usize(..model.len() - 400));
                    for _ in 0..rng.usize(0..8) {
                        let end = at + rng.usize(1..20);
                        model[at..end].fill(n);
                        let source = Source::Bytes { bytes: Bytes::from(vec![n; end - at]), origin: at as u64 };
                        ranges.push((at as u64..end as u64, source));
                        at = end + rng.usize(..20);
                    }
                    let mut halves = [ranges.split_off(ranges.len() / 2), ranges];
                    if rng.bool() {
                        halves.reverse();
                    }
                    halves.into_iter().for_each(|half| newer.insert_all(half));
                    assert!(newer.covers(&(0..0)), "seed {seed}, step {n}");
                    newer.ranges().for_each(|(range, _)| {
                        assert!(newer.covers(range), "seed {seed}, step {n}");
                        assert!(!newer.covers(&(range.start..range.end + 400)), "seed {seed}, step {n}");
                    });
                    overlay.merge(&std::mem::take(&mut newer));
                }
                for _ in 0..rng.usize(1..4) {
                    let at = rng.usize(..model.len());
                    let end = at + rng.usize(1..=(model.len() - at).min(300));
                    let source = if rng.u8(..) < 40 {
                        model[at..end].fill(0);
                        Source::Zero
                    } else {
                        model[at..end].fill(n);
                        Source::Bytes { bytes: Bytes::from(vec![n; end - at]), origin: at as u64 }
                    };
                    let to = if rng.bool() { &mut overlay } else { &mut newer };
                    to.insert(at as u64..end as u64, source);
                    // Merge first, because older bytes must not cover the new ones.
                    overlay.merge(&std::mem::take(&mut newer));
                }
                if rng.u8(..4) == 0 {
                    let used = overlay.used_of(space.spill());
                    space.set_used(&used);
                }
                match rng.u8(..8) {
                    0 => overlay.spill(&mut space, 1).unwrap(),
                    1 => overlay.spill(&mut space, 100).unwrap(),
                    _ => continue,
                }
                assert_eq!(overlay.memory_bytes(), overlay.inline_bytes(), "seed {seed}");
                let mut read = vec![0; model.len()];
                read_through(&[&overlay], None, &mut read, 0).unwrap();
                assert!(read == model, "seed {seed}, step {n}");
                for (range, source) in overlay.ranges() {
                    let Source::Spill { spill, at, origin, len, crc } = source else { continue };
                    // The checksum that is recorded for a whole range must be right, because a record does not
                    // recompute it.
                    if range.end - range.start == *len {
                        assert_eq!(
                            spill.crc(*at..*at + *len, false).unwrap(),
                            *crc,
                            "seed {seed}, step {n}, {range:?} {origin}"
                        );
                    }
                }
            }
            overlay.spill(&mut space, 1).unwrap();
            assert_eq!(overlay.inline_bytes(), 0, "seed {seed}");
        }
    }
}
