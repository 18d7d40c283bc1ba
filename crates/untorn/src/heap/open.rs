//! Opening a heap, and making a new one.

use super::body::{Body, segments_of};
use super::layout::{ADDRESS_MAX, ADDRESS_MIN, Header, MAGIC, SEGMENT_BYTES, VERSION};
use super::open_heap::Heap;
use super::registry;
use crate::file::File;
use crate::invariant;
use crate::map::{Map, MapOptions};
use crate::options::{FileOptions, StoreOptions};
use crate::store::Store;
use std::path::Path;
use untorn_journal::{Error, Result};
use untorn_os::holds;

/// Address space of a heap, unless the program asks for more.
const ADDRESS_SPACE: u64 = 64 << 30;
/// Addresses tried before a new heap gives up.
const TRIES: usize = 16;

/// How to open a heap.
#[derive(Clone, Debug)]
#[must_use]
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

    /// How the store of a standalone heap file is opened: failure class, journal size, waiting.
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

    /// Opens a standalone heap file, with a store of its own beside it.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Heap> {
        let file = self.store.open_standalone_with(path, &FileOptions::new().create(self.create))?;
        self.open_file(file)
    }

    /// Opens a heap file of a store, by its name: it can commit together with the store's other files.
    pub fn open_in(&self, store: &Store, path: impl AsRef<Path>) -> Result<Heap> {
        self.open_file(store.open_file_with(path, &FileOptions::new().create(self.create))?)
    }

    fn open_file(&self, file: File) -> Result<Heap> {
        let map = if file.len()? == 0 { self.create_in(&file)? } else { self.map_existing(&file)? };
        let (base, segments) = (map.as_ptr() as usize, segments_of(&map));
        // SAFETY: the header is mapped, and was looked at or made just now.
        let space = unsafe { (*map.as_ptr().cast::<Header>()).address_space } as usize;
        registry::note_addresses(base..base + space);
        Ok(Heap::new(base, segments, Body { map, file }))
    }

    /// A new heap: one segment, of which all but the header is zeros.
    fn create_in(&self, file: &File) -> Result<Map> {
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
        if !holds(invariant::HEAP_CREATED_WHOLE) {
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
            if !last && registry::was_open(&(address..address + space as usize)) {
                continue;
            }
            match file.map_with(&self.map.address(address).address_space(space)) {
                Err(Error::Invalid { .. }) if !last => {}
                done => return done,
            }
        }
    }

    fn map_existing(&self, file: &File) -> Result<Map> {
        let mut bytes = [0; size_of::<Header>()];
        file.read_at(&mut bytes, 0)?;
        let header = Header::read(&bytes, &file.path())?;
        if let Some(problem) = header.problem(file.len()?) {
            return Err(Error::corrupt_heap(file.path(), problem));
        }
        let Header { address, address_space, .. } = header;
        if registry::is_open(address as usize) {
            return Err(Error::invalid(format!(
                "{}: this heap, or a copy of it, is open in this process already",
                file.path().display()
            )));
        }
        file.map_with(&self.map.address(address as usize).address_space(address_space))
    }
}

impl Heap {
    /// Opens an existing heap.
    pub fn open(path: impl AsRef<Path>) -> Result<Heap> {
        HeapOptions::new().create(false).open(path)
    }

    /// Opens a heap; makes it if there is none.
    pub fn open_or_create(path: impl AsRef<Path>) -> Result<Heap> {
        HeapOptions::new().open(path)
    }
}
