//! Real memory at the addresses of a simulated mapping, for programs that access memory themselves, like a heap's
//! allocator. The mapping takes over the stores from it, and it shows the contents of the mapping.

use crate::simulation::state::inodes::{Inode, PAGE_BYTES, Page};
use rangemap::RangeSet;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use untorn_os::{Linux, MapRequest, Mapping, Open, Piece, Storage};

const PAGE: u64 = PAGE_BYTES as u64;

/// The memory of one mapping. Ranges are in pages.
pub(crate) struct Memory {
    real: Box<dyn Mapping>,
    accessible: RangeSet<u64>,
    /// The known contents; pages that are not here are zeros.
    known: BTreeMap<u64, Arc<Page>>,
    /// The file at the last update of the memory.
    pub file: Option<Arc<Inode>>,
}

impl Memory {
    /// Reserves the requested addresses, or any.
    pub fn reserve(request: &MapRequest) -> io::Result<Memory> {
        // No page of this file is ever shown: all pages come from the simulated file.
        let dir = tempfile::tempdir()?;
        let file = Linux::open(dir.path())?.open(Path::new("none"), Open::create(0o600))?;
        let real = file.map(&MapRequest { tracker: None, huge_pages: false, ..*request })?;
        Ok(Memory { real, accessible: RangeSet::new(), known: BTreeMap::new(), file: None })
    }

    pub fn address(&self) -> usize {
        self.real.address() as usize
    }

    /// Pages that differ from the known contents, with their bytes, or that may have been accessed (`None`).
    pub fn stored(&mut self) -> io::Result<Vec<(u64, Option<Arc<Page>>)>> {
        let (mut ranges, mut stored) = (Vec::new(), Vec::new());
        for pages in self.accessible.iter() {
            self.real.changed(bytes_of(pages), &mut ranges)?;
        }
        for page in ranges.into_iter().flat_map(|range| range.start / PAGE..range.end / PAGE) {
            let mut now = Page::zeroed();
            self.real.copy_out(&mut [Piece { offset: page * PAGE, into: Page::bytes_mut(&mut now) }])?;
            let differs = match self.known.get(&page) {
                Some(known) => known.bytes() != now.bytes(),
                None => now.bytes() != &[0; PAGE_BYTES],
            };
            if differs {
                self.known.insert(page, now.clone());
            }
            stored.push((page, differs.then_some(now)));
        }
        Ok(stored)
    }

    /// Makes these pages accessible, as zeros, or inaccessible.
    pub fn place(&mut self, pages: Range<u64>, accessible: bool) -> io::Result<()> {
        self.known.retain(|page, _| !pages.contains(page));
        if pages.is_empty() {
            return Ok(());
        }
        match accessible {
            true => self.real.blank(bytes_of(&pages))?,
            false => self.real.hide(bytes_of(&pages))?,
        }
        match accessible {
            true => self.accessible.insert(pages),
            false => self.accessible.remove(pages),
        }
        Ok(())
    }

    /// Shows these contents in a page; `None` is all zeros.
    pub fn show(&mut self, page: u64, what: Option<&Arc<Page>>) -> io::Result<()> {
        if !self.accessible.contains(&page) {
            self.place(page..page + 1, true)?;
        }
        match (self.known.get(&page), what) {
            (None, None) => return Ok(()),
            (Some(known), Some(what)) if Arc::ptr_eq(known, what) => return Ok(()),
            (_, Some(what)) => drop(self.known.insert(page, what.clone())),
            (Some(_), None) => drop(self.known.remove(&page)),
        }
        self.real.copy_in(page * PAGE, what.map_or(&[0; PAGE_BYTES], |page| page.bytes()))
    }

    /// Makes a page inaccessible.
    pub fn hide(&mut self, page: u64) -> io::Result<()> {
        if self.accessible.contains(&page) { self.place(page..page + 1, false) } else { Ok(()) }
    }
}

fn bytes_of(pages: &Range<u64>) -> Range<u64> {
    pages.start * PAGE..pages.end * PAGE
}
