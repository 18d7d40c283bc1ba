//! The mapping of a file: while a file is mapped, memory holds its newest content.
//!
//! A page shows the data file until the program stores to it; from then on the page is a private copy, which the kernel
//! never writes back. So that pages of the file always show the right content, **a page with bytes in any overlay of
//! the file is private**. Before each commit, the pages that were stored to are copied once. The copies are compared
//! with the content (the overlays over the data file, never the data file alone, because a store may undo a change that
//! is committed and not yet applied), and the lines that differ go into the write set like any other change.
//!
//! ```text
//! find_stores    find the pages that were stored to             Mapping::changed, or the program's reports
//! stage_stores   copy them, compare, put the lines that differ into the write set
//! commit         as without a mapping
//! reclaim        drop copies that no overlay knows: the file shows through again (only while nobody stores)
//! ```
//!
//! With the tracker `explicit` (explicit dirty ranges), the program or its hooks report the changed bytes. Exactly these
//! bytes are copied and staged, regardless of the content there, and no page is examined. A range that was reported but
//! not stored to is staged from the page, which shows the content, so the page need not be private.

mod ahead;
mod changes;
mod mark_hooks;
mod marked;
mod marked_changes;
mod reclaim;
mod stopped;
mod undo;
mod unmarked_check;

use crate::engine::content::{Content, changed_ranges};
use crate::invariant;
use ahead::Ahead;
pub(crate) use changes::{Copies, Race};
pub use mark_hooks::{MarkTable, set_mark_table};
pub(crate) use marked::{Marked, UnmarkedCheck};
use rangemap::RangeSet;
use rustix::io::Errno;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use untorn_journal::commits::overlay::read_through;
use untorn_journal::commits::prefetch::{prefetch_file, prefetch_log};
use untorn_journal::format::sized_memory;
use untorn_journal::{Error, Result};
use untorn_os::{AlignedBuf, File, Mapping, Piece, StillCopy, TrackerKind, holds, value_if_holds};

/// Pages that are stored in one call.
const PAGES_AT_ONCE: usize = 256;
/// Bytes that are read in one call; the system copies less than 2 GiB at a time.
const READ_MOST: usize = 1 << 30;
/// Limit for the memory of page copies that save reads at the next commit.
const COPIES_BYTES_MAX: u64 = 64 << 20;

/// Limit for the pieces of the mapping that show the file, with zeros in between, because the kernel limits the number
/// of a process's mappings (`vm.max_map_count`, 65530).
const PIECES_MOST: usize = 4096;

/// Larger ranges of zeros, and of bytes that a rollback restores, are mapped, not stored.
const STORED_MAX: u64 = 256 << 10;

/// The one canonical mapping of a file.
pub(crate) struct Region {
    /// Without the feature `map` there is no region, and the compiler leaves out the code for them.
    #[cfg(not(feature = "map"))]
    none: std::convert::Infallible,
    mapping: Box<dyn Mapping>,
    /// Present as long as the store is open.
    data: Option<Arc<dyn File>>,
    /// End of the accessible memory, which starts at 0; a multiple of the page size.
    accessible: u64,
    /// Ranges in which pages show the data file until they are stored to.
    shown: RangeSet<u64>,
    /// Private pages by offset, some with their content at the last comparison.
    pages: HashMap<u64, Option<Box<[u8]>>>,
    copies_bytes: u64,
    /// Pages with stores that were found and are not staged yet.
    found: RangeSet<u64>,
    /// Ranges that the program reported and that were not taken yet.
    marked: Arc<Marked>,
    /// Ranges that were taken from there and are not staged yet: in order, to the byte, not in pages.
    taken: Vec<Range<u64>>,
    /// If set, commits check for unreported stores.
    checked: Option<marked::Checked>,
    /// Ranges that were undone in the overlays but not in memory, and why. No commit is made until memory follows.
    not_undone: Option<(RangeSet<u64>, Error)>,
    /// Buffer for the next copies.
    copies: Vec<u8>,
    /// Buffer for the next copies of all stored pages at one moment.
    copies_at_once: Vec<u8>,
    /// Buffer for copies that are made while the program's threads are stopped.
    still_copy: Option<StillCopy>,
    /// Early copies of pages in `found`.
    ahead: Ahead,
    /// Pages that the present commit by stopping threads, or a failed one, has staged.
    touched: Option<Vec<Range<u64>>>,
    /// Whether the program can store to it, because the file was writable when it was mapped.
    pub writable: bool,
    /// Maps that the program holds.
    pub maps: usize,
    /// The program's promise that nobody stores while a commit runs.
    pub quiet: bool,
    pub debug_races: bool,
    pub dirty_max: Option<u64>,
    /// Whether its pages are memory that outlives the process, and never show the data file.
    live: bool,
    /// If more bytes than this are private, quiet commits look for pages to drop.
    reclaim_bytes: u64,
}

#[cfg(feature = "map")]
impl Region {
    /// The region of a file that was just mapped.
    pub(crate) fn new(
        mapping: Box<dyn Mapping>,
        data: Arc<dyn File>,
        content: &Content,
        writable: bool,
        is_explicit: bool,
    ) -> Result<Region> {
        let mut marked = Marked::new(is_explicit);
        if is_explicit {
            let hooked = marked.hear_hooks(mapping.address() as usize, mapping.address_space());
            hooked.map_err(|e| Error::io("have the hooks tell of", &content.path, e))?;
        }
        let mut region = Region::of(mapping, data, writable, marked);
        region.reach(content, content.size())?;
        Ok(region)
    }

    /// Makes a region like [`Region::new`], of live memory into which the mapping copies the file.
    pub(crate) fn new_live(mapping: Box<dyn Mapping>, data: Arc<dyn File>, content: &Content) -> Result<Region> {
        let mut region = Region { live: true, ..Region::of(mapping, data, true, Marked::new(false)) };
        region.reach(content, content.size())?;
        // The copied bytes are not stores.
        region.find_stores(content)?;
        region.found.clear();
        Ok(region)
    }

    /// The region of live memory that a dead process left: any of its pages may have been stored to.
    pub(crate) fn resumed(mapping: Box<dyn Mapping>, data: Arc<dyn File>, bytes: u64) -> Region {
        let mut region = Region { live: true, ..Region::of(mapping, data, true, Marked::new(false)) };
        region.set_accessible(bytes);
        if holds(invariant::LIVE_ALL_COMPARED) {
            region.found.insert(0..bytes);
        }
        region
    }

    fn of(mapping: Box<dyn Mapping>, data: Arc<dyn File>, writable: bool, marked: Marked) -> Region {
        let mut region = Region {
            mapping,
            data: Some(data),
            accessible: 0,
            shown: RangeSet::new(),
            pages: HashMap::new(),
            copies_bytes: 0,
            found: RangeSet::new(),
            marked: Arc::new(marked),
            taken: Vec::new(),
            checked: None,
            not_undone: None,
            copies: Vec::new(),
            copies_at_once: Vec::new(),
            still_copy: None,
            ahead: Ahead::default(),
            touched: None,
            writable,
            maps: 0,
            quiet: true,
            debug_races: false,
            dirty_max: None,
            live: false,
            reclaim_bytes: 0,
        };
        region.reclaim_bytes = region.reclaim_bytes_min();
        region
    }
}

impl Region {
    /// Drops the data file, because the store is closed and another program may own the file now.
    pub(crate) fn release(&mut self) {
        self.data = None;
    }

    /// Continues in another store, in which the file was opened again: its data file is the mapped one, and has
    /// everything that was committed. There are no maps in the new store yet.
    pub(crate) fn follow(&mut self, data: Arc<dyn File>) {
        self.data = Some(data);
        self.maps = 0;
    }

    /// Ends the region, and leaves its addresses mapped for the program.
    pub(crate) fn leave(mut self) {
        self.mapping.leave();
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.mapping.address()
    }

    pub(crate) fn address_space(&self) -> u64 {
        self.mapping.address_space()
    }

    pub(crate) fn tracker(&self) -> TrackerKind {
        if self.is_explicit() { TrackerKind::Explicit } else { self.mapping.tracker() }
    }

    /// Whether its stores outlive the process.
    pub(crate) fn is_live(&self) -> bool {
        self.live
    }

    fn is_explicit(&self) -> bool {
        self.marked.is_on()
    }

    /// Turns on the check for unreported stores.
    pub(crate) fn check_from_now_on(&mut self, how: UnmarkedCheck) {
        self.checked = Some(marked::Checked::new(how));
    }

    /// The lists in which the program's threads report changes.
    pub(crate) fn marked(&self) -> Arc<Marked> {
        self.marked.clone()
    }

    /// Whether memory reaches to this end of the file, or lacks a rollback that failed.
    pub(crate) fn reaches(&self, size: u64) -> bool {
        self.accessible >= size || self.not_undone.is_some()
    }

    /// Checks that nothing is known of pages behind the accessible memory. Called at the end of each change of its size.
    fn assert_within(&self) {
        let behind = self.accessible..u64::MAX;
        debug_assert!(
            !self.shown.overlaps(&behind) && !self.found.overlaps(&behind),
            "{:?} are shown and {:?} found of {} accessible bytes",
            self.shown,
            self.found,
            self.accessible
        );
        debug_assert!(
            self.taken.last().is_none_or(|last| last.end <= self.accessible),
            "{:?} are reported of {} accessible bytes",
            self.taken.last(),
            self.accessible
        );
    }

    fn set_accessible(&mut self, end: u64) {
        debug_assert!(
            end.is_multiple_of(self.page()) && end <= self.address_space(),
            "{end} accessible bytes in {} of address space",
            self.address_space()
        );
        self.accessible = end;
        self.marked.set_end(end);
    }

    pub(crate) fn accessible(&self) -> u64 {
        self.accessible
    }

    /// Bytes of pages that no longer show the file.
    pub(crate) fn private_bytes(&self) -> u64 {
        let mut ranges = Vec::new();
        match self.mapping.private(0..self.accessible, &mut ranges) {
            Ok(()) => ranges.iter().map(|r| r.end - r.start).sum(),
            Err(_) => self.pages.len() as u64 * self.page(),
        }
    }

    /// Bytes of copies that are kept for comparison.
    pub(crate) fn copies_bytes(&self) -> u64 {
        self.copies_bytes
    }

    /// Reads the file into memory.
    pub(crate) fn populate(&mut self) -> std::io::Result<()> {
        self.shown.iter().try_for_each(|range| self.mapping.populate(range.clone()))
    }

    fn page(&self) -> u64 {
        self.mapping.page_bytes()
    }

    fn round_up(&self, size: u64) -> u64 {
        size.next_multiple_of(self.page())
    }

    /// The whole pages that a range touches.
    fn pages_of(&self, range: &Range<u64>) -> Range<u64> {
        range.start - range.start % self.page()..self.round_up(range.end)
    }

    /// The data file, as long as it belongs to this store.
    fn data(&self) -> Result<&dyn File> {
        self.data.as_deref().ok_or(Error::Closed)
    }

    /// The whole pages that a range fills.
    fn pages_in(&self, range: &Range<u64>) -> Range<u64> {
        let start = self.round_up(range.start);
        start..start.max(range.end - range.end % self.page())
    }

    fn fail(&self, content: &Content, action: &'static str, e: std::io::Error) -> Error {
        // A page fault error means that another program truncated the mapped file.
        if Errno::from_io_error(&e) == Some(Errno::FAULT) {
            return Error::Conflict {
                path: content.path.clone(),
                detail: "a mapped page cannot be accessed: another program truncated the file, or this one changed \
                         the protection of its mapping"
                    .into(),
            };
        }
        Error::io(action, &content.path, e)
    }

    /// The offset up to which pages may show the data file, without the part that a checkpoint is about to cut off.
    fn file_end(&self, content: &Content) -> u64 {
        let overlays = value_if_holds(invariant::TRUNCATED_PAGES_HIDDEN, content.overlays());
        self.round_up(overlays.iter().filter_map(|o| o.size).fold(content.base_size, u64::min))
    }

    /// Checks that the reserved addresses have room for a file of this size.
    pub(crate) fn check_room(&self, content: &Content, size: u64) -> Result<()> {
        if size <= self.mapping.address_space() {
            return Ok(());
        }
        Err(Error::NoMemory {
            path: content.path.clone(),
            detail: format!(
                "{size} bytes do not fit in the {} bytes of address space that its mapping reserved; map it with a \
                 larger `address_space`",
                self.mapping.address_space()
            ),
        })
    }

    /// Makes memory reach to the end of a file of this size; new pages show the content.
    fn reach(&mut self, content: &Content, size: u64) -> Result<()> {
        let (old, new) = (self.accessible, self.round_up(size));
        if new < old {
            self.mapping.hide(new..old).map_err(|e| self.fail(content, "unmap the end of", e))?;
            self.forget(new..old);
            self.set_accessible(new);
            self.assert_within();
            return Ok(());
        }
        self.load(content, old..new)
    }

    /// Drops all information about these pages.
    fn forget(&mut self, range: Range<u64>) {
        self.shown.remove(range.clone());
        self.found.remove(range.clone());
        self.ahead.forget(&range, self.page());
        marked::remove(&mut self.taken, &range);
        self.drop_pages(&range);
    }

    fn drop_pages(&mut self, range: &Range<u64>) {
        let (page, copies) = (self.page(), &mut self.copies_bytes);
        let mut gone = |copy: &Option<Box<[u8]>>| *copies -= copy.as_ref().map_or(0, |_| page);
        if (range.end - range.start) / page < self.pages.len() as u64 {
            for at in range.clone().step_by(page as usize) {
                if let Some(copy) = self.pages.remove(&at) {
                    gone(&copy);
                }
            }
        } else {
            self.pages.retain(|at, copy| {
                let stays = !range.contains(at);
                if !stays {
                    gone(copy);
                }
                stays
            });
        }
    }

    /// Maps these pages again, so that they show the content: the data file, zeros beyond its end, and the overlays
    /// over that.
    fn load(&mut self, content: &Content, range: Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let fail = |e| self.fail(content, "map", e);
        let file = range.start..range.end.min(self.file_end(content)).max(range.start);
        let file_end = file.end;
        self.mapping.show(file.clone()).map_err(fail)?;
        self.mapping.blank(file_end..range.end).map_err(fail)?;
        self.forget(range.clone());
        if !file.is_empty() && !self.live {
            self.shown.insert(file);
        }
        self.set_accessible(self.accessible.max(range.end));
        let overlays = value_if_holds(invariant::OVERLAYS_SHOW, content.overlays());
        let (zeros, bytes) = changed_ranges(&overlays, &range);
        // Each store reads the page below. After a crash, neither these pages nor the log are in the page cache.
        prefetch_log(&overlays, bytes.iter());
        prefetch_file(self.data()?, file_end, bytes.iter());
        for range in zeros.iter() {
            self.store_zeros(content, range.clone())?;
        }
        for range in bytes.iter() {
            self.store_content(content, range.clone())?;
        }
        Ok(())
    }

    /// Stores bytes like the program.
    fn store(&mut self, content: &Content, offset: u64, bytes: &[u8]) -> Result<()> {
        debug_assert!(
            offset + bytes.len() as u64 <= self.accessible,
            "{} bytes at {offset} of {} accessible ones",
            bytes.len(),
            self.accessible
        );
        self.expect_private(content, bytes.len() / self.page() as usize + 2)?;
        self.mapping.copy_in(offset, bytes).map_err(|e| self.fail(content, "store to the mapping of", e))?;
        // These pages are private now, and differ from their copies.
        let range = offset..offset + bytes.len() as u64;
        self.outdate(&range);
        self.pages_of(&range).step_by(self.page() as usize).for_each(|at| _ = self.pages.entry(at).or_default());
        Ok(())
    }

    /// Reserves memory for this many more private pages.
    fn expect_private(&mut self, content: &Content, pages: usize) -> Result<()> {
        self.pages.try_reserve(pages).map_err(|_| sized_memory::none(pages * self.page() as usize, &content.path))
    }

    /// Drops the copies of these pages, because their content has changed.
    fn outdate(&mut self, range: &Range<u64>) {
        let (page, range) = (self.page(), self.pages_of(range));
        let mut gone = 0;
        if (range.end - range.start) / page < self.pages.len() as u64 {
            let copies = range.step_by(page as usize).filter_map(|at| self.pages.get_mut(&at).and_then(Option::take));
            gone += copies.count() as u64;
        } else {
            let within = self.pages.iter_mut().filter(|(at, _)| range.contains(at));
            gone += within.filter_map(|(_, copy)| copy.take()).count() as u64;
        }
        self.copies_bytes -= gone * page;
    }

    /// Number of further pieces that the mapping may have.
    pub(crate) fn pieces_left(&self) -> usize {
        PIECES_MOST.saturating_sub(self.shown.iter().count())
    }

    /// Stores zeros, by mapping if there are many.
    pub(crate) fn store_zeros(&mut self, content: &Content, range: Range<u64>) -> Result<()> {
        let zeros = vec![0; self.page() as usize];
        let inner = self.pages_in(&range);
        let mut mapped = inner.end - inner.start > STORED_MAX;
        if mapped {
            match self.mapping.blank(inner.clone()) {
                Ok(()) => self.forget(inner.clone()),
                // The process has the maximum number of mappings, so the zeros take memory.
                Err(e) if Errno::from_io_error(&e) == Some(Errno::NOMEM) => mapped = false,
                Err(e) => return Err(self.fail(content, "map", e)),
            }
        }
        let mut at = range.start;
        while at < range.end {
            if mapped && at == inner.start {
                at = inner.end;
                continue;
            }
            let end = (at - at % self.page() + self.page()).min(range.end);
            self.store(content, at, &zeros[..(end - at) as usize])?;
            at = end;
        }
        Ok(())
    }

    /// Stores the content of a range.
    fn store_content(&mut self, content: &Content, range: Range<u64>) -> Result<()> {
        let most = PAGES_AT_ONCE as u64 * self.page();
        let mut at = range.start;
        while at < range.end {
            let mut buf = AlignedBuf::zeroed_up_to((range.end - at).min(most) as usize);
            let overlays = value_if_holds(invariant::COMMITTED_BYTES_BACK, content.overlays());
            read_through(&overlays, Some(self.data()?), &mut buf, at)?;
            self.store(content, at, &buf)?;
            at += buf.len() as u64;
        }
        Ok(())
    }

    /// Copies memory out.
    pub(crate) fn read(&self, content: &Content, buf: &mut [u8], offset: u64) -> Result<()> {
        let mut offset = offset;
        for into in buf.chunks_mut(READ_MOST) {
            let next = offset + into.len() as u64;
            let pieces = &mut [Piece { offset, into }];
            self.mapping.copy_out(pieces).map_err(|e| self.fail(content, "read the mapping of", e))?;
            offset = next;
        }
        Ok(())
    }

    /// Writes through the file interface, which counts as a store.
    pub(crate) fn write(&mut self, content: &Content, offset: u64, bytes: &[u8]) -> Result<()> {
        self.store(content, offset, bytes)?;
        self.mark(offset..offset + bytes.len() as u64);
        Ok(())
    }

    /// Notes that these bytes may have changed, even if the tracker does not report them.
    pub(crate) fn mark(&mut self, range: Range<u64>) {
        let end = self.accessible;
        if self.is_explicit() {
            self.marked.note(range.start..range.end.min(end));
            return;
        }
        let pages = self.pages_of(&range);
        if pages.start < pages.end.min(end) {
            self.is_stored_to(pages.start..pages.end.min(end));
        }
    }

    /// Prepares memory for another size of the file, which the caller stages. Bytes stored beyond its end never become
    /// a part of it.
    pub(crate) fn resize(&mut self, content: &Content, size: u64) -> Result<()> {
        let (old, end) = (content.size(), self.accessible);
        if size < old {
            let tail = size..self.round_up(size);
            // The page stays without its tail. Hide first: if that fails, nothing has changed.
            self.reach(content, size)?;
            return self.clear(content, tail);
        }
        self.check_room(content, size)?;
        self.clear(content, old..end)?;
        let new = self.round_up(size);
        if new > end {
            let mapped = match holds(invariant::GROWS_BY_ZEROS) {
                true => self.mapping.blank(end..new),
                false => self.mapping.show(end..new),
            };
            mapped.map_err(|e| self.fail(content, "map the end of", e))?;
            self.set_accessible(new);
        }
        debug_assert!(self.accessible >= size, "{} bytes are accessible of {size}", self.accessible);
        self.assert_within();
        Ok(())
    }

    /// Makes a part of the last page zero, if it is not.
    fn clear(&mut self, content: &Content, tail: Range<u64>) -> Result<()> {
        if tail.is_empty() || !holds(invariant::STORES_BEHIND_THE_END) {
            return Ok(());
        }
        let mut bytes = vec![0; (tail.end - tail.start) as usize];
        self.read(content, &mut bytes, tail.start)?;
        if bytes.iter().all(|b| *b == 0) {
            // The content is zero there from now on, so the copies are outdated.
            self.outdate(&tail);
            return Ok(());
        }
        bytes.fill(0);
        self.store(content, tail.start, &bytes)
    }
}

#[cfg(all(test, feature = "map"))]
mod tests;
