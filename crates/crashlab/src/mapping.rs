//! Private mappings of simulated files: what a program stored, over the file's cache.
//!
//! As on Linux, a page that was stored to keeps its bytes whatever becomes of the file, except that a
//! truncation takes away every page wholly behind the new end. Addresses are numbers: what a program does
//! to memory without a system call, [`SimDisk::load`] and [`SimDisk::store`] do. With
//! [`Options::memory`](crate::Options::memory) there is memory at them ([`Memory`]), and programs do it themselves.

use crate::disk::{Life, Machine, Shared, SimDisk};
use crate::image::{Inode, PAGE_BYTES, Page, Slot};
use crate::memory::Memory;
use crate::options::Call;
use crate::state::errno;
use rangemap::RangeMap;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use untorn_os::{MapRequest, Mapping, Piece, Tracker};

const PAGE: u64 = PAGE_BYTES as u64;
/// Where the first mapping of a machine is, unless it was asked for elsewhere.
const FIRST_ADDRESS: usize = 1 << 40;

/// What an accessible page shows where nothing was stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shows {
    File,
    Zeros,
}

/// A page that was stored to.
struct Stored {
    bytes: Arc<Page>,
    /// Since it was asked for last.
    changed: bool,
}

/// A mapping as the kernel keeps it. It ends with its process.
pub(crate) struct Mapped {
    slot: Slot,
    life: Arc<Life>,
    addresses: Range<usize>,
    /// Accessible pages, by number.
    shown: RangeMap<u64, Shows>,
    stored: BTreeMap<u64, Stored>,
    memory: Option<Memory>,
}

impl Mapped {
    /// The file was truncated.
    pub fn cut(&mut self, slot: Slot, to: u64) {
        if slot == self.slot {
            let (shown, end) = (&self.shown, to.div_ceil(PAGE));
            self.stored.retain(|page, _| *page < end || shown.get(page) == Some(&Shows::Zeros));
        }
    }

    fn drop_stores(&mut self, pages: &Range<u64>) {
        self.stored.retain(|page, _| !pages.contains(page));
    }

    /// What a page holds: `None` is all zeros.
    fn page<'p>(&'p self, inode: &'p Inode, page: u64) -> io::Result<Option<&'p Arc<Page>>> {
        if let Some(stored) = self.stored.get(&page) {
            return Ok(Some(&stored.bytes));
        }
        match self.shown.get(&page) {
            Some(Shows::Zeros) => Ok(None),
            Some(Shows::File) if page * PAGE < inode.size() => Ok(inode.page(page as u32)),
            _ => Err(errno(libc::EFAULT)),
        }
    }

    /// What the program stored to memory.
    fn learn(&mut self) -> io::Result<()> {
        for (page, bytes) in self.memory.as_mut().map_or(Ok(Vec::new()), Memory::stored)? {
            match bytes {
                Some(bytes) => drop(self.stored.insert(page, Stored { bytes, changed: true })),
                None => self.look(page),
            }
        }
        Ok(())
    }

    /// Memory shows these pages as they are now.
    fn refresh(&mut self, inode: &Inode, pages: Range<u64>) -> io::Result<()> {
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

    /// The file may have changed: memory follows.
    fn follow(&mut self, inode: &Arc<Inode>) -> io::Result<()> {
        let same = |memory: &Memory| memory.file.as_ref().is_some_and(|file| Arc::ptr_eq(file, inode));
        if self.memory.as_ref().is_none_or(same) {
            return Ok(());
        }
        self.refresh(inode, 0..self.addresses.len() as u64 / PAGE)?;
        self.memory.iter_mut().for_each(|memory| memory.file = Some(inode.clone()));
        Ok(())
    }

    /// A page of zeros counts as private as soon as it is looked at, as on Linux.
    fn look(&mut self, page: u64) {
        if self.shown.get(&page) == Some(&Shows::Zeros) {
            self.stored.entry(page).or_insert_with(|| Stored { bytes: Page::zeroed(), changed: false });
        }
    }

    fn store_page(&mut self, inode: &Inode, page: u64, within: usize, bytes: &[u8]) -> io::Result<()> {
        let mut whole = Page::zeroed();
        if let Some(old) = self.page(inode, page)? {
            *Page::bytes_mut(&mut whole) = *old.bytes();
        }
        Page::bytes_mut(&mut whole)[within..within + bytes.len()].copy_from_slice(bytes);
        self.stored.insert(page, Stored { bytes: whole, changed: true });
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

    /// Page by page, up to the first that is gone.
    pub fn store(&mut self, inode: &Inode, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut parts = pieces(offset, bytes.len());
        parts.try_for_each(|(page, within, part)| self.store_page(inode, page, within, &bytes[part]))
    }
}

/// Pieces of a range, each within one page: page, place in the page, place in the range.
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

fn push(into: &mut Vec<Range<u64>>, page: u64) {
    match into.last_mut() {
        Some(last) if last.end == page * PAGE => last.end += PAGE,
        _ => into.push(page * PAGE..(page + 1) * PAGE),
    }
}

pub(crate) struct SimMapping {
    shared: Arc<Shared>,
    life: Arc<Life>,
    path: Box<Path>,
    handle: u64,
    addresses: Range<usize>,
    tracker: Tracker,
}

impl SimMapping {
    pub fn open(
        shared: &Arc<Shared>,
        life: &Arc<Life>,
        path: &Path,
        slot: Slot,
        request: &MapRequest,
    ) -> io::Result<Box<dyn Mapping>> {
        let describe = || format!("{} map {request:?}", path.display());
        let (handle, addresses) = shared.call(life, Call::Map, describe, |machine, _| {
            let len = request.address_space.max(1).checked_next_multiple_of(PAGE);
            let len = len.and_then(|len| usize::try_from(len).ok()).ok_or_else(|| errno(libc::ENOMEM))?;
            let last = machine.maps.values().map(|other| other.addresses.end).max();
            let memory = if machine.state.options.memory { Some(Memory::reserve(request)?) } else { None };
            let anywhere = memory.as_ref().map_or(last.unwrap_or(0).max(FIRST_ADDRESS), Memory::address);
            let start = request.address.unwrap_or(anywhere);
            if !start.is_multiple_of(PAGE_BYTES) {
                return Err(errno(libc::EINVAL));
            }
            let addresses = start..start.checked_add(len).ok_or_else(|| errno(libc::ENOMEM))?;
            let meets = |other: &Mapped| {
                let (theirs, ours) = (&other.addresses, &addresses);
                Arc::ptr_eq(&other.life, life) && theirs.start < ours.end && ours.start < theirs.end
            };
            if machine.maps.values().any(meets) {
                return Err(errno(libc::EEXIST));
            }
            // A description of its own, which lives as long as the mapping.
            let handle = machine.opened(slot, life);
            let (shown, stored) = (RangeMap::new(), BTreeMap::new());
            let mapped = Mapped { slot, life: life.clone(), addresses: addresses.clone(), shown, stored, memory };
            machine.maps.insert(handle, mapped);
            Ok((handle, addresses))
        })?;
        let tracker = request.tracker.unwrap_or(Tracker::Scan);
        let (shared, life) = (shared.clone(), life.clone());
        Ok(Box::new(SimMapping { shared, life, path: path.into(), handle, addresses, tracker }))
    }

    fn call<T>(&self, what: &str, range: Range<u64>, act: impl FnOnce(&mut Mapped, &Inode) -> T) -> io::Result<T> {
        assert!(range.start <= range.end && range.end <= self.address_space(), "a range inside the reserved addresses");
        let describe = || format!("{} mapping: {what} {range:?}", self.path.display());
        self.shared.call(&self.life, Call::Map, describe, |machine, _| {
            let Machine { state, maps, .. } = machine;
            let mapped = maps.get_mut(&self.handle).expect("a mapping lives as long as its process");
            let inode = state.inode(mapped.slot)?;
            mapped.learn()?;
            Ok(act(mapped, inode))
        })
    }

    /// Whole pages are shown in another way, and what was stored there is dropped.
    fn place(&self, what: &str, range: Range<u64>, shows: Option<Shows>) -> io::Result<()> {
        let pages = whole_pages(&range);
        self.call(what, range, |mapped, inode| {
            mapped.drop_stores(&pages);
            if let Some(memory) = &mut mapped.memory {
                memory.place(pages.clone(), shows.is_some())?;
            }
            match shows {
                _ if pages.is_empty() => {}
                Some(shows) => mapped.shown.insert(pages.clone(), shows),
                None => mapped.shown.remove(pages.clone()),
            }
            mapped.refresh(inode, pages)
        })?
    }
}

fn whole_pages(range: &Range<u64>) -> Range<u64> {
    assert!((range.start | range.end).is_multiple_of(PAGE), "whole pages: {range:?}");
    range.start / PAGE..range.end / PAGE
}

impl Mapping for SimMapping {
    fn address(&self) -> *mut u8 {
        std::ptr::without_provenance_mut(self.addresses.start)
    }

    fn address_space(&self) -> u64 {
        self.addresses.len() as u64
    }

    fn page_bytes(&self) -> u64 {
        PAGE
    }

    fn tracker(&self) -> Tracker {
        self.tracker
    }

    fn show(&self, range: Range<u64>) -> io::Result<()> {
        self.place("show", range, Some(Shows::File))
    }

    fn blank(&self, range: Range<u64>) -> io::Result<()> {
        self.place("blank", range, Some(Shows::Zeros))
    }

    fn hide(&self, range: Range<u64>) -> io::Result<()> {
        self.place("hide", range, None)
    }

    fn populate(&self, range: Range<u64>) -> io::Result<()> {
        let pages = whole_pages(&range);
        self.call("populate", range, |mapped, inode| {
            pages.into_iter().try_for_each(|p| mapped.page(inode, p).map(drop))
        })?
    }

    fn changed(&self, within: Range<u64>, into: &mut Vec<Range<u64>>) -> io::Result<()> {
        if self.tracker == Tracker::PageMap {
            return self.private(within, into);
        }
        let pages = whole_pages(&within);
        self.call("changed", within, |mapped, _| {
            // The kernel refuses to scan what is not being watched.
            if mapped.shown.gaps(&pages).next().is_some() && !pages.is_empty() {
                return Err(errno(libc::EPERM));
            }
            for (page, stored) in mapped.stored.range_mut(pages).filter(|(_, stored)| stored.changed) {
                stored.changed = false;
                push(into, *page);
            }
            Ok(())
        })?
    }

    fn private(&self, within: Range<u64>, into: &mut Vec<Range<u64>>) -> io::Result<()> {
        let pages = whole_pages(&within);
        self.call("private", within, |mapped, _| mapped.stored.range(pages).for_each(|(page, _)| push(into, *page)))
    }

    fn copy_out(&self, wanted: &mut [Piece<'_>]) -> io::Result<()> {
        let start = wanted.iter().map(|piece| piece.offset).min().unwrap_or(0);
        let end = wanted.iter().map(|piece| piece.offset + piece.into.len() as u64).max().unwrap_or(0);
        self.call("load", start..end, |mapped, inode| {
            wanted.iter_mut().try_for_each(|piece| mapped.load(inode, piece.offset, piece.into))
        })?
    }

    fn copy_in(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let range = offset..offset + bytes.len() as u64;
        let pages = range.start / PAGE..range.end.div_ceil(PAGE);
        self.call("store", range, |mapped, inode| mapped.store(inode, offset, bytes).and(mapped.refresh(inode, pages)))?
    }
}

impl Drop for SimMapping {
    fn drop(&mut self) {
        self.shared.machine().close(self.handle);
    }
}

impl Machine {
    /// What programs stored to memory by now comes before what is done next.
    pub fn learn_stores(&mut self) -> io::Result<()> {
        self.maps.values_mut().try_for_each(Mapped::learn)
    }

    /// Files were written: memory of mappings shows it.
    pub fn follow_files(&mut self) -> io::Result<()> {
        let Machine { state, maps, .. } = self;
        maps.values_mut()
            .try_for_each(|mapped| state.live.get(mapped.slot).map_or(Ok(()), |inode| mapped.follow(inode)))
    }

    pub fn access(
        &mut self,
        address: usize,
        act: impl FnOnce(&mut Mapped, &Inode, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let mapped = self.maps.values_mut().find(|mapped| mapped.addresses.contains(&address));
        let mapped = mapped.ok_or_else(|| errno(libc::EFAULT))?;
        let inode = self.state.inode(mapped.slot)?;
        mapped.learn()?;
        act(mapped, inode, (address - mapped.addresses.start) as u64)?;
        mapped.refresh(inode, 0..mapped.addresses.len() as u64 / PAGE)
    }
}

impl SimDisk {
    /// A program loads bytes from memory. `EFAULT`: it would have got a signal.
    pub fn load(&self, address: *const u8, into: &mut [u8]) -> io::Result<()> {
        self.machine().access(address as usize, |mapped, inode, offset| mapped.load(inode, offset, into))
    }

    /// A program stores bytes to memory, which no system call tells of. `EFAULT`: it would have got a signal.
    pub fn store(&self, address: *const u8, bytes: &[u8]) -> io::Result<()> {
        self.machine().access(address as usize, |mapped, inode, offset| mapped.store(inode, offset, bytes))
    }
}
