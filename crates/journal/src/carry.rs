//! Opening without replay: accepted records are carried over into the next epoch, not applied.
//!
//! ```text
//! find, apply names     as when everything is redone: names are what other programs see
//! refer                 overlays refer to the bytes in the segments, where they lie
//! list                  the header lists the epochs of the records, durably, with a fresh link for the next one
//! ```
//!
//! What is carried over is what an open store has after its last commit: names are applied, contents wait in overlays for
//! a checkpoint. Nothing of it was flushed, and nothing need be before the log is truncated.

use crate::error::{Context, Result};
use crate::final_state::{FileState, FinalState};
use crate::format::crc64;
use crate::locate::{Location, Locations, open_for_writing};
use crate::log_reader::{LogSegment, PIECE_BYTES_MAX};
use crate::overlay::{Overlay, Source};
use crate::scan::Scan;
use crate::store_dir::segment_name;
use bytes::Bytes;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_os::{Meta, Open, Storage};

/// In so many portions, at most, what is carried over is applied.
const PORTIONS_MAX: u64 = 16;

/// With so many pieces two threads sum them up.
const ALONGSIDE_PIECES: usize = 1024;

/// A range of an overlay, where its bytes come from, and these themselves if they lie in the log.
type Piece = (Range<u64>, Source, Bytes);

/// What was read of a segment, and through which it is read from now on.
type Log = (Bytes, Arc<LogSegment>);

/// A data file that lacks commits which are in the journal, or whose attribute names them.
pub struct CarriedFile {
    /// What the commits amount to. The overlay lies over the data file.
    pub state: FileState,
    /// The data file's metadata, after its names were applied.
    pub meta: Meta,
    /// This user may write to it without changing its mode.
    pub writable: bool,
}

/// What a store has in its journal when it is opened again, and does not apply.
#[derive(Default)]
pub struct Carried {
    /// Files that have names.
    pub files: Vec<CarriedFile>,
    /// Directories whose entries changed, and may not have been flushed.
    pub dirs: BTreeSet<PathBuf>,
    /// LSNs behind which the log can be truncated before all of it is applied, in order: each frees a segment.
    pub portions: VecDeque<u64>,
    /// The segments as they were read, which nobody needs any more. To give back that much memory takes its time: whoever has
    /// some may do it.
    pub read: Vec<Bytes>,
}

/// Takes the files of a final state, whose names are applied, as they are. None: one of them is not where it should be.
pub fn carry(
    storage: &dyn Storage,
    state: FinalState,
    locations: &Locations,
    scan: &Scan,
    journal: &Path,
    in_memory_max: u64,
) -> Result<Option<Carried>> {
    let (dirs, portions) = (state.touched_dirs(), portions(scan));
    let read = scan.segments.iter().map(|segment| segment.contents.clone()).collect();
    let mut carried = Carried { files: Vec::new(), dirs, portions, read };
    let mut metas = Vec::new();
    for file in state.files.values() {
        match locations.get(&file.id) {
            Some(Ok(Location::At(at))) if file.name.as_ref() == Some(at) => {
                let opened = match storage.open(at, Open::WRITE) {
                    Ok(handle) => Ok((handle, true)),
                    Err(_) => open_for_writing(storage, at).map(|handle| (handle, false)),
                };
                // Recovery says what is the matter with it.
                let Ok((handle, writable)) = opened else { return Ok(None) };
                metas.push((handle.meta().context("look at", at)?, writable));
            }
            Some(Ok(Location::Absent)) if file.name.is_none() => {}
            _ => return Ok(None),
        }
    }
    let mut logs = Vec::new();
    for segment in scan.segments.iter().filter(|segment| segment.last_lsn > 0) {
        let path = journal.join(segment_name(segment.index));
        logs.push((segment.contents.clone(), LogSegment::open(storage, &path, segment.last_lsn)?));
    }
    let mut metas = metas.into_iter();
    for mut file in state.files.into_values().filter(|file| file.name.is_some()) {
        let (meta, writable) = metas.next().expect("one for each file with a name");
        file.overlay = refer(storage, &file.overlay, &logs, in_memory_max);
        carried.files.push(CarriedFile { state: file, meta, writable });
    }
    Ok(Some(carried))
}

/// The LSNs behind which no accepted record is in a segment that has one before, but for the last of all. Not each of the
/// segments with which a journal begins to grow is worth a flush.
fn portions(scan: &Scan) -> VecDeque<u64> {
    let freed_by = |lsn| -> u64 {
        let free = scan.segments.iter().filter(|segment| (1..=lsn).contains(&segment.last_lsn));
        free.map(|segment| segment.bytes).sum()
    };
    let least = freed_by(scan.last_lsn) / PORTIONS_MAX;
    let (mut ends, mut newest, mut freed) = (VecDeque::new(), 0, 0);
    for record in &scan.accepted_heads {
        newest = newest.max(scan.segments[record.segment].last_lsn);
        if newest == record.head.lsn && newest < scan.last_lsn && freed_by(newest) >= freed + least {
            freed = freed_by(newest);
            ends.push_back(newest);
        }
    }
    ends
}

/// The overlay with its bytes where they lie in the segments. Short ranges, and those of a record that is in a spill
/// file, are copied: a reference is no smaller.
fn refer(storage: &dyn Storage, overlay: &Overlay, logs: &[Log], in_memory_max: u64) -> Overlay {
    let mut pieces = Vec::new();
    for (range, source) in overlay.ranges() {
        let Some(bytes) = source.slice(range) else {
            pieces.push((range.clone(), source.clone(), Bytes::new()));
            continue;
        };
        match position(&bytes, logs) {
            Some((segment, at)) if bytes.len() as u64 > in_memory_max => {
                pieces.extend(pieces_in_log(range, &bytes, segment, at));
            }
            _ => {
                let copy = Source::Bytes { bytes: Bytes::copy_from_slice(&bytes), origin: range.start };
                pieces.push((range.clone(), copy, Bytes::new()));
            }
        }
    }
    let half = if pieces.len() < ALONGSIDE_PIECES { 0 } else { pieces.len() / 2 };
    match pieces.split_at_mut(half) {
        ([], all) => sum_up(all),
        (one, other) => storage.at_once(&mut || sum_up(one), &mut || sum_up(other)),
    }
    let mut referring = Overlay::default();
    referring.size = overlay.size;
    referring.insert_all(pieces.into_iter().map(|(range, source, _)| (range, source)).collect());
    referring
}

/// References to a range that lies in a segment from an offset on, not summed up yet.
fn pieces_in_log(range: &Range<u64>, bytes: &Bytes, segment: &Arc<LogSegment>, at: u64) -> impl Iterator<Item = Piece> {
    (0..bytes.len() as u64).step_by(PIECE_BYTES_MAX as usize).map(move |from| {
        let (origin, len) = (range.start + from, PIECE_BYTES_MAX.min(bytes.len() as u64 - from));
        let source = Source::Log { segment: segment.clone(), at: at + from, origin, len, crc: 0 };
        (origin..origin + len, source, bytes.slice(from as usize..(from + len) as usize))
    })
}

fn sum_up(pieces: &mut [Piece]) {
    for (_, source, bytes) in pieces {
        if let Source::Log { crc, .. } = source {
            *crc = crc64(bytes);
        }
    }
}

/// The segment that bytes are a part of as it was read, and their offset in it.
fn position<'s>(bytes: &Bytes, logs: &'s [Log]) -> Option<(&'s Arc<LogSegment>, u64)> {
    let start = bytes.as_ptr() as usize;
    logs.iter().find_map(|(contents, segment)| {
        let first = contents.as_ptr() as usize;
        let is_in = (first..first + contents.len()).contains(&start);
        is_in.then(|| (segment, (start - first) as u64))
    })
}
