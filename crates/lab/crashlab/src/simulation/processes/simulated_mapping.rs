//! The trait [`Mapping`] on the simulated disk.

use super::machine::{Life, Machine, Shared};
use super::mapped_pages::{Mapped, Shows, append_page};
use super::real_memory::Memory;
use crate::simulation::state::disk_options::Call;
use crate::simulation::state::disk_state::errno;
use crate::simulation::state::inodes::{Inode, PAGE_BYTES, Slot};
use rangemap::RangeMap;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use untorn_os::{MapRequest, Mapping, Piece, TrackerKind};

const PAGE: u64 = PAGE_BYTES as u64;
/// The address of a machine's first mapping, unless another one was requested.
const FIRST_ADDRESS: usize = 1 << 40;
pub(crate) struct SimMapping {
    shared: Arc<Shared>,
    life: Arc<Life>,
    path: Box<Path>,
    handle: u64,
    addresses: Range<usize>,
    page_bytes: u64,
    tracker: TrackerKind,
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
        let (handle, addresses, page_bytes) = shared.call(life, Call::Map, describe, |machine, _| {
            let options = &machine.state.options;
            let page_bytes = if options.memory { PAGE } else { options.page_bytes };
            let len = request.address_space.max(1).checked_next_multiple_of(page_bytes);
            let len = len.and_then(|len| usize::try_from(len).ok()).ok_or_else(|| errno(libc::ENOMEM))?;
            let last = machine.maps.values().map(|other| other.addresses.end).max();
            let memory = if machine.state.options.memory { Some(Memory::reserve(request)?) } else { None };
            let anywhere = memory.as_ref().map_or(last.unwrap_or(0).max(FIRST_ADDRESS), Memory::address);
            let start = request.address.unwrap_or(anywhere);
            if !start.is_multiple_of(page_bytes as usize) {
                return Err(errno(libc::EINVAL));
            }
            let addresses = start..start.checked_add(len).ok_or_else(|| errno(libc::ENOMEM))?;
            let process = Arc::as_ptr(life).addr();
            let meets = |other: &Mapped| {
                let (theirs, ours) = (&other.addresses, &addresses);
                other.process == process && theirs.start < ours.end && ours.start < theirs.end
            };
            if machine.maps.values().any(meets) {
                return Err(errno(libc::EEXIST));
            }
            // An open file description of its own, which lives as long as the mapping.
            let handle = machine.opened(slot, life);
            let (shown, stored) = (RangeMap::new(), BTreeMap::new());
            let (space, per_page) = (addresses.clone(), page_bytes / PAGE);
            let mapped = Mapped { slot, process, addresses: space, per_page, shown, stored, memory };
            machine.maps.insert(handle, mapped);
            Ok((handle, addresses, page_bytes))
        })?;
        let tracker = request.tracker.unwrap_or(TrackerKind::Scan);
        let (shared, life) = (shared.clone(), life.clone());
        Ok(Box::new(SimMapping { shared, life, path: path.into(), handle, addresses, page_bytes, tracker }))
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

    /// Shows whole pages in another way, and drops the stores to them.
    fn place(&self, what: &str, range: Range<u64>, shows: Option<Shows>) -> io::Result<()> {
        let pages = self.whole_pages(&range);
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

impl SimMapping {
    fn whole_pages(&self, range: &Range<u64>) -> Range<u64> {
        assert!((range.start | range.end).is_multiple_of(self.page_bytes), "whole pages: {range:?}");
        range.start / PAGE..range.end / PAGE
    }
}

impl Mapping for SimMapping {
    /// Simulated memory never belongs to another program.
    fn leave(&mut self) {}

    fn address(&self) -> *mut u8 {
        std::ptr::without_provenance_mut(self.addresses.start)
    }

    fn address_space(&self) -> u64 {
        self.addresses.len() as u64
    }

    fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    fn tracker(&self) -> TrackerKind {
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
        let pages = self.whole_pages(&range);
        self.call("populate", range, |mapped, inode| {
            pages.into_iter().try_for_each(|p| mapped.page(inode, p).map(drop))
        })?
    }

    fn changed(&self, within: Range<u64>, into: &mut Vec<Range<u64>>) -> io::Result<()> {
        match self.tracker {
            TrackerKind::Scan => {}
            TrackerKind::PageMap => return self.private(within, into),
            TrackerKind::Explicit => return Ok(()),
        }
        let pages = self.whole_pages(&within);
        self.call("changed", within, |mapped, _| {
            // The kernel refuses to scan pages that are not watched.
            if mapped.shown.gaps(&pages).next().is_some() && !pages.is_empty() {
                return Err(errno(libc::EPERM));
            }
            for (page, stored) in mapped.stored.range_mut(pages).filter(|(_, stored)| stored.changed) {
                stored.changed = false;
                append_page(into, *page);
            }
            Ok(())
        })?
    }

    fn private(&self, within: Range<u64>, into: &mut Vec<Range<u64>>) -> io::Result<()> {
        let pages = self.whole_pages(&within);
        self.call("private", within, |mapped, _| {
            mapped.stored.range(pages).for_each(|(page, _)| append_page(into, *page))
        })
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
