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
mod root;

pub use check::{HeapChunk, HeapClass, HeapLarge, HeapLeak, HeapLeaks, HeapReport, HeapRoot};
pub use guard::Mutating;
use guard::Quiet;
pub use image::fuzz_heap;
pub use root::{RootInfo, RootOptions, RootShape};

use crate::file::File;
use crate::map::{Map, MapOptions};
use crate::options::{FileOptions, StoreOptions};
use crate::store::Store;
use crate::ticket::Ticket;
use alloc::{Allocator as Blocks, Ground, Refused};
use check::{Image, Look};
use guard::Guard;
use layout::{ADDRESS_MAX, ADDRESS_MIN, Header, MAGIC, SEGMENT_BYTES, VERSION};
use std::alloc::Layout;
use std::collections::HashMap;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, RwLock, Weak};
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
    map: MapOptions,
}

impl Default for HeapOptions {
    fn default() -> Self {
        HeapOptions {
            store: StoreOptions::default(),
            create: true,
            address_space: None,
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
        let base = map.as_mut_ptr();
        let shared = Arc::new(Shared {
            base: base as usize,
            registered: Registered(base as usize),
            blocks: Mutex::new(Blocks::new(base, segments_of(&map))),
            guard: Guard::default(),
            map,
            file,
        });
        registry().write().unwrap_or_else(|e| e.into_inner()).insert(shared.base, Arc::downgrade(&shared));
        Ok(Heap { shared })
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
        let mut tried = Vec::new();
        let map = loop {
            let mut random = [0; 8];
            file.random(&mut random)?;
            let address = ADDRESS_MIN + (u64::from_le_bytes(random) % slots * space) as usize;
            match file.map_with(&self.map.address(address).address_space(space)) {
                Err(Error::Invalid { .. }) if tried.len() < TRIES => tried.push(address),
                done => break done?,
            }
        };
        map.resize(SEGMENT_BYTES as u64)?;
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

    fn map_again(&self, file: &File) -> Result<Map> {
        let mut bytes = [0; size_of::<Header>()];
        file.read_at(&mut bytes, 0)?;
        let header = Header::read(&bytes, &file.path())?;
        if let Some(problem) = header.problem(file.size()?) {
            return Err(Error::corrupt_heap(file.path(), problem));
        }
        let Header { address, address_space, .. } = header;
        if registry().read().unwrap_or_else(|e| e.into_inner()).contains_key(&(address as usize)) {
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
    /// Before the map: once the address is free, the entry may be another opening's.
    registered: Registered,
    blocks: Mutex<Blocks>,
    guard: Guard,
    // Before the file: a map ends before its file is closed.
    map: Map,
    file: File,
}

type Registry = RwLock<HashMap<usize, Weak<Shared>>>;

/// Open heaps by address: an allocator that lies in a heap knows no more than that.
fn registry() -> &'static Registry {
    static HEAPS: std::sync::OnceLock<Registry> = std::sync::OnceLock::new();
    HEAPS.get_or_init(RwLock::default)
}

fn shared_at(base: usize) -> Option<Arc<Shared>> {
    registry().read().unwrap_or_else(|e| e.into_inner()).get(&base).and_then(Weak::upgrade)
}

/// A heap's entry in the registry; it goes with the heap.
struct Registered(usize);

impl Drop for Registered {
    fn drop(&mut self) {
        registry().write().unwrap_or_else(|e| e.into_inner()).remove(&self.0);
    }
}

impl Ground for Shared {
    fn grow(&self, segments: usize) -> Result<()> {
        self.map.resize((segments * SEGMENT_BYTES) as u64)
    }

    fn give_back(&self, offset: usize, bytes: usize) -> Result<()> {
        self.file.zero(offset as u64, bytes as u64)
    }
}

impl Shared {
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

    fn allocate(&self, layout: Layout) -> Result<NonNull<u8>> {
        let _mutating = self.guard.mutate();
        let mut blocks = lock_std(&self.blocks);
        blocks.allocate(layout, self).map_err(|e| self.refused(e))
    }

    fn free(&self, address: *mut u8) -> Result<()> {
        let _mutating = self.guard.mutate();
        let mut blocks = lock_std(&self.blocks);
        blocks.free(address, self).map_err(|e| self.refused(e))
    }

    fn size_of(&self, address: *mut u8) -> Result<usize> {
        lock_std(&self.blocks).size_of(address).map_err(|e| self.refused(e))
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

fn lock_std<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
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
        self.shared.allocate(layout)
    }

    /// The open heap at an address, if there is one: what an allocator that lies in a heap knows of it.
    pub fn at(base: *const u8) -> Option<Heap> {
        shared_at(base as usize).map(|shared| Heap { shared })
    }

    /// Begins what [`Heap::mutate`] guards, for those who cannot keep a guard; ended by [`Heap::end_mutation`] in
    /// the same thread.
    pub fn begin_mutation(&self) {
        self.shared.guard.enter();
    }

    /// Ends it. False: this thread has begun none.
    pub fn end_mutation(&self) -> bool {
        self.shared.guard.leave()
    }

    /// Ends an allocation.
    ///
    /// # Errors
    /// [`Error::Invalid`]: not an allocation of this heap, or freed already.
    ///
    /// # Safety
    /// Nobody uses what was there any more.
    pub unsafe fn free(&self, address: NonNull<u8>) -> Result<()> {
        self.shared.free(address.as_ptr())
    }

    /// Bytes that an allocation has, which may be more than were asked for.
    pub fn size_of(&self, address: NonNull<u8>) -> Result<usize> {
        self.shared.size_of(address.as_ptr())
    }

    /// As long as the guard lives, no commit takes place: for changes that belong together, where several threads
    /// change the heap. It may be taken again by the thread that has it.
    pub fn mutate(&self) -> Mutating<'_> {
        self.shared.guard.mutate()
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
        let slot = {
            let _quiet = self.quiet()?;
            let mut all = vec![&self.shared.file];
            all.extend(files);
            let slot = self.shared.file.store().submit(&all)?;
            self.shared.map.settle()?;
            slot
        };
        self.shared.file.inner.finish(&slot)
    }

    /// The same without waiting: what was changed by now is the commit.
    pub fn commit_async(&self) -> Result<Ticket> {
        let _quiet = self.quiet()?;
        self.shared.map.msync_async()
    }

    /// Back to the last commit. Pointers to what was allocated since are good no more.
    pub fn rollback(&self) -> Result<()> {
        let _quiet = self.quiet()?;
        let mut blocks = lock_std(&self.shared.blocks);
        let done = self.shared.map.rollback();
        blocks.forget(segments_of(&self.shared.map));
        done
    }

    /// Drops memory that the file holds as well.
    pub fn quiesce(&self) -> Result<()> {
        let _quiet = self.quiet()?;
        self.shared.map.quiesce()
    }

    /// Looks at every chunk, block and root, then at what the roots reach: what they do not has leaked. Sees what is
    /// not committed, too. `progress` gets bytes done and bytes in all, first for the metadata and then for what is
    /// in use. Nobody changes the heap meanwhile.
    pub fn check(&self, progress: &dyn Fn(u64, u64)) -> Result<HeapReport> {
        let _quiet = self.quiet()?;
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
        let _quiet = self.quiet()?;
        let look = self.look(progress)?;
        if let Some(problem) = look.report.problems.first() {
            return Err(self.shared.corrupt(problem.clone()));
        }
        let mut blocks = lock_std(&self.shared.blocks);
        for (offset, _) in look.leaked() {
            let address = (self.shared.base + offset as usize) as *mut u8;
            blocks.free(address, &*self.shared).map_err(|e| self.shared.refused(e))?;
        }
        Ok(look.report)
    }

    fn look(&self, progress: &dyn Fn(u64, u64)) -> Result<Look<'_>> {
        let file = &self.shared.file;
        let mut look = Look::new(file, &file.path(), progress)?;
        look.look_for_leaks(progress)?;
        Ok(look)
    }

    fn quiet(&self) -> Result<Quiet<'_>> {
        self.shared.guard.quiet().ok_or_else(|| {
            Error::invalid(
                "this thread holds a mutation guard of the heap; a commit waits for all of them to go".to_owned(),
            )
        })
    }

    /// The file that the heap is in.
    pub fn file(&self) -> &File {
        &self.shared.file
    }

    /// Where the heap is mapped, and how many bytes of it there are.
    pub fn memory(&self) -> (NonNull<u8>, usize) {
        let base = NonNull::new(self.shared.base as *mut u8).expect("an address");
        (base, self.shared.map.len() as usize)
    }

    /// Closes the heap, if this is its last clone. **What is not committed is discarded.** Pointers into it are good
    /// no more.
    pub fn close(self) -> Result<()> {
        match Arc::try_unwrap(self.shared) {
            Ok(Shared { registered, map, file, .. }) => {
                drop(registered);
                map.unmap()?;
                file.close()
            }
            Err(_) => Ok(()),
        }
    }
}

/// An allocator for collections that live in a heap: the heap's address, which is the same after a restart.
///
/// ```ignore
/// let map = hashbrown::HashMap::with_capacity_in(1, heap.allocator());
/// ```
///
/// With a capacity: a map of `hashbrown` that has none points to static data of the program, which is elsewhere after a
/// restart. So such a map must not be shrunk to nothing either, nor replaced by an empty one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct InHeap {
    base: usize,
}

// SAFETY: blocks are the caller's until they are freed, and any copy of the allocator frees what another allocated.
unsafe impl allocator_api2::alloc::Allocator for InHeap {
    fn allocate(&self, layout: Layout) -> std::result::Result<NonNull<[u8]>, allocator_api2::alloc::AllocError> {
        let heap = shared_at(self.base).ok_or(allocator_api2::alloc::AllocError)?;
        let block = heap.allocate(layout).map_err(|e| {
            tracing::error!(error = %e, bytes = layout.size(), "no memory from the heap");
            allocator_api2::alloc::AllocError
        })?;
        Ok(NonNull::slice_from_raw_parts(block, layout.size()))
    }

    unsafe fn deallocate(&self, address: NonNull<u8>, _layout: Layout) {
        let done = shared_at(self.base).ok_or(Error::Closed).and_then(|heap| heap.free(address.as_ptr()));
        if let Err(e) = done {
            tracing::error!(error = %e, "a block of the heap could not be freed");
        }
    }
}
