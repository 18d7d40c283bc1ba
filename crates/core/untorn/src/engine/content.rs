//! The content of a file: its data file under overlays of changes.
//!
//! ```text
//! write_set    changed by handles, not committed
//! committing   on their way through the journal, newest last
//! committed    in the journal, not yet in the data file
//! applying     being written to the data file by a running checkpoint
//! data         the data file
//! ```

pub(crate) mod committed;

use crate::engine::content::committed::Committed;
use crate::invariant;
use bytes::Bytes;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use untorn_journal::commits::overlay::{NO_END, Overlay, Source, read_through};
use untorn_journal::commits::spill::{Spill, SpillSpace};
use untorn_journal::format::sized_memory;
use untorn_journal::{Context, Error, Result};
use untorn_os::{File, Meta, holds};

const PAGE_BYTES: u64 = 4096;

/// Every kind of file may be this large on every supported file system.
const LARGE_BYTES: u64 = 1 << 33;

/// Destination of changes that are too large for memory and for the journal's segments.
pub(crate) trait SpillSink {
    /// A new spill file beside the journal.
    fn create_spill(&self) -> Result<Arc<Spill>>;
    /// Limit for the uncommitted bytes of one file in memory, and for the bytes of one commit inside the journal.
    fn inline_bytes_max(&self) -> u64;
    /// A new spill file, with the record of its free space.
    fn create_spill_space(&self) -> Result<SpillSpace>;
    /// Refuses to extend a file to this end, if the system would refuse a write there.
    fn check_end(&self, content: &Content, end: u64, action: &'static str) -> Result<()>;
}

/// The changes of a commit on its way.
pub(crate) struct Committing {
    pub overlay: Arc<Overlay>,
    /// Whether a transaction made them. If it fails, they are gone; other changes become uncommitted again.
    pub is_txn: bool,
}

pub(crate) struct Content {
    /// The file's name in the store.
    pub path: PathBuf,
    pub write_set: Overlay,
    pub committing: VecDeque<Committing>,
    pub committed: Committed,
    pub applying: Option<Arc<Overlay>>,
    /// The data file, unless it was closed to save descriptors.
    pub data: Option<Arc<dyn File>>,
    /// The data file's size on disk.
    pub base_size: u64,
    /// The data file's metadata when Untorn last opened it or wrote to it.
    pub last_stat: Option<Meta>,
    /// The spill file for large uncommitted changes. Only the write set refers to it.
    pub spill: Option<SpillSpace>,
}

impl Content {
    pub(crate) fn new(path: PathBuf) -> Content {
        Content {
            path,
            write_set: Overlay::default(),
            committing: VecDeque::new(),
            committed: Committed::default(),
            applying: None,
            data: None,
            base_size: 0,
            last_stat: None,
            spill: None,
        }
    }

    /// All overlays, newest first.
    fn newest_first(&self) -> impl Iterator<Item = &Overlay> {
        let committing = self.committing.iter().rev().map(|commit| &*commit.overlay);
        let committed = self.committed.overlays().chain(self.applying.as_deref());
        std::iter::once(&self.write_set).chain(committing).chain(committed)
    }

    /// The overlays that are not empty, newest first.
    pub(crate) fn overlays(&self) -> Vec<&Overlay> {
        let mut overlays = Vec::with_capacity(4);
        overlays.extend(self.newest_first().filter(|overlay| !overlay.is_empty()));
        overlays
    }

    pub(crate) fn size(&self) -> u64 {
        self.newest_first().find_map(|overlay| overlay.size).unwrap_or(self.base_size)
    }

    /// The largest size that the data file may have, if `size` is so large that the file itself must be asked: ext4 has
    /// kinds of files with different limits.
    pub(crate) fn size_possible(&self, size: u64) -> Option<u64> {
        self.data.as_ref().filter(|_| size > LARGE_BYTES)?.size_max().ok()
    }

    /// The end of the write set, where it extends the data file or writes bytes into it.
    pub(crate) fn write_set_end(&self) -> u64 {
        let bytes = self.write_set.ranges().filter(|(_, source)| **source != Source::Zero).map(|(range, _)| range.end);
        let grown = self.write_set.size.filter(|size| *size > self.base_size);
        bytes.chain(grown).max().unwrap_or(0)
    }

    /// Whether the uncommitted changes extend the file.
    pub(crate) fn grows(&self) -> bool {
        let Some(size) = self.write_set.size else { return false };
        let overlays = self.overlays();
        let committed = overlays.iter().filter(|o| !std::ptr::eq(**o, &self.write_set)).find_map(|o| o.size);
        size > committed.unwrap_or(self.base_size)
    }

    /// The largest size in any overlay. A rollback, or a failed commit, may bring that size back.
    pub(crate) fn size_max(&self) -> u64 {
        self.overlays().iter().filter_map(|o| o.size).fold(self.base_size, u64::max)
    }

    /// Makes everything committed the part of a checkpoint, after the changes that an earlier one could not apply.
    /// Returns it, and whether there are such changes.
    pub(crate) fn begin_applying(&mut self) -> (Arc<Overlay>, bool) {
        let size = self.size();
        let committed = std::mem::take(&mut self.committed).into_merged();
        let earlier = self.applying.take();
        let again = earlier.is_some();
        let overlay = match earlier {
            Some(earlier) => {
                let mut overlay = (*earlier).clone();
                overlay.merge(&committed);
                Arc::new(overlay)
            }
            None => Arc::new(committed),
        };
        self.applying = Some(overlay.clone());
        debug_assert_eq!(self.size(), size, "a checkpoint changed the content that programs see");
        (overlay, again)
    }

    /// Whether commits, finished or on their way, are missing from the data file.
    pub(crate) fn is_pending(&self) -> bool {
        !self.committed.is_empty() || self.applying.is_some() || !self.committing.is_empty()
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.overlays().iter().map(|o| o.memory_bytes()).sum()
    }

    /// Reads through the overlays; the caller has clipped the range to the size.
    pub(crate) fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        read_through(&self.overlays(), self.data.as_deref(), buf, offset)
    }

    /// The source for bytes that are written: in memory, or in the spill file if there are many.
    pub(crate) fn source_of(&mut self, sink: &dyn SpillSink, bytes: &[u8], offset: u64) -> Result<Source> {
        if bytes.len() as u64 <= sink.inline_bytes_max() {
            let bytes = Bytes::from(sized_memory::copy(bytes, &self.path)?);
            return Ok(Source::Bytes { bytes, origin: offset });
        }
        let space = self.spill_space(sink, bytes.len() as u64)?;
        let (at, crc) = space.put(bytes, offset)?;
        Ok(Source::Spill { spill: space.spill().clone(), at, origin: offset, len: bytes.len() as u64, crc })
    }

    /// Adds a write to the write set.
    pub(crate) fn write(&mut self, range: Range<u64>, source: Source) {
        let size = self.size();
        self.fill_gap(range.start);
        if range.end > size {
            self.write_set.size = Some(range.end);
        }
        let end = range.end;
        self.write_set.insert(range, source);
        debug_assert_eq!(self.size(), size.max(end), "a write up to {end}");
    }

    /// Keeps the memory of uncommitted changes within bounds.
    pub(crate) fn bound_memory(&mut self, sink: &dyn SpillSink) -> Result<()> {
        self.make_room(sink, 0)
    }

    /// Extends the file with zeros.
    pub(crate) fn grow(&mut self, size: u64) {
        debug_assert!(size >= self.size(), "{} bytes grow to {size}", self.size());
        self.fill_gap(size);
        self.write_set.size = Some(size);
    }

    /// Sets the file's size, as an uncommitted change.
    pub(crate) fn set_size(&mut self, size: u64) {
        match size >= self.size() {
            true => self.grow(size),
            false => self.write_set.truncate(size),
        }
        debug_assert_eq!(self.size(), size, "another overlay decides about the size");
    }

    /// Makes the gap between the old end and new bytes explicit zeros in the change. Recovery must not rely on a hole,
    /// because a crash may leave arbitrary bytes in newly allocated sectors.
    fn fill_gap(&mut self, to: u64) {
        let size = self.size();
        if to > size && holds(invariant::ZERO_GAP) {
            self.write_set.insert(size..to, Source::Zero);
        }
    }

    /// Loads committed bytes from the journal's segments into memory, because the segments are about to be reused.
    pub(crate) fn leave_log(&mut self) -> Result<()> {
        if let Some(applying) = self.applying.as_mut().filter(|overlay| overlay.lies_in_log()) {
            let size = applying.size;
            *applying = Arc::new(applying.without_log()?);
            debug_assert_eq!(applying.size, size, "a file got another size when it left the log");
        }
        debug_assert!(self.committed.overlays().all(|overlay| !overlay.lies_in_log()), "new commits lie in the log");
        Ok(())
    }

    /// Drops uncommitted changes and their spill file.
    pub(crate) fn discard(&mut self) {
        self.write_set = Overlay::default();
        self.spill = None;
    }

    /// Moves the write set into a new commit.
    pub(crate) fn take_write_set(&mut self, is_txn: bool) {
        let size = self.size();
        self.spill = None;
        self.committing.push_back(Committing { overlay: Arc::new(std::mem::take(&mut self.write_set)), is_txn });
        debug_assert_eq!(self.size(), size, "a commit changed the content that programs see");
    }

    /// The spill file of uncommitted changes, prepared for this many bytes.
    fn spill_space(&mut self, sink: &dyn SpillSink, bytes: u64) -> Result<&mut SpillSpace> {
        let space = match self.spill.take() {
            Some(space) => space,
            None => sink.create_spill_space()?,
        };
        let space = self.spill.insert(space);
        if space.wants_look(bytes) {
            let used = self.write_set.used_of(space.spill());
            space.set_used(&used);
        }
        Ok(space)
    }

    /// Makes room in memory for this many more bytes of uncommitted changes; the excess goes to the spill file.
    pub(crate) fn make_room(&mut self, sink: &dyn SpillSink, bytes: u64) -> Result<()> {
        let most = sink.inline_bytes_max();
        let most = if bytes <= most { most - bytes } else { most };
        for least_bytes in [PAGE_BYTES, 1] {
            if self.write_set.memory_bytes() > most {
                self.spill_space(sink, self.write_set.memory_bytes())?;
                let space = self.spill.as_mut().expect("made above");
                self.write_set.spill(space, least_bytes)?;
            }
        }
        debug_assert!(
            self.write_set.memory_bytes() <= most,
            "{} bytes are in memory, and {most} may be",
            self.write_set.memory_bytes()
        );
        Ok(())
    }

    /// Moves the write set's bytes to the file's own spill file, or to a spill file that several files share.
    pub(crate) fn spill_write_set(&mut self, shared: &mut SpillSpace) -> Result<()> {
        let space = self.spill.as_mut().unwrap_or(shared);
        self.write_set.spill(space, 1)?;
        debug_assert_eq!(self.write_set.memory_bytes(), 0, "bytes that were spilled are in memory");
        Ok(())
    }

    /// Takes back the n-th commit on its way, which failed. Its changes become part of the next commit, or uncommitted
    /// again.
    pub(crate) fn uncommit(&mut self, nth: usize) {
        let size = self.size();
        let failed = self.committing.remove(nth).expect("a commit on its way");
        let mut merged = (*failed.overlay).clone();
        match self.committing.get_mut(nth) {
            Some(next) => {
                merged.merge(&next.overlay);
                next.overlay = Arc::new(merged);
            }
            None => {
                merged.merge(&self.write_set);
                self.write_set = merged;
            }
        }
        debug_assert_eq!(self.size(), size, "a failed commit changed the content that programs see");
    }

    /// With the option `full_page`: the n-th commit on its way, as it is logged, and the pages that it logs. Each
    /// changed page is logged completely, unless a record since the beginning of the last checkpoint has it already.
    pub(crate) fn with_whole_pages(&self, nth: usize, logged: &BTreeSet<u64>) -> Result<(Overlay, Vec<u64>)> {
        let mut overlay = (*self.committing[nth].overlay).clone();
        let older = self.committing.iter().take(nth).rev().map(|commit| &*commit.overlay);
        let below: Vec<&Overlay> = older.chain(self.committed.overlays()).chain(self.applying.as_deref()).collect();
        let pages = changed_pages(&overlay).difference(logged).copied().collect::<Vec<_>>();
        self.fill_pages(&mut overlay, &pages, &below)?;
        Ok((overlay, pages))
    }

    /// All committed changes that are not durably in the data file; with `whole_pages`, each changed page is complete.
    pub(crate) fn pending(&self, whole_pages: bool) -> Result<Overlay> {
        let mut overlay = self.applying.as_deref().cloned().unwrap_or_default();
        self.committed.lay_over(&mut overlay);
        if whole_pages {
            let pages = changed_pages(&overlay).into_iter().collect::<Vec<_>>();
            self.fill_pages(&mut overlay, &pages, &[])?;
        }
        Ok(overlay)
    }

    /// Completes these pages of an overlay from the overlays below it and the data file.
    fn fill_pages(&self, overlay: &mut Overlay, pages: &[u64], below: &[&Overlay]) -> Result<()> {
        let size = overlay.size.or(below.iter().find_map(|o| o.size)).unwrap_or(self.base_size);
        for page in pages {
            let start = page * PAGE_BYTES;
            let range = start..(start + PAGE_BYTES).min(size);
            if range.is_empty() || overlay.covers(&range) {
                continue;
            }
            let mut bytes = vec![0; (range.end - range.start) as usize];
            let overlays: Vec<&Overlay> = std::iter::once(&*overlay).chain(below.iter().copied()).collect();
            read_through(&overlays, self.data.as_deref(), &mut bytes, start)?;
            if let Some(data) = &self.data {
                // These bytes become part of a commit.
                data.check_own().context("read", &self.path)?;
            }
            overlay.insert(range, Source::Bytes { bytes: bytes.into(), origin: start });
        }
        Ok(())
    }

    /// An error that names the file by its name in the store.
    pub(crate) fn conflict(&self, detail: impl Into<String>) -> Error {
        Error::Conflict { path: self.path.clone(), detail: detail.into() }
    }
}

/// Pages that an overlay changes, completely or in part. Of ranges of zeros, only pages that they do not fill.
fn changed_pages(overlay: &Overlay) -> BTreeSet<u64> {
    let mut pages = BTreeSet::new();
    for (range, source) in overlay.ranges() {
        if *source == Source::Zero {
            let edges = [range.start, range.end].into_iter().filter(|at| at % PAGE_BYTES != 0 && *at != NO_END);
            pages.extend(edges.map(|at| at / PAGE_BYTES));
        } else {
            pages.extend(range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES));
        }
    }
    pages
}

/// The ranges in which overlays (oldest last) hold zeros, and those in which they hold bytes. The newest overlay that
/// covers a byte decides.
pub(crate) fn changed_ranges(overlays: &[&Overlay], within: &Range<u64>) -> (RangeSet, RangeSet) {
    let (mut zeros, mut bytes) = (RangeSet::new(), RangeSet::new());
    if within.is_empty() {
        return (zeros, bytes);
    }
    for overlay in overlays.iter().rev() {
        for (range, source) in overlay.overlapping(within) {
            let range = range.start.max(within.start)..range.end.min(within.end);
            let (to, from) = match source {
                Source::Zero => (&mut zeros, &mut bytes),
                _ => (&mut bytes, &mut zeros),
            };
            from.remove(range.clone());
            to.insert(range);
        }
    }
    debug_assert!(
        zeros.iter().all(|range| !bytes.overlaps(range)),
        "a range is of zeros and of bytes: {zeros:?}, {bytes:?}"
    );
    (zeros, bytes)
}

type RangeSet = rangemap::RangeSet<u64>;

/// Whether a data file was written or truncated between two reads of its metadata.
pub(crate) fn edited(now: &Meta, last: &Meta) -> bool {
    now.size != last.size || now.mtime_ns != last.mtime_ns
}
