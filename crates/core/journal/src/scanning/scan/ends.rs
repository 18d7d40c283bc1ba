//! The end of the accepted records: torn commits behind it, and damage that is no torn end.

use super::scanned::{Scan, segment_path};
use crate::commits::overlay::Source;
use crate::commits::record::Op;
use crate::error::{Error, Result};
use crate::format::unreadable::{first_unknown, is_unreadable, stops};
use crate::invariant;
use crate::scanning::segment_reader::ValidRecord;
use std::path::Path;
use untorn_os::holds;

/// Ends the run before the first commit of the open epoch whose spilled contents are torn. Those of commits that are
/// known to be durable are checked when they are used.
pub(super) fn end_before_torn_spill(scan: &mut Scan, past_cache: bool) -> Result<()> {
    let open_lsn = scan.header.open_lsn;
    // In class `process`, records were not durable when a later one called them so.
    let heads = if scan.header.boot.is_none() { &scan.accepted_heads[..] } else { &[] };
    let said = heads.iter().filter(|v| v.head.lsn >= open_lsn).map(|v| v.head.durable_lsn).max().unwrap_or(0);
    for accepted in scan.accepted.iter().filter(|accepted| accepted.lsn >= open_lsn && accepted.lsn > said) {
        for op in &accepted.record.ops {
            let Op::Write { source: Source::Spill { spill, at, len, crc, .. }, .. } = op else { continue };
            match spill.check_now(*at, *len, *crc, past_cache) {
                Err(Error::Corrupt { .. }) if holds(invariant::TORN_SPILL_ENDS) => {
                    let lsn = accepted.lsn;
                    end_before(scan, lsn);
                    return Ok(());
                }
                // A use of the contents gives this error.
                Err(e) if is_unreadable(&e) => {}
                checked => checked?,
            }
        }
    }
    Ok(())
}

/// Drops the accepted commit with this LSN, and all behind it.
fn end_before(scan: &mut Scan, lsn: u64) {
    let Some(v) = scan.accepted_heads.iter().find(|v| v.head.lsn == lsn) else { return };
    (scan.last_lsn, scan.last_crc) = (lsn - 1, v.head.previous_crc);
    scan.accepted.retain(|accepted| accepted.lsn < lsn);
    scan.accepted_heads.retain(|accepted| accepted.head.lsn < lsn);
    scan.epochs.retain(|epoch| epoch.first_lsn < lsn);
    if let Some(last) = scan.epochs.last_mut().filter(|last| last.last_lsn >= lsn) {
        (last.last_lsn, last.last_crc) = (scan.last_lsn, scan.last_crc);
    }
    for (_, last_lsn) in &mut scan.live_spills {
        *last_lsn = scan.last_lsn.min(*last_lsn);
    }
    for segment in &mut scan.segments {
        segment.last_lsn = if segment.first_lsn < lsn { scan.last_lsn.min(segment.last_lsn) } else { 0 };
        segment.first_lsn = if segment.first_lsn < lsn { segment.first_lsn } else { 0 };
    }
}

/// Drops the first commit that the disk cannot fully read and that may be torn, and all accepted records behind it.
pub(super) fn drop_what_may_be_torn(journal: &Path, end: Option<u64>, scan: &mut Scan) -> Result<()> {
    let durable_before = scan.header.open_lsn.max(end.map_or(0, |end| end + 1));
    // In class `process`, records were not durable when a later one called them so.
    let heads = if scan.header.boot.is_none() { &scan.accepted_heads[..] } else { &[] };
    let was_durable = |v: &ValidRecord| {
        let says_so = |a: &ValidRecord| a.is_whole && a.head.epoch == v.head.epoch && a.head.durable_lsn >= v.head.lsn;
        v.head.lsn < durable_before || heads.iter().any(says_so)
    };
    let Some(v) = scan.accepted_heads.iter().find(|v| !v.is_whole && !was_durable(v)).copied() else { return Ok(()) };
    if !holds(invariant::UNREADABLE_DURABLE) {
        return Ok(());
    }
    let lsn = v.head.lsn;
    if holds(invariant::UNREADABLE_DROPPED) {
        end_before(scan, lsn);
    }
    let what = format!("the disk cannot read all of commit {lsn}, which may be torn");
    Err(stops(&segment_path(journal, scan, &v), &what))
}

/// Refuses a log with an unreadable part that may hold a commit.
pub(super) fn check_unreadable(journal: &Path, end: Option<u64>, scan: &Scan) -> Result<()> {
    if end.is_some_and(|end| scan.last_lsn >= end) {
        return Ok(());
    }
    for (at, segment) in scan.segments.iter().enumerate() {
        let here = scan.accepted_heads.iter().filter(|v| v.segment == at);
        let known: Vec<_> = here.map(|v| v.head.position..v.head.position + v.head.len).collect();
        if let (Some(block), true) = (first_unknown(&segment.unreadable, &known), holds(invariant::UNREADABLE_STOPS)) {
            let path = journal.join(crate::directories::store_dir::segment_name(segment.index));
            return Err(stops(&path, &format!("the disk cannot read the log at {block}, where a commit may be")));
        }
    }
    Ok(())
}

/// Tells damage from a torn end: a missing record that a later one calls durable was damaged, and so was the header if
/// a record is newer than it.
pub(super) fn check_for_damage(journal: &Path, scan: &mut Scan) {
    let evidence = scan.valid.iter().find(|v| v.head.durable_lsn > scan.last_lsn);
    if let (Some(v), true) = (evidence, holds(invariant::DURABLE_LSN)) {
        let detail = format!(
            "commit {} is missing or damaged, although commit {} in {} shows that it was durable",
            scan.last_lsn + 1,
            v.head.lsn,
            segment_path(journal, scan, v).display()
        );
        scan.corrupt = Some(Error::corrupt(journal, detail));
    } else if holds(invariant::NEWEST_HEADER)
        && let Some(v) = scan.valid.iter().find(|v| v.head.generation > scan.header.generation)
    {
        let detail = format!(
            "the newest header is lost: commit {} was written under header {}, and the newest valid one is {}",
            v.head.lsn, v.head.generation, scan.header.generation
        );
        scan.corrupt = Some(Error::corrupt(journal.join("header"), detail));
    }
}
