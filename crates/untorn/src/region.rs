//! A mapped file: while it is mapped, memory is its view.
//!
//! A page shows the data file until something is stored to it; from then on it is a copy of its own
//! ("private"), which the kernel never writes anywhere. So that file pages always show the truth,
//! **a page with bytes in any layer of the view is private**. Before each commit the pages that were
//! stored to are copied once, the copies are compared with the view (its layers over the data file,
//! never the file alone: a store may undo what is committed and not applied yet), and the lines that
//! differ become staged changes like any other.
//!
//! ```text
//! find      which pages were stored to                       Mapping::changed
//! absorb    copy them, compare, stage the lines that differ
//! commit    as without a mapping
//! retire    drop copies that no layer knows: the file shows through again (only while nobody stores)
//! ```

mod absorb;
mod of_view;

use crate::view::View;
pub(crate) use absorb::Race;
use rangemap::RangeSet;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use untorn_journal::care::{Care, cared, kept};
use untorn_journal::layer::{Layer, Source, read_through};
use untorn_journal::{Error, Result};
use untorn_os::{File, Mapping, Piece, Tracker};

/// Pages that are stored at once.
const PAGES_AT_ONCE: usize = 256;
/// Bytes that are read at once; the system copies less than 2 GiB in one call.
const READ_MOST: usize = 1 << 30;
/// Most memory for copies of pages that spare reading them again at the next commit.
const COPIES_BYTES_MAX: u64 = 64 << 20;

/// Zeros over more than this, and bytes that a rollback brings back, are mapped, not stored.
const STORED_MAX: u64 = 256 << 10;

/// The one canonical mapping of a file.
pub(crate) struct Region {
    mapping: Box<dyn Mapping>,
    /// Kept open as long as the store is.
    data: Option<Arc<dyn File>>,
    /// From 0 up to here, whole pages, memory can be accessed.
    accessible: u64,
    /// Where pages show the data file until they are stored to.
    shown: RangeSet<u64>,
    /// Private pages by offset, some with what the view held there when they were last compared.
    pages: HashMap<u64, Option<Box<[u8]>>>,
    copies_bytes: u64,
    /// Pages found to be stored to and not yet absorbed.
    found: RangeSet<u64>,
    /// Undone in the view and not in memory, and why: no commit before that is made up for.
    owed: Option<(RangeSet<u64>, Error)>,
    /// Buffer for the next copies.
    copies: Vec<u8>,
    /// The program can store to it: the file could be written when it was mapped.
    pub writable: bool,
    /// Maps that the program holds.
    pub maps: usize,
    /// Nobody stores while a commit runs: the program's promise.
    pub quiet: bool,
    pub debug_races: bool,
    pub dirty_max: Option<u64>,
    /// With more than this private, quiet commits look for pages to drop.
    retire_bytes: u64,
}

impl Region {
    /// Maps a file. The view is the caller's.
    pub(crate) fn new(mapping: Box<dyn Mapping>, data: Arc<dyn File>, view: &View) -> Result<Region> {
        let mut region = Region {
            mapping,
            data: Some(data),
            accessible: 0,
            shown: RangeSet::new(),
            pages: HashMap::new(),
            copies_bytes: 0,
            found: RangeSet::new(),
            owed: None,
            copies: Vec::new(),
            writable: view.writable,
            maps: 0,
            quiet: true,
            debug_races: false,
            dirty_max: None,
            retire_bytes: 0,
        };
        region.retire_bytes = region.retire_bytes_min();
        region.reach(view, view.size())?;
        Ok(region)
    }

    /// The store is closed: the file may be somebody else's now.
    pub(crate) fn release(&mut self) {
        self.data = None;
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.mapping.address()
    }

    pub(crate) fn address_space(&self) -> u64 {
        self.mapping.address_space()
    }

    pub(crate) fn tracker(&self) -> Tracker {
        self.mapping.tracker()
    }

    pub(crate) fn accessible(&self) -> u64 {
        self.accessible
    }

    /// Bytes of pages that have left the file.
    pub(crate) fn private_bytes(&self) -> u64 {
        let mut ranges = Vec::new();
        match self.mapping.private(0..self.accessible, &mut ranges) {
            Ok(()) => ranges.iter().map(|r| r.end - r.start).sum(),
            Err(_) => self.pages.len() as u64 * self.page(),
        }
    }

    /// Bytes of copies that are kept to compare with.
    pub(crate) fn copies_bytes(&self) -> u64 {
        self.copies_bytes
    }

    /// More pages are private than the program allowed.
    pub(crate) fn is_over(&self) -> bool {
        self.dirty_max.is_some_and(|most| self.pages.len() as u64 * self.page() > most)
    }

    /// So much is private that a look for clean pages pays.
    pub(crate) fn wants_to_retire(&self) -> bool {
        self.is_over() || self.pages.len() as u64 * self.page() > self.retire_bytes
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

    /// The data file, as long as it is ours.
    fn data(&self) -> Result<&dyn File> {
        self.data.as_deref().ok_or(Error::Closed)
    }

    /// The whole pages that a range fills.
    fn pages_in(&self, range: &Range<u64>) -> Range<u64> {
        let start = self.round_up(range.start);
        start..start.max(range.end - range.end % self.page())
    }

    fn fail(&self, view: &View, action: &'static str, e: std::io::Error) -> Error {
        // What truncation of a mapped file by somebody else looks like from here.
        if e.raw_os_error() == Some(14) {
            return Error::Conflict {
                path: view.path.clone(),
                detail: "a mapped page cannot be accessed: another program truncated the file, or this one changed \
                         the protection of its mapping"
                    .into(),
            };
        }
        Error::io(action, &view.path, e)
    }

    /// Up to here pages can show the data file: whatever a checkpoint is about to cut off is not shown.
    fn file_end(&self, view: &View) -> u64 {
        let layers = cared(Care::CutPagesHidden, view.layers());
        self.round_up(layers.iter().filter_map(|l| l.size).fold(view.base_size, u64::min))
    }

    /// There is room in the reserved addresses for a file of this size.
    pub(crate) fn check_room(&self, view: &View, size: u64) -> Result<()> {
        if size <= self.mapping.address_space() {
            return Ok(());
        }
        Err(Error::NoMemory {
            path: view.path.clone(),
            detail: format!(
                "{size} bytes do not fit in the {} bytes of address space that its mapping reserved; map it with a \
                 larger `address_space`",
                self.mapping.address_space()
            ),
        })
    }

    /// Memory reaches to the end of a file of this size; what is new shows the view.
    fn reach(&mut self, view: &View, size: u64) -> Result<()> {
        let (old, new) = (self.accessible, self.round_up(size));
        if new < old {
            self.mapping.hide(new..old).map_err(|e| self.fail(view, "unmap the end of", e))?;
            self.forget(new..old);
            self.accessible = new;
            return Ok(());
        }
        self.load(view, old..new)
    }

    /// Nothing is known of these pages any more.
    fn forget(&mut self, range: Range<u64>) {
        self.shown.remove(range.clone());
        self.found.remove(range.clone());
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

    /// Maps these pages anew, so that they show the view: the data file, zeros behind its end, and over
    /// that what the layers hold.
    fn load(&mut self, view: &View, range: Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let fail = |e| self.fail(view, "map", e);
        let file = range.start..range.end.min(self.file_end(view)).max(range.start);
        self.mapping.show(file.clone()).map_err(fail)?;
        self.mapping.blank(file.end..range.end).map_err(fail)?;
        self.forget(range.clone());
        if !file.is_empty() {
            self.shown.insert(file);
        }
        self.accessible = self.accessible.max(range.end);
        let (zeros, bytes) = changes(&cared(Care::LayersShow, view.layers()), &range);
        for range in zeros.iter() {
            self.store_zeros(view, range.clone())?;
        }
        for range in bytes.iter() {
            self.store_view(view, range.clone())?;
        }
        Ok(())
    }

    /// Stores bytes as the program would.
    fn store(&mut self, view: &View, offset: u64, bytes: &[u8]) -> Result<()> {
        self.mapping.copy_in(offset, bytes).map_err(|e| self.fail(view, "store to the mapping of", e))?;
        // Those pages are private now, and differ from their copies.
        let range = offset..offset + bytes.len() as u64;
        self.outdate(&range);
        self.pages_of(&range).step_by(self.page() as usize).for_each(|at| _ = self.pages.entry(at).or_default());
        Ok(())
    }

    /// Copies of these pages are not what the view holds any more.
    fn outdate(&mut self, range: &Range<u64>) {
        let page = self.page();
        for at in self.pages_of(range).step_by(page as usize) {
            if self.pages.get_mut(&at).and_then(Option::take).is_some() {
                self.copies_bytes -= page;
            }
        }
    }

    /// Stores zeros, by mapping where there are many.
    fn store_zeros(&mut self, view: &View, range: Range<u64>) -> Result<()> {
        let zeros = vec![0; self.page() as usize];
        let inner = self.pages_in(&range);
        let mapped = inner.end - inner.start > STORED_MAX;
        if mapped {
            self.mapping.blank(inner.clone()).map_err(|e| self.fail(view, "map", e))?;
            self.forget(inner.clone());
        }
        let mut at = range.start;
        while at < range.end {
            if mapped && at == inner.start {
                at = inner.end;
                continue;
            }
            let end = (at - at % self.page() + self.page()).min(range.end);
            self.store(view, at, &zeros[..(end - at) as usize])?;
            at = end;
        }
        Ok(())
    }

    /// Stores what the view holds in a range.
    fn store_view(&mut self, view: &View, range: Range<u64>) -> Result<()> {
        let most = PAGES_AT_ONCE as u64 * self.page();
        let mut at = range.start;
        while at < range.end {
            let mut buf = vec![0; (range.end - at).min(most) as usize];
            let layers = cared(Care::CommittedBytesBack, view.layers());
            read_through(&layers, Some(self.data()?), &mut buf, at)?;
            self.store(view, at, &buf)?;
            at += buf.len() as u64;
        }
        Ok(())
    }

    /// Copies memory out.
    pub(crate) fn read(&self, view: &View, buf: &mut [u8], offset: u64) -> Result<()> {
        let mut offset = offset;
        for into in buf.chunks_mut(READ_MOST) {
            let next = offset + into.len() as u64;
            let pieces = &mut [Piece { offset, into }];
            self.mapping.copy_out(pieces).map_err(|e| self.fail(view, "read the mapping of", e))?;
            offset = next;
        }
        Ok(())
    }

    /// A write through the file interface is a store.
    pub(crate) fn write(&mut self, view: &View, offset: u64, bytes: &[u8]) -> Result<()> {
        self.store(view, offset, bytes)?;
        self.mark(offset..offset + bytes.len() as u64);
        Ok(())
    }

    /// These bytes may have changed, whatever the tracker says.
    pub(crate) fn mark(&mut self, range: Range<u64>) {
        let range = self.pages_of(&range);
        let range = range.start..range.end.min(self.accessible);
        if range.start < range.end {
            self.found.insert(range);
        }
    }

    /// The file is about to have another size, which the caller stages. Bytes stored behind its end are
    /// never a part of it.
    pub(crate) fn resize(&mut self, view: &View, size: u64) -> Result<()> {
        let (old, end) = (view.size(), self.accessible);
        if size < old {
            let tail = size..self.round_up(size);
            // The page stays, its tail does not. Hidden first: if that fails, nothing has changed.
            self.reach(view, size)?;
            return self.clear(view, tail);
        }
        self.check_room(view, size)?;
        self.clear(view, old..end)?;
        let new = self.round_up(size);
        if new > end {
            let mapped = match kept(Care::GrowsByZeros) {
                true => self.mapping.blank(end..new),
                false => self.mapping.show(end..new),
            };
            mapped.map_err(|e| self.fail(view, "map the end of", e))?;
            self.accessible = new;
        }
        Ok(())
    }

    /// Makes a part of the last page zero, if it is not.
    fn clear(&mut self, view: &View, tail: Range<u64>) -> Result<()> {
        if tail.is_empty() || !kept(Care::StoresBehindTheEnd) {
            return Ok(());
        }
        let mut bytes = vec![0; (tail.end - tail.start) as usize];
        self.read(view, &mut bytes, tail.start)?;
        if bytes.iter().all(|b| *b == 0) {
            // The view is zero there from now on; what it was is not to be compared with.
            self.outdate(&tail);
            return Ok(());
        }
        bytes.fill(0);
        self.store(view, tail.start, &bytes)
    }

    /// Back to what the view holds without these changes, which the caller has just taken out of it, and
    /// without those that could not be taken out of memory before.
    fn undo(&mut self, view: &View, mut undone: RangeSet<u64>, found: Result<()>) -> Result<()> {
        if let Some((owed, _)) = self.owed.take() {
            owed.into_iter().for_each(|range| undone.insert(range));
        }
        let done = found.and_then(|()| self.restore(view, &undone));
        self.owed = done.as_ref().err().map(|e| (undone, e.clone()));
        done
    }

    fn restore(&mut self, view: &View, undone: &RangeSet<u64>) -> Result<()> {
        // Of a store that is closed memory stays as it is: the file may be somebody else's by now.
        self.data()?;
        let end = self.accessible.min(self.round_up(view.size()));
        self.reach(view, view.size())?;
        for range in undone.iter() {
            let range = range.start..range.end.min(end);
            if range.is_empty() {
                continue;
            }
            let inner = self.pages_in(&range);
            if inner.end - inner.start > STORED_MAX {
                // Stored, all of it would be private: more, perhaps, than there is memory.
                self.store_view(view, range.start..inner.start)?;
                self.load(view, inner.clone())?;
                self.store_view(view, inner.end..range.end)?;
            } else {
                self.store_view(view, range)?;
            }
        }
        Ok(())
    }

    /// Drops private pages that no layer knows. The caller has just absorbed, and nobody stores.
    fn retire(&mut self, view: &View) -> Result<()> {
        let (page, end) = (self.page(), self.file_end(view).min(self.accessible));
        if end == 0 {
            return Ok(());
        }
        let mut free = RangeSet::new();
        let pages = self.pages.keys().filter(|at| **at < end);
        pages.for_each(|at| free.insert(*at..at + page));
        self.shown.gaps(&(0..end)).for_each(|gap| free.insert(gap));
        let (zeros, bytes) = changes(&cared(Care::KnownPagesStay, view.layers()), &(0..end));
        for range in zeros.iter().chain(bytes.iter()).chain(self.found.iter()) {
            free.remove(self.pages_of(range));
        }
        let fail = |e| self.fail(view, "drop pages of", e);
        // Mapped anew: dropping them by advice leaves marks of the tracker that look like pages in swap.
        free.iter().try_for_each(|range| self.mapping.show(range.clone())).map_err(fail)?;
        for range in free.iter() {
            self.shown.insert(range.clone());
            self.drop_pages(range);
        }
        // What is in use stays; looking for it again is worth while when it has doubled.
        self.retire_bytes = (2 * self.pages.len() as u64 * page).max(self.retire_bytes_min());
        Ok(())
    }

    /// With the tracker `pagemap`, every commit compares all private pages.
    fn retire_bytes_min(&self) -> u64 {
        match self.tracker() {
            Tracker::Scan => COPIES_BYTES_MAX,
            Tracker::PageMap => PAGES_AT_ONCE as u64 * self.page(),
        }
    }
}

/// What layers hold in a range: where the newest that knows has zeros, and where it has bytes.
fn changes(layers: &[&Layer], within: &Range<u64>) -> (RangeSet<u64>, RangeSet<u64>) {
    let (mut zeros, mut bytes) = (RangeSet::new(), RangeSet::new());
    if within.is_empty() {
        return (zeros, bytes);
    }
    for layer in layers.iter().rev() {
        for (range, source) in layer.overlapping(within) {
            let range = range.start.max(within.start)..range.end.min(within.end);
            let (to, from) = match source {
                Source::Zero => (&mut zeros, &mut bytes),
                _ => (&mut bytes, &mut zeros),
            };
            from.remove(range.clone());
            to.insert(range);
        }
    }
    (zeros, bytes)
}

#[cfg(test)]
mod tests;
