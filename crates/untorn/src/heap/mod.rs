//! A persistent heap: ordinary data structures in a file, pointers and all.
//!
//! A heap file is always mapped at the same address, so that pointers in it stay good. Allocate in it, build
//! whatever you like, hang it on a named root, [`Heap::commit`]. After any crash the heap is as of the last commit.
//!
//! ```
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("numbers");
//! use untorn::{Heap, HeapVec};
//!
//! let heap = Heap::create(&path)?;
//! let numbers = heap.root_or("numbers", |alloc| HeapVec::<u64>::new_in(alloc))?;
//! // SAFETY: this thread alone uses the root.
//! let numbers = unsafe { &mut *numbers.as_ptr() };
//! numbers.push(numbers.len() as u64);
//! heap.commit()?;
//! # Ok::<(), untorn::Error>(())
//! ```
//!
//! Nothing in a heap may point out of it: no `Box` of the program's own heap, no vtable, no `&'static str`.

mod alloc;
pub(crate) mod check;
mod guard;
mod image;
mod layout;
mod local;
mod root;
mod slot;
mod stats;

pub use check::{HeapChunk, HeapClass, HeapLarge, HeapLeak, HeapLeaks, HeapReport, HeapRoot};
pub use guard::Mutating;
use guard::Quiet;
pub use image::fuzz_heap;
pub use root::{RootInfo, RootOptions, RootShape};
pub use slot::WeakHeap;
pub use stats::HeapStats;

use crate::file::File;
use crate::map::{Map, MapOptions};
use crate::options::{FileOptions, StoreOptions};
use crate::store::Store;
use crate::ticket::Ticket;
use alloc::{Ground, Refused};
use check::{Image, Look};
use layout::{ADDRESS_MAX, ADDRESS_MIN, Header, MAGIC, SEGMENT_BYTES, VERSION};
use parking_lot::MutexGuard;
use std::alloc::Layout;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use untorn_journal::care::{Care, kept};
use untorn_journal::{Error, Result};

/// Address space of a heap, unless the program asks for more.
const ADDRESS_SPACE: u64 = 64 << 30;
/// Addresses tried before a new heap gives up.
const TRIES: usize = 16;

/// A vector in a heap.
pub type HeapVec<T> = allocator_api2::vec::Vec<T, InHeap>;
/// A box in a heap.
pub type HeapBox<T> = allocator_api2::boxed::Box<T, InHeap>;

/// How to open a heap.
#[derive(Clone, Debug)]
pub struct HeapOptions {
    store: StoreOptions,
    create: bool,
    address_space: Option<u64>,
    address: Option<usize>,
    map: MapOptions,
}

impl Default for HeapOptions {
    fn default() -> Self {
        HeapOptions {
            store: StoreOptions::default(),
            create: true,
            address_space: None,
            address: None,
            map: MapOptions::new().quiet(true),
        }
    }
}

impl HeapOptions {
    /// A heap is made if there is none, with 64 GiB of address space to grow in.
    pub fn new() -> HeapOptions {
        HeapOptions::default()
    }

    /// How the store of a lone heap file is opened: failure class, journal size, waiting.
    pub fn store(mut self, options: StoreOptions) -> Self {
        self.store = options;
        self
    }

    /// Make the heap if there is none (default), or fail with `NotFound`.
    pub fn create(mut self, on: bool) -> Self {
        self.create = on;
        self
    }

    /// Bytes of address space that a new heap gets: it can never outgrow them. They cost no memory and no room.
    /// Default: 64 GiB.
    pub fn address_space(mut self, bytes: u64) -> Self {
        self.address_space = Some(bytes);
        self
    }

    /// Where a new heap will lie, always: a multiple of 4 MiB between 17 and 31 TiB. For programs that have several
    /// heaps open at once, whose address spaces must not overlap. Default: a random one, at which two heaps meet once
    /// in 224 times.
    pub fn address(mut self, address: usize) -> Self {
        self.address = Some(address);
        self
    }

    /// As [`MapOptions::dirty_max`]: for heaps that are larger than memory.
    pub fn dirty_max(mut self, bytes: u64) -> Self {
        self.map = self.map.dirty_max(bytes);
        self
    }

    /// As [`MapOptions::debug_races`]: a store during a commit is reported with its address.
    pub fn debug_races(mut self, on: bool) -> Self {
        self.map = self.map.debug_races(on);
        self
    }

    /// As [`MapOptions::tracker`].
    pub fn tracker(mut self, tracker: untorn_os::Tracker) -> Self {
        self.map = self.map.tracker(tracker);
        self
    }

    /// Opens a lone heap file, with a store of its own beside it.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Heap> {
        let create = self.create.then_some(0o666);
        let file = self.store.open_file_with(path, &FileOptions { create, ..FileOptions::default() })?;
        self.open_file(file)
    }

    /// Opens a heap file of a store, by its name: it can commit together with the store's other files.
    pub fn open_in(&self, store: &Store, path: impl AsRef<Path>) -> Result<Heap> {
        let create = self.create.then_some(0o666);
        self.open_file(store.file_with(path, &FileOptions { create, ..FileOptions::default() })?)
    }

    fn open_file(&self, file: File) -> Result<Heap> {
        let map = if file.size()? == 0 { self.make(&file)? } else { self.map_again(&file)? };
        let (base, segments) = (map.as_ptr() as usize, segments_of(&map));
        // SAFETY: the header is mapped, and was looked at or made just now.
        let space = unsafe { (*map.as_ptr().cast::<Header>()).address_space } as usize;
        slot::note(base..base + space);
        let body = Arc::new(Body { map, file });
        let place = Place(slot::insert(base, segments, body.clone()));
        Ok(Heap { shared: Arc::new(Shared { base, place, body }) })
    }

    /// A new heap: one segment, of which all but the header is zeros.
    fn make(&self, file: &File) -> Result<Map> {
        let space = self
            .address_space
            .unwrap_or(ADDRESS_SPACE)
            .max(SEGMENT_BYTES as u64)
            .next_multiple_of(SEGMENT_BYTES as u64);
        let slots = (ADDRESS_MAX - ADDRESS_MIN) as u64 / space;
        if slots == 0 {
            return Err(Error::invalid(format!(
                "a heap of {space} bytes of address space is larger than its addresses"
            )));
        }
        let map = match self.address {
            Some(address) => {
                let end = (address as u64).checked_add(space);
                if !address.is_multiple_of(SEGMENT_BYTES)
                    || address < ADDRESS_MIN
                    || end.is_none_or(|end| end > ADDRESS_MAX as u64)
                {
                    return Err(Error::invalid(format!(
                        "{address:#x}: a heap of {space} bytes of address space lies between {ADDRESS_MIN:#x} and \
                         {ADDRESS_MAX:#x}, at a multiple of {SEGMENT_BYTES:#x}"
                    )));
                }
                file.map_with(&self.map.address(address).address_space(space))?
            }
            None => self.map_anywhere(file, space, slots)?,
        };
        map.resize(SEGMENT_BYTES as u64)?;
        if !kept(Care::HeapMadeWhole) {
            map.msync()?;
        }
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            segment_bytes: SEGMENT_BYTES as u32,
            address: map.as_ptr() as u64,
            address_space: space,
            segments: 1,
            sum: 0,
        };
        // SAFETY: the first segment was mapped just now, and nobody else knows of it.
        unsafe { map.as_mut_ptr().cast::<Header>().write(header.summed()) };
        map.msync()?;
        Ok(map)
    }

    /// At a random address that is free in this process, and that no heap has had which was open in it: that one
    /// may come back.
    fn map_anywhere(&self, file: &File, space: u64, slots: u64) -> Result<Map> {
        let mut tries = 0;
        loop {
            let mut random = [0; 8];
            file.random(&mut random)?;
            let address = ADDRESS_MIN + (u64::from_le_bytes(random) % slots * space) as usize;
            let last = tries == TRIES;
            tries += 1;
            if !last && slot::was_open(&(address..address + space as usize)) {
                continue;
            }
            match file.map_with(&self.map.address(address).address_space(space)) {
                Err(Error::Invalid { .. }) if !last => {}
                done => return done,
            }
        }
    }

    fn map_again(&self, file: &File) -> Result<Map> {
        let mut bytes = [0; size_of::<Header>()];
        file.read_at(&mut bytes, 0)?;
        let header = Header::read(&bytes, &file.path())?;
        if let Some(problem) = header.problem(file.size()?) {
            return Err(Error::corrupt_heap(file.path(), problem));
        }
        let Header { address, address_space, .. } = header;
        if slot::is_open(address as usize) {
            return Err(Error::invalid(format!(
                "{}: this heap, or a copy of it, is open in this process already",
                file.path().display()
            )));
        }
        file.map_with(&self.map.address(address as usize).address_space(address_space))
    }
}

/// What the handles of one heap share.
struct Shared {
    base: usize,
    /// Before the body: once the address is free, it may be another opening's.
    place: Place,
    body: Arc<Body>,
}

/// A heap's slot, which goes with the heap.
struct Place(WeakHeap);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.remove();
    }
}

/// The heap's memory and its file.
struct Body {
    // Before the file: a map ends before its file is closed.
    map: Map,
    file: File,
}

impl Ground for Body {
    fn grow(&self, segments: usize) -> Result<()> {
        self.map.resize((segments * SEGMENT_BYTES) as u64)?;
        if kept(Care::HeapGrowsWhole) { Ok(()) } else { self.map.msync() }
    }

    fn give_back(&self, offset: usize, bytes: usize) -> Result<()> {
        self.file.zero(offset as u64, bytes as u64)
    }
}

impl Body {
    fn corrupt(&self, detail: String) -> Error {
        Error::corrupt_heap(self.file.path(), detail)
    }

    fn refused(&self, why: Refused) -> Error {
        match why {
            Refused::Corrupt(detail) => self.corrupt(detail),
            Refused::NotAllocated => {
                Error::invalid("the pointer is not one that this heap gave out, or was freed already".to_owned())
            }
            Refused::Absurd => Error::invalid("no heap has so much memory, or memory of such an alignment".to_owned()),
            Refused::Grow(e) => e,
        }
    }
}

impl Image for File {
    fn bytes(&self) -> Result<u64> {
        self.size()
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        match self.read_at(buf, offset)? == buf.len() {
            true => Ok(()),
            false => Err(Error::corrupt_heap(self.path(), "it became shorter just now")),
        }
    }
}

fn segments_of(map: &Map) -> usize {
    map.len() as usize / SEGMENT_BYTES
}

/// Nobody changes the heap, nor allocates in it, as long as it lives.
struct Still<'a> {
    _quiet: Quiet<'a>,
    live: MutexGuard<'a, Option<slot::Live>>,
}

/// An open heap. Cheap to clone; it closes when the last clone is gone, and discards what is not committed.
#[derive(Clone)]
pub struct Heap {
    shared: Arc<Shared>,
}

impl Heap {
    /// Opens an existing heap.
    pub fn open(path: impl AsRef<Path>) -> Result<Heap> {
        HeapOptions::new().create(false).open(path)
    }

    /// Opens a heap; makes it if there is none.
    pub fn create(path: impl AsRef<Path>) -> Result<Heap> {
        HeapOptions::new().open(path)
    }

    /// An allocator for collections in this heap. It may be a part of what it allocates for.
    pub fn allocator(&self) -> InHeap {
        InHeap { base: self.shared.base }
    }

    /// Memory in the heap, of any contents. It is this heap's until [`Heap::free`], after a restart, too.
    pub fn allocate(&self, layout: Layout) -> Result<NonNull<u8>> {
        self.shared.place.0.allocate(layout)
    }

    /// For those who cannot keep the heap itself: it may be closed.
    #[doc(hidden)]
    pub fn downgrade(&self) -> WeakHeap {
        self.shared.place.0
    }

    /// Ends an allocation.
    ///
    /// # Errors
    /// [`Error::Invalid`]: not an allocation of this heap, or freed already.
    ///
    /// # Safety
    /// Nobody uses what was there any more.
    pub unsafe fn free(&self, address: NonNull<u8>) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.shared.place.0.free(address) }
    }

    /// Bytes that an allocation has, which may be more than were asked for.
    pub fn size_of(&self, address: NonNull<u8>) -> Result<usize> {
        self.shared.place.0.size_of(address)
    }

    /// As long as the guard lives, no commit takes place: for changes that belong together, where several threads
    /// change the heap. It may be taken again by the thread that has it.
    pub fn mutate(&self) -> Mutating<'_> {
        self.shared.place.0.slot.guard.mutate()
    }

    /// Commits all changes of the heap: after any crash all of them are there, or none. Waits until no thread holds
    /// a guard of [`Heap::mutate`]; threads may change the heap again while the commit is being flushed.
    ///
    /// # Errors
    /// Those of [`Map::msync`]; [`Error::Invalid`] if this thread holds such a guard itself.
    pub fn commit(&self) -> Result<()> {
        self.commit_with(&[])
    }

    /// Commits the heap and ordinary files of the same store as one.
    pub fn commit_with(&self, files: &[&File]) -> Result<()> {
        let (slot, settled) = {
            let _still = self.still()?;
            let mut all = vec![&self.shared.body.file];
            all.extend(files);
            let slot = self.shared.body.file.store().submit(&all)?;
            (slot, self.shared.body.map.settle())
        };
        // The commit takes place, whatever was found in memory.
        self.shared.body.file.inner.finish(&slot)?;
        settled
    }

    /// The same without waiting: what was changed by now is the commit.
    pub fn commit_async(&self) -> Result<Ticket> {
        let _still = self.still()?;
        self.shared.body.map.msync_async()
    }

    /// Back to the last commit. Pointers to what was allocated since are good no more.
    pub fn rollback(&self) -> Result<()> {
        let mut still = self.still()?;
        let done = self.shared.body.map.rollback();
        if let Some(live) = &mut *still.live
            && kept(Care::HeapForgets)
        {
            live.blocks.forget(segments_of(&self.shared.body.map));
        }
        done
    }

    /// Drops memory that the file holds as well.
    pub fn quiesce(&self) -> Result<()> {
        let _still = self.still()?;
        self.shared.body.map.quiesce()
    }

    /// Looks at every chunk, block and root, then at what the roots reach: what they do not has leaked. Sees what is
    /// not committed, too. `progress` gets bytes done and bytes in all, first for the metadata and then for what is
    /// in use. Nobody changes the heap meanwhile.
    pub fn check(&self, progress: &dyn Fn(u64, u64)) -> Result<HeapReport> {
        let _still = self.still()?;
        Ok(self.look(progress)?.report)
    }

    /// Frees what no root reaches, which the next commit makes so; the report tells what that was. A pointer counts
    /// if its eight bytes are in memory that is reached, at any place in it: pointers that the program alone has, or
    /// that are stored in disguise (as a difference, with bits of something else in them), do not.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the heap is damaged. Nothing was freed then.
    ///
    /// # Safety
    /// What is not reached is not used any more.
    pub unsafe fn collect(&self, progress: &dyn Fn(u64, u64)) -> Result<HeapReport> {
        self.free_leaks(progress)
    }

    /// Nobody points to what is not reached.
    pub(crate) fn free_leaks(&self, progress: &dyn Fn(u64, u64)) -> Result<HeapReport> {
        let mut still = self.still()?;
        let look = self.look(progress)?;
        let body = &*self.shared.body;
        if let Some(problem) = look.report.problems.first() {
            return Err(body.corrupt(problem.clone()));
        }
        let live = still.live.as_mut().ok_or(Error::Closed)?;
        for (offset, _) in look.leaked() {
            let address = (self.shared.base + offset as usize) as *mut u8;
            live.blocks.free(address, body).map_err(|e| body.refused(e))?;
        }
        Ok(look.report)
    }

    fn look(&self, progress: &dyn Fn(u64, u64)) -> Result<Look<'_>> {
        let file = &self.shared.body.file;
        let mut look = Look::new(file, &file.path(), progress)?;
        look.look_for_leaks(progress)?;
        Ok(look)
    }

    fn still(&self) -> Result<Still<'_>> {
        // In a forked child the locks may be held for ever.
        self.shared.body.file.inner.check_fork()?;
        let slot = self.shared.place.0.slot;
        let quiet = slot.guard.quiet().ok_or_else(|| {
            Error::invalid(
                "this thread holds a mutation guard of the heap; a commit waits for all of them to go".to_owned(),
            )
        })?;
        Ok(Still { live: slot.live.lock(), _quiet: quiet })
    }

    /// The file that the heap is in.
    pub fn file(&self) -> &File {
        &self.shared.body.file
    }

    /// Where the heap is mapped, and how many bytes of it there are.
    pub fn memory(&self) -> (NonNull<u8>, usize) {
        let base = NonNull::new(self.shared.base as *mut u8).expect("an address");
        (base, self.shared.body.map.len() as usize)
    }

    /// Closes the heap, if this is its last clone. **What is not committed is discarded.** Pointers into it are good
    /// no more.
    pub fn close(self) -> Result<()> {
        let Some(Shared { place, body, .. }) = Arc::into_inner(self.shared) else { return Ok(()) };
        drop(place);
        match Arc::into_inner(body) {
            Some(Body { map, file }) => {
                map.unmap()?;
                file.close()
            }
            // In a forked child: the slot is the parent's, and keeps it.
            None => Err(Error::Forked),
        }
    }
}

/// An allocator for collections that live in a heap: the heap's address, which is the same after a restart.
///
/// ```ignore
/// let map = hashbrown::HashMap::with_capacity_in(1, heap.allocator());
/// ```
///
/// A collection that is empty may point to a constant of the program, which is elsewhere in the next process:
/// `hashbrown` does so as long as it has allocated nothing. Make its maps and sets with room for one entry, and never
/// shrink them to none. (Vectors and boxes of `allocator-api2` point to nothing when they are empty.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct InHeap {
    base: usize,
}

// SAFETY: blocks are the caller's until they are freed, and any copy of the allocator frees what another allocated.
unsafe impl allocator_api2::alloc::Allocator for InHeap {
    fn allocate(&self, layout: Layout) -> std::result::Result<NonNull<[u8]>, allocator_api2::alloc::AllocError> {
        let block = WeakHeap::at(self.base as *const u8).and_then(|heap| heap.allocate(layout)).map_err(|e| {
            tracing::error!(error = %e, bytes = layout.size(), "no memory from the heap");
            allocator_api2::alloc::AllocError
        })?;
        Ok(NonNull::slice_from_raw_parts(block, layout.size()))
    }

    unsafe fn deallocate(&self, address: NonNull<u8>, _layout: Layout) {
        // SAFETY: the caller's promise.
        let done = WeakHeap::at(self.base as *const u8).and_then(|heap| unsafe { heap.free(address) });
        if let Err(e) = done {
            tracing::error!(error = %e, "a block of the heap could not be freed");
        }
    }
}
