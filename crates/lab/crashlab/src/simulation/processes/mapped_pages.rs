//! Pages of private mappings: the stores of a program, over the file's cache.
//!
//! On Linux a stored-to page keeps its bytes, whatever happens to the file, except that a truncation removes every page
//! that is completely behind the new end. The pages here behave like that. Addresses are numbers:
//! [`SimDisk::load`](crate::SimDisk::load) and [`SimDisk::store`](crate::SimDisk::store) stand for a program's accesses
//! to memory. With [`Options::memory`](crate::Options::memory) there is real memory at the addresses ([`Memory`]), and
//! programs access it themselves.

use super::real_memory::Memory;
use crate::simulation::state::disk_state::errno;
use crate::simulation::state::inodes::{Inode, PAGE_BYTES, Page, Slot};
use rangemap::RangeMap;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

const PAGE: u64 = PAGE_BYTES as u64;

/// The contents of an accessible page without stores.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shows {
    File,
    Zeros,
}

/// A page that was stored to.
pub(crate) struct Stored {
    pub bytes: Arc<Page>,
    /// Whether it was stored to since the last query.
    pub changed: bool,
}

/// A mapping as the kernel keeps it. It ends with its process.
pub(crate) struct Mapped {
    pub slot: Slot,
    /// A unique number of the process.
    pub process: usize,
    pub addresses: Range<usize>,
    /// Pages of the page cache in a page of memory. All of them are shown, stored to and dropped together.
    pub per_page: u64,
    /// Accessible pages, by number.
    pub shown: RangeMap<u64, Shows>,
    pub stored: BTreeMap<u64, Stored>,
    pub memory: Option<Memory>,
}

impl Mapped {
    /// Follows a truncation of the file.
    pub fn cut(&mut self, slot: Slot, to: u64) {
        if slot == self.slot {
            let (shown, end) = (&self.shown, to.div_ceil(PAGE).next_multiple_of(self.per_page));
            self.stored.retain(|page, _| *page < end || shown.get(page) == Some(&Shows::Zeros));
        }
    }

    pub fn drop_stores(&mut self, pages: &Range<u64>) {
        self.stored.retain(|page, _| !pages.contains(page));
    }

    /// The contents of a page: `None` is all zeros.
    pub fn page<'p>(&'p self, inode: &'p Inode, page: u64) -> io::Result<Option<&'p Arc<Page>>> {
        if let Some(stored) = self.stored.get(&page) {
            return Ok(Some(&stored.bytes));
        }
        match self.shown.get(&page) {
            Some(Shows::Zeros) => Ok(None),
            Some(Shows::File) if self.whole(page).start * PAGE < inode.size() => Ok(inode.page(page as u32)),
            _ => Err(errno(libc::EFAULT)),
        }
    }

    /// Takes over the stores of the program to real memory.
    pub fn learn(&mut self) -> io::Result<()> {
        for (page, bytes) in self.memory.as_mut().map_or(Ok(Vec::new()), Memory::stored)? {
            match bytes {
                Some(bytes) => drop(self.stored.insert(page, Stored { bytes, changed: true })),
                None => self.look(page),
            }
        }
        Ok(())
    }

    /// Updates these pages of real memory.
    pub fn refresh(&mut self, inode: &Inode, pages: Range<u64>) -> io::Result<()> {
        let Some(mut memory) = self.memory.take() else { return Ok(()) };
        let shown = if pages.is_empty() { Vec::new() } else { self.shown.overlapping(&pages).collect() };
        let done = shown
            .into_iter()
            .flat_map(|(range, _)| range.start.max(pages.start)..range.end.min(pages.end))
            .try_for_each(|page| match self.page(inode, page) {
                Ok(what) => memory.show(page, what),
                Err(_) => memory.hide(page),
            });
        self.memory = Some(memory);
        done
    }

    /// Updates real memory if the file has changed.
    pub fn follow(&mut self, inode: &Arc<Inode>) -> io::Result<()> {
        let same = |memory: &Memory| memory.file.as_ref().is_some_and(|file| Arc::ptr_eq(file, inode));
        if self.memory.as_ref().is_none_or(same) {
            return Ok(());
        }
        self.refresh(inode, 0..self.addresses.len() as u64 / PAGE)?;
        self.memory.iter_mut().for_each(|memory| memory.file = Some(inode.clone()));
        Ok(())
    }

    /// A page of zeros counts as private as soon as it is accessed, as on Linux.
    pub fn look(&mut self, page: u64) {
        if self.shown.get(&page) == Some(&Shows::Zeros) {
            for page in self.whole(page) {
                self.stored.entry(page).or_insert_with(|| Stored { bytes: Page::zeroed(), changed: false });
            }
        }
    }

    /// The page of memory that a page of the page cache is in.
    fn whole(&self, page: u64) -> Range<u64> {
        let first = page - page % self.per_page;
        first..first + self.per_page
    }

    /// A copy of a page, which counts as stored to.
    fn make_private(&mut self, inode: &Inode, page: u64) -> io::Result<()> {
        if let Some(stored) = self.stored.get_mut(&page) {
            stored.changed = true;
            return Ok(());
        }
        let mut bytes = Page::zeroed();
        if let Some(old) = self.page(inode, page)? {
            *Page::bytes_mut(&mut bytes) = *old.bytes();
        }
        self.stored.insert(page, Stored { bytes, changed: true });
        Ok(())
    }

    fn store_page(&mut self, inode: &Inode, page: u64, within: usize, bytes: &[u8]) -> io::Result<()> {
        self.whole(page).try_for_each(|page| self.make_private(inode, page))?;
        let stored = self.stored.get_mut(&page).expect("made private just now");
        Page::bytes_mut(&mut stored.bytes)[within..within + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

impl Mapped {
    pub fn load(&mut self, inode: &Inode, offset: u64, into: &mut [u8]) -> io::Result<()> {
        for (page, within, part) in pieces(offset, into.len()) {
            self.look(page);
            let into = &mut into[part];
            match self.page(inode, page)? {
                Some(bytes) => into.copy_from_slice(&bytes.bytes()[within..within + into.len()]),
                None => into.fill(0),
            }
        }
        Ok(())
    }

    /// Stores page by page, up to the first page that is gone.
    pub fn store(&mut self, inode: &Inode, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut parts = pieces(offset, bytes.len());
        parts.try_for_each(|(page, within, part)| self.store_page(inode, page, within, &bytes[part]))
    }
}

/// Splits a range at page boundaries: page, offset in the page, range in the input.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % PAGE) as usize;
        let n = (PAGE_BYTES - within).min(len - done);
        done += n;
        (n > 0).then_some((at / PAGE, within, done - n..done))
    })
}

/// Appends a page to ranges of bytes, and joins it to the last range if possible.
pub(crate) fn append_page(into: &mut Vec<Range<u64>>, page: u64) {
    match into.last_mut() {
        Some(last) if last.end == page * PAGE => last.end += PAGE,
        _ => into.push(page * PAGE..(page + 1) * PAGE),
    }
}
