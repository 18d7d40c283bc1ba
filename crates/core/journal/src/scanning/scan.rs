//! Reads a journal: its header, every valid record, and which of these are accepted.
//!
//! A record is *valid* by itself: its checksum is right, and it is at the position that it names. It is *accepted* if
//! it belongs to an epoch that the header lists, exactly as far as the list says, or if it follows its predecessor in
//! the open epoch, up to the first gap. Whether that gap is the torn end of the journal or damage depends on the
//! records beyond it.

mod ends;
mod header_file;
mod scanned;

use crate::commits::record::{CheckSpills, Decoder, Record, SpillCache, UnreadableBody, body_by_reference};
use crate::commits::spill::{spill_id, spill_name};
use crate::directories::quarantine::{NAME_NEW, NAME_SPARE};
use crate::error::{Context, Error, Result};
use crate::format::unreadable::{contents_of, is_unreadable, stops};
use crate::format::{Header, ListedEpoch, RECORD_HEAD_BYTES, RecordHead, RecordKind};
use crate::invariant;
use crate::scanning::log_index;
use crate::scanning::segment_reader::{
    FoundRecords, Keep, ReadMode, ReadRecords, ScannedSegment, SegmentReader, ValidRecord, cut_short, each_record,
    open_segments, start_block_is_unchanged,
};
use bytes::Bytes;
use ends::{check_for_damage, check_unreadable, drop_what_may_be_torn, end_before_torn_spill};
pub use header_file::{flush_header, note_lost_flush, read_header};
pub(crate) use header_file::{read_readable_header, read_slots};
use scanned::segment_path;
pub use scanned::{AcceptedRecord, Scan};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use untorn_os::{Storage, holds};

/// Reads a journal. With `read_all`, segments are read even if the journal was shut down clean.
pub fn scan(
    storage: &Arc<dyn Storage>,
    journal: &Path,
    mode: ReadMode,
    keep: Keep,
    read_all: bool,
    progress: &dyn Fn(u64, u64),
) -> Result<Scan> {
    let header = read_readable_header(&**storage, journal)?;
    scan_to(storage, journal, header, mode, keep, read_all, None, progress)
}

/// Reads a journal like [`scan`], behind a header that was just read, and all of it readable.
pub fn scan_behind(
    storage: &Arc<dyn Storage>,
    journal: &Path,
    header: Header,
    mode: ReadMode,
    keep: Keep,
    read_all: bool,
    progress: &dyn Fn(u64, u64),
) -> Result<Scan> {
    scan_to(storage, journal, (header, None), mode, keep, read_all, None, progress)
}

/// Reads a journal as of this header, up to this commit at least, for a reader: through the page cache, beside the
/// owner. With `indexed`, reads the index of the log if it has all commits, and not the log.
pub fn scan_as_of(storage: &Arc<dyn Storage>, journal: &Path, header: Header, lsn: u64, indexed: bool) -> Result<Scan> {
    if indexed {
        let mut scan = begin(&**storage, journal, header.clone(), ReadMode::Cached)?;
        let mut spills = SpillCache::new(storage.clone(), journal.to_owned());
        let (key, after) = (header.key, header.checkpoint_lsn);
        (scan.valid, scan.found) = log_index::read(&**storage, journal, &scan.segments, key, after, &mut spills);
        scan.valid.sort_by_key(|v| v.head.lsn);
        if accept(journal, None, &mut spills, &mut scan).is_ok() && scan.last_lsn >= lsn {
            scan.corrupt = None;
            return Ok(scan);
        }
    }
    scan_to(storage, journal, (header, None), ReadMode::Cached, Keep::Contents, true, None, &|_, _| {})
}

/// Reads a quarantined journal. It ended with this commit when it was quarantined, and all of it was durable.
pub fn scan_quarantined(
    storage: &Arc<dyn Storage>,
    journal: &Path,
    last_lsn: u64,
    progress: &dyn Fn(u64, u64),
) -> Result<Scan> {
    let header = read_readable_header(&**storage, journal)?;
    let keep = Keep::Contents;
    let mut scan = scan_to(storage, journal, header, ReadMode::PastCache, keep, true, Some(last_lsn), progress)?;
    if scan.corrupt.is_none() && scan.last_lsn < last_lsn {
        let what = format!("it ends with commit {}, but commit {last_lsn} was in it before", scan.last_lsn);
        scan.corrupt = Some(Error::corrupt(journal, what));
    }
    Ok(scan)
}

#[allow(clippy::too_many_arguments)]
fn scan_to(
    storage: &Arc<dyn Storage>,
    journal: &Path,
    (header, header_unreadable): (Header, Option<Error>),
    mode: ReadMode,
    keep: Keep,
    read_all: bool,
    end: Option<u64>,
    progress: &dyn Fn(u64, u64),
) -> Result<Scan> {
    let mut scan = begin(&**storage, journal, header, mode)?;
    // A clean header whose numbers contradict each other is refused when the log is scanned.
    let is_empty =
        scan.header.listed.is_empty() && scan.header.checkpoint_lsn.checked_add(1) == Some(scan.header.open_lsn);
    let may_be_clean = scan.header.is_closed()
        && (is_empty || !holds(invariant::LIST_CLIPPED))
        && scan.cut_short.is_none()
        && header_unreadable.is_none()
        && !read_all;
    if may_be_clean && start_block_is_unchanged(&mut scan.segments, &scan.header, mode, journal)? {
        scan.clean_shutdown = true;
        return Ok(scan);
    }
    let mut spills = SpillCache::new(storage.clone(), journal.to_owned());
    spills.past_cache = mode.is_past_cache();
    let Header { key, checkpoint_lsn: after, .. } = scan.header;
    let reader = SegmentReader { storage: &**storage, journal, mode, key, after, progress };
    reader.flush(&scan.segments)?;
    if let Keep::Places { in_memory_max, window_bytes, index_bytes_least } = keep {
        let spill_bytes = |id: &u64| storage.stat(&journal.join(spill_name(*id))).map_or(0, |meta| meta.size);
        if scan.spills.iter().map(spill_bytes).sum::<u64>() > index_bytes_least {
            spills.check = CheckSpills::WhenUsed;
        }
        // Records of class `process` were not durable when a later one called them so.
        let may_be_indexed =
            scan.header.boot.is_none() && mode == ReadMode::PastCache && header_unreadable.is_none() && !read_all;
        let least = if may_be_indexed { index_bytes_least } else { u64::MAX };
        let (header, segments) = (&scan.header, &mut scan.segments);
        let ((valid, commits), unread) =
            log_index::read_bounded(&**storage, journal, segments, least, header, &mut spills);
        if let Some(mut found) = reader.read_in_parts(segments, &unread, window_bytes, in_memory_max, &mut spills)? {
            found.0.extend(valid);
            found.1.extend(commits);
            return finish(journal, header_unreadable, end, found, &mut spills, scan);
        }
    }
    let valid = reader.read_all(&mut scan.segments)?;
    finish(journal, header_unreadable, end, (valid, ReadRecords::new()), &mut spills, scan)
}

/// Accepts records, now that these were found.
fn finish(
    journal: &Path,
    header_unreadable: Option<Error>,
    end: Option<u64>,
    (valid, found): FoundRecords,
    spills: &mut SpillCache,
    mut scan: Scan,
) -> Result<Scan> {
    (scan.valid, scan.found) = (valid, found);
    let start = scan.segments.iter().find(|s| s.index == scan.header.start_segment);
    scan.start_changed =
        start.is_none_or(|s| s.first_block_crc != scan.header.start_crc || s.bytes != scan.header.start_bytes());
    scan.valid.sort_by_key(|v| v.head.lsn);
    accept(journal, end, spills, &mut scan)?;
    // A closed journal needs none of the bytes that it lost, and a quarantined one none behind its end.
    let is_closed = scan.header.is_closed() && !scan.start_changed && scan.valid.is_empty();
    let is_whole = is_closed || end.is_some_and(|end| scan.last_lsn >= end);
    let damage = if is_whole { None } else { scan.cut_short.clone() };
    scan.corrupt = header_unreadable.or(scan.corrupt).or(damage);
    Ok(scan)
}

/// Opens the segments of a journal with this header, without reading them.
fn begin(storage: &dyn Storage, journal: &Path, header: Header, mode: ReadMode) -> Result<Scan> {
    let mut scan = Scan {
        last_lsn: header.checkpoint_lsn,
        last_crc: header.link,
        live_spills: Vec::new(),
        header,
        segments: Vec::new(),
        valid: Vec::new(),
        found: ReadRecords::new(),
        accepted: Vec::new(),
        accepted_heads: Vec::new(),
        epochs: Vec::new(),
        torn_tail: false,
        start_changed: false,
        cut_short: None,
        corrupt: None,
        spills: Vec::new(),
        orphans: Vec::new(),
        clean_shutdown: false,
    };
    let names = storage.list(journal).context("list", journal)?;
    for name in names.iter().map(|name| name.to_string_lossy()) {
        if let Some(id) = spill_id(&name) {
            scan.spills.push(id);
            scan.orphans.push(name.to_string());
        } else if [NAME_NEW, NAME_SPARE].contains(&&*name) {
            scan.orphans.push(name.to_string());
        }
    }
    scan.segments = open_segments(storage, journal, names.iter().map(|name| &**name), mode)?;
    scan.cut_short = cut_short(&scan.header, &scan.segments, journal);
    Ok(scan)
}

/// The commits behind this LSN that were truncated from the log, if all of them are still there: records remain in
/// their segment until it is reused. Returns `None` if one is missing.
pub fn given_up_after(
    storage: &Arc<dyn Storage>,
    journal: &Path,
    scan: &Scan,
    after: u64,
) -> Option<Vec<AcceptedRecord>> {
    let header = &scan.header;
    let mut by_lsn: HashMap<u64, Vec<ValidRecord>> = HashMap::new();
    for (segment, of_segment) in scan.segments.iter().enumerate() {
        each_record(&of_segment.contents, header.key, |head, crc| {
            if head.lsn > after && head.lsn <= header.checkpoint_lsn {
                by_lsn.entry(head.lsn).or_default().push(ValidRecord { head, crc, segment, is_whole: true });
            }
        });
    }
    // If the checkpoint is in the open epoch, the link is the checksum of its record.
    let (mut run, mut crc) = (Vec::new(), header.link);
    for lsn in (after + 1..=header.checkpoint_lsn).rev() {
        let v = *by_lsn.get(&lsn)?.iter().find(|v| v.crc == crc)?;
        crc = v.head.previous_crc;
        run.push(v);
    }
    let mut spills = SpillCache::new(storage.clone(), journal.to_owned());
    spills.check = CheckSpills::Never;
    let commits = run.iter().rev().filter(|v| v.head.kind == RecordKind::Commit);
    let decoded = |v: &ValidRecord| {
        let record = decode(v, &scan.segments[v.segment], &mut spills, None).ok()?;
        Some(AcceptedRecord { lsn: v.head.lsn, epoch: v.head.epoch, time: v.head.time, record })
    };
    commits.map(decoded).collect()
}

/// Valid records in the order of their LSNs.
#[derive(Clone, Copy)]
struct ByLsn<'a>(&'a [ValidRecord]);

impl<'a> ByLsn<'a> {
    /// The records with this LSN.
    fn get(self, lsn: u64) -> &'a [ValidRecord] {
        let first = self.0.partition_point(|v| v.head.lsn < lsn);
        let len = self.0[first..].iter().take_while(|v| v.head.lsn == lsn).count();
        &self.0[first..first + len]
    }
}

/// Accepts the records of the listed epochs and of the open one, then checks the records beyond the last. `end`: LSN of
/// the last record of a journal that is not written any more.
fn accept(journal: &Path, end: Option<u64>, spills: &mut SpillCache, scan: &mut Scan) -> Result<()> {
    let valid = std::mem::take(&mut scan.valid);
    debug_assert!(valid.is_sorted_by_key(|v| v.head.lsn), "{} records are not in order", valid.len());
    let accepted = accept_listed(journal, ByLsn(&valid), spills, scan)
        .and_then(|()| accept_open(journal, ByLsn(&valid), spills, scan))
        .and_then(|()| {
            if spills.check == CheckSpills::WhenUsed { end_before_torn_spill(scan, spills.past_cache) } else { Ok(()) }
        });
    (scan.valid, scan.found) = (valid, ReadRecords::new());
    scan.assert_chained();
    if let Err(e) = &accepted
        && !e.is_unreadable()
        && !matches!(e, Error::Corrupt { .. })
    {
        return accepted;
    }
    // Drop possibly torn commits before anything else, because salvage must not redo them either.
    let known = drop_what_may_be_torn(journal, end, scan);
    scan.assert_chained();
    let known = match accepted {
        Err(e) if e.is_unreadable() => Err(e),
        accepted => known.and_then(|()| check_unreadable(journal, end, scan)).and(accepted),
    };
    if let Err(e) = known {
        scan.corrupt = Some(e);
        return Ok(());
    }
    scan.torn_tail = scan.valid.iter().any(|v| v.head.lsn > scan.last_lsn);
    check_for_damage(journal, scan);
    Ok(())
}

/// Accepts exactly the records of the epochs that the header lists. Each is found by the checksum that its successor
/// repeats.
fn accept_listed(journal: &Path, by_lsn: ByLsn<'_>, spills: &mut SpillCache, scan: &mut Scan) -> Result<()> {
    let header = scan.header.clone();
    for listed in &header.listed {
        let wrong = |detail: String| Error::corrupt(journal.join("header"), detail);
        if listed.last_lsn <= header.checkpoint_lsn && holds(invariant::LIST_CLIPPED) {
            return Err(wrong(format!("it lists an epoch whose last commit, {}, is applied", listed.last_lsn)));
        }
        let first = listed.first_lsn.max(header.checkpoint_lsn.saturating_add(1));
        if Some(first) != scan.last_lsn.checked_add(1) || listed.last_lsn < first {
            return Err(wrong(format!("its list of epochs does not continue after commit {}", scan.last_lsn)));
        }
        let (mut run, mut crc) = (Vec::new(), listed.last_crc);
        for lsn in (first..=listed.last_lsn).rev() {
            let is_next = |v: &&ValidRecord| v.crc == crc && v.head.epoch == listed.epoch;
            let Some(v) = by_lsn.get(lsn).iter().find(is_next) else {
                accept_before_damage(journal, listed, first..lsn, by_lsn, spills, scan)?;
                let detail = format!(
                    "commit {lsn} is missing or damaged, though it was accepted when the store was opened before"
                );
                // The commit may be in an unreadable part of the log.
                let unreadable = scan.segments.iter().any(|segment| !segment.unreadable.is_empty());
                return Err(match unreadable && holds(invariant::UNREADABLE_LISTED) {
                    true => stops(journal, &format!("the disk cannot read all of the log, and {detail}")),
                    false => Error::corrupt(journal, detail),
                });
            };
            crc = v.head.previous_crc;
            run.push(*v);
        }
        run.into_iter().rev().try_for_each(|v| accept_record(journal, v, spills, scan))?;
    }
    if scan.last_lsn.checked_add(1) != Some(header.open_lsn) {
        let detail = format!(
            "its open epoch begins with commit {}, but should begin after commit {}",
            header.open_lsn, scan.last_lsn
        );
        return Err(Error::corrupt(journal.join("header"), detail));
    }
    Ok(())
}

/// Accepts, for salvage, the records of a listed epoch before a damaged one.
fn accept_before_damage(
    journal: &Path,
    listed: &ListedEpoch,
    before: std::ops::Range<u64>,
    by_lsn: ByLsn<'_>,
    spills: &mut SpillCache,
    scan: &mut Scan,
) -> Result<()> {
    let mut previous = None;
    for lsn in before {
        let is_next = |v: &&ValidRecord| {
            v.head.epoch == listed.epoch && previous.is_none_or(|previous| v.head.previous_crc == previous)
        };
        let Some(v) = by_lsn.get(lsn).iter().find(is_next) else { break };
        previous = Some(v.crc);
        accept_record(journal, *v, spills, scan)?;
    }
    Ok(())
}

/// Accepts records of the open epoch along the chain of checksums from the header, up to the first gap.
fn accept_open(journal: &Path, by_lsn: ByLsn<'_>, spills: &mut SpillCache, scan: &mut Scan) -> Result<()> {
    let mut epoch = None;
    if !scan.header.listed.is_empty() && !holds(invariant::OPEN_EPOCH_ACCEPTED) {
        return Ok(());
    }
    if holds(invariant::OPEN_LINK) {
        scan.last_crc = scan.header.link;
    }
    loop {
        let follows = |v: &&ValidRecord| {
            (v.head.previous_crc == scan.last_crc || !holds(invariant::CHAIN))
                && (epoch.is_none_or(|epoch| epoch == v.head.epoch) || !holds(invariant::EPOCH))
        };
        let next = by_lsn.get(scan.last_lsn + 1).iter().find(follows).copied();
        let Some(v) = next else { return Ok(()) };
        match accept_record(journal, v, spills, scan) {
            // The contents are flushed together with the record. That a later record calls this one durable is checked
            // as for a torn record.
            Err(Error::Corrupt { path, .. }) if is_spill(&path) && holds(invariant::TORN_SPILL_ENDS) => return Ok(()),
            accepted => accepted?,
        }
        epoch = Some(v.head.epoch);
    }
}

/// Whether this is the name of a spill file.
fn is_spill(path: &Path) -> bool {
    path.file_name().and_then(OsStr::to_str).and_then(spill_id).is_some()
}

/// Accepts the next record.
fn accept_record(journal: &Path, v: ValidRecord, spills: &mut SpillCache, scan: &mut Scan) -> Result<()> {
    let ValidRecord { head, crc, segment, .. } = v;
    let lsn = head.lsn;
    debug_assert_eq!(lsn, scan.last_lsn + 1, "a gap before an accepted record");
    if head.kind == RecordKind::Commit {
        let path = segment_path(journal, scan, &v);
        let decoded = match scan.found.remove(&(segment, head.position)) {
            Some(found) => found,
            None => {
                spills.take_used();
                decode(&v, &scan.segments[segment], spills, Some(contents_of(lsn, &path)))
                    .map(|record| (record, spills.take_used()))
            }
        };
        let wrong = |e: Error| match &e {
            _ if e.is_unreadable() || is_unreadable(&e) => stops(&path, &format!("the disk cannot read commit {lsn}")),
            // The error is not about the log: too many open files, or no memory.
            Error::Io { source, .. } if source.kind() != std::io::ErrorKind::NotFound => e,
            Error::Corrupt { path: spill, .. } if is_spill(spill) => {
                Error::corrupt(spill, format!("commit {lsn}: {e}"))
            }
            _ => Error::corrupt(&path, format!("commit {lsn}: {e}")),
        };
        let (record, used) = decoded.map_err(wrong)?;
        scan.accepted.push(AcceptedRecord { lsn, epoch: head.epoch, time: head.time, record });
        for spill in used {
            match scan.live_spills.iter_mut().find(|(known, _)| known.id == spill.id) {
                Some((_, last_lsn)) => *last_lsn = lsn,
                None => scan.live_spills.push((spill, lsn)),
            }
        }
    }
    match scan.epochs.last_mut() {
        Some(last) if last.epoch == head.epoch => (last.last_lsn, last.last_crc) = (lsn, crc),
        _ => scan.epochs.push(ListedEpoch { epoch: head.epoch, first_lsn: lsn, last_lsn: lsn, last_crc: crc }),
    }
    let segment = &mut scan.segments[segment];
    (segment.first_lsn, segment.last_lsn) = (if segment.first_lsn == 0 { lsn } else { segment.first_lsn }, lsn);
    (scan.last_lsn, scan.last_crc) = (lsn, crc);
    scan.accepted_heads.push(v);
    Ok(())
}

/// Decodes a commit. With `contents`, contents that cannot be read become that error, and the rest of the commit is
/// decoded.
fn decode(
    v: &ValidRecord,
    segment: &ScannedSegment,
    spills: &mut SpillCache,
    contents: Option<Arc<Error>>,
) -> Result<Record> {
    let from = v.head.position as usize + RECORD_HEAD_BYTES;
    let body = segment.contents.slice(from..v.head.position as usize + v.head.len as usize);
    if v.head.body_by_reference && !v.is_whole {
        return Err(Error::unreadable("the body of a record", "its reference".into()));
    }
    let Some(contents) = contents else { return decode_body(&v.head, body, spills) };
    let around = UnreadableBody { ranges: &segment.unreadable, start: from as u64 };
    let body = whole_body(&v.head, body, spills)?;
    Decoder::decode_around(&body, spills, (!v.is_whole).then_some(&around), contents)
}

/// Decodes a commit that can be read as a whole.
pub fn decode_body(head: &RecordHead, body: Bytes, spills: &mut SpillCache) -> Result<Record> {
    Decoder::decode(&whole_body(head, body, spills)?, spills)
}

fn whole_body(head: &RecordHead, body: Bytes, spills: &mut SpillCache) -> Result<Bytes> {
    if head.body_by_reference { body_by_reference(&body, spills) } else { Ok(body) }
}
