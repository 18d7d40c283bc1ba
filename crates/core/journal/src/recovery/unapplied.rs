//! Opening without redo: accepted records stay in the journal, unapplied, in the next epoch.
//!
//! ```text
//! scan                  records are decoded while they are read; overlays refer to their contents in the log
//! find, apply names     like a full redo, because other programs see names
//! list                  the header lists the epochs of the records, durably, with a fresh link for the next one
//! ```
//!
//! An open store with unapplied records is in the same state as after its last commit: names are applied, and contents
//! wait in overlays for a checkpoint. None of it was flushed, and nothing needs a flush before the log is truncated.

use crate::commits::final_state::{FileState, FinalState};
use crate::data_files::locate::{Location, Locations, open_for_writing};
use crate::error::{Context, Result};
use crate::scanning::scan::Scan;
use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use untorn_os::{Meta, Open, Storage};

/// Limit for the portions in which these commits are applied.
const PORTIONS_MAX: u64 = 16;

/// A data file that lacks commits which are in the journal, or whose attribute names them.
pub struct UnappliedFile {
    /// The net effect of the commits. Its overlay lies over the data file.
    pub state: FileState,
    /// The data file's metadata, after its names were applied.
    pub meta: Meta,
    /// This user may write to it without changing its mode.
    pub writable: bool,
}

/// Commits that stay in the journal, unapplied, when a store is opened.
#[derive(Default)]
pub struct Unapplied {
    /// Files that have names.
    pub files: Vec<UnappliedFile>,
    /// Directories whose entries changed and may not be flushed.
    pub dirs: BTreeSet<PathBuf>,
    /// LSNs at which the log can be truncated before all of it is applied, in order. Each truncation frees a segment.
    pub portions: VecDeque<u64>,
}

/// Takes over the files of a final state, whose names are applied, without applying contents. Returns `None` if a file
/// is not where it should be.
pub fn leave_unapplied(
    storage: &dyn Storage,
    state: FinalState,
    locations: &Locations,
    scan: &Scan,
) -> Result<Option<Unapplied>> {
    let mut unapplied = Unapplied { files: Vec::new(), dirs: state.touched_dirs(), portions: portions(scan) };
    let mut metas = Vec::new();
    for file in state.files.values() {
        match locations.get(&file.id) {
            Some(Ok(Location::At(at))) if file.name.as_ref() == Some(at) => {
                let opened = match storage.open(at, Open::WRITE) {
                    Ok(handle) => Ok((handle, true)),
                    Err(_) => open_for_writing(storage, at).map(|handle| (handle, false)),
                };
                // Normal recovery reports the error.
                let Ok((handle, writable)) = opened else { return Ok(None) };
                metas.push((handle.meta().context("look at", at)?, writable));
            }
            Some(Ok(Location::Absent)) if file.name.is_none() => {}
            _ => return Ok(None),
        }
    }
    for segment in &scan.segments {
        segment.log.iter().for_each(|log| log.ends_with(segment.last_lsn));
    }
    debug_assert_eq!(
        state.files.values().filter(|file| file.name.is_some()).count(),
        metas.len(),
        "files with names that are not opened"
    );
    debug_assert!(
        state.files.values().flat_map(|file| file.overlay.ranges()).all(|(_, source)| {
            source.log_place().is_none_or(|(segment, _)| segment.last_lsn() > scan.header.checkpoint_lsn)
        }),
        "contents in a segment whose last record is not known: no portion could leave them"
    );
    let named = state.files.into_values().filter(|file| file.name.is_some());
    for (mut state, (meta, writable)) in named.zip(metas) {
        state.overlay = state.overlay.trimmed();
        unapplied.files.push(UnappliedFile { state, meta, writable });
    }
    Ok(Some(unapplied))
}

/// The LSNs at which the log can be cut between segments, except the last LSN. An LSN that would free too little is
/// left out: the small segments with which a journal begins to grow are not each worth a flush.
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
    debug_assert!(
        ends.iter().is_sorted_by(|one, next| one < next) && ends.back().is_none_or(|end| *end < scan.last_lsn),
        "portions {ends:?} of commits to {}",
        scan.last_lsn
    );
    ends
}
