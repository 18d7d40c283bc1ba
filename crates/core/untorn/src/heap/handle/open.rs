//! Opening a heap, and making a new one.

use super::open_heap::Heap;
use crate::engine::handles::file::File;
use crate::engine::handles::map::Map;
use crate::engine::handles::map_options::MapOptions;
use crate::engine::handles::new_mapping::LiveInit;
use crate::engine::handles::store::Store;
use crate::engine::options::{FailureClass, FileOptions, StoreOptions};
use crate::heap::alloc::body::{Body, segments_of};
use crate::heap::alloc::registry;
use crate::heap::image::layout::*;
use crate::heap::live::cuts::Cuts;
use crate::heap::live::memory_file::check_wanted;
use crate::heap::live::own_pages;
use crate::heap::live::{self, FoundLive, LiveStart, Working};
use crate::heap::log::live_head::START_BYTES;
use crate::invariant;
use std::ops::Range;
use std::path::Path;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::time::Duration;
use untorn_journal::{Error, Result};
use untorn_os::{holds, is_asymmetric, memory_limit, sanitizer};

/// Default address space of a heap.
const ADDRESS_SPACE: u64 = 64 << 30;
/// The number of random addresses that a new heap tries before it gives up.
const TRIES: usize = 16;

/// Options for opening a heap.
#[derive(Clone, Debug)]
#[must_use]
pub struct HeapOptions {
    file: FileOptions,
    address_space: Option<u64>,
    address: Option<usize>,
    map: MapOptions,
    quiet: bool,
    debug_guards: bool,
    debug_races: bool,
    debug_pointers: bool,
    live: bool,
    cuts: Cuts,
    cut_every: Option<Duration>,
    cut_within: Option<Duration>,
    live_class: Option<FailureClass>,
}

impl Default for HeapOptions {
    fn default() -> Self {
        HeapOptions {
            file: FileOptions::new(),
            address_space: None,
            address: None,
            map: MapOptions::new(),
            quiet: false,
            debug_guards: false,
            debug_races: false,
            debug_pointers: false,
            live: false,
            cuts: Cuts::Stop,
            cut_every: None,
            cut_within: None,
            live_class: None,
        }
    }
}

impl HeapOptions {
    /// Opens an existing heap. A new heap has 64 GiB of address space to grow in.
    pub fn new() -> HeapOptions {
        HeapOptions::default()
    }

    /// Sets how the store of a standalone heap file is opened: failure class, journal size, waiting.
    pub fn store(mut self, options: StoreOptions) -> Self {
        self.file = self.file.store(options);
        self
    }

    /// Creates a missing heap. Default: off; opening then fails with `NotFound`.
    pub fn create(mut self, on: bool) -> Self {
        self.file = self.file.create(on);
        self
    }

    /// Sets the bytes of address space of the heap, which it cannot outgrow while it is open. They cost neither memory
    /// nor disk space. A heap that has less is given more, permanently, by a commit of this opening. Its address space
    /// never shrinks, and asking for less is an error. Default: the heap's present address space, and 64 GiB for a new
    /// heap.
    pub fn address_space(mut self, bytes: u64) -> Self {
        self.address_space = Some(bytes);
        self
    }

    /// Sets the permanent address of a new heap: a multiple of 4 MiB between 17 and 31 TiB. For programs that have
    /// several heaps open at once, whose address spaces must not overlap. For an existing heap, an address other than
    /// its own is an error. Default: a random address; two heaps overlap once in 196 times.
    ///
    /// Programs built with ThreadSanitizer or MemorySanitizer cannot use these addresses. A new heap of such a program
    /// has 16 GiB of address space between 0x5500_0000_0000 and 0x5555_0000_0000 (on aarch64 256 MiB between
    /// 0xaaaa_0000_0000 and 0xaaaa_a000_0000). Give an address there to a heap that programs with and without these
    /// sanitizers use.
    pub fn address(mut self, address: usize) -> Self {
        self.address = Some(address);
        self
    }

    /// Promises that no thread stores to the heap during a commit unless it holds a guard of [`Heap::mutate`]. Then
    /// commits drop memory that equals the file, and memory use follows the data in use. Default: off; only
    /// [`Heap::reclaim`] drops memory.
    ///
    /// # Safety
    /// The program keeps the promise. A store without a guard could be undone in memory.
    pub unsafe fn quiet(mut self, on: bool) -> Self {
        self.quiet = on;
        self
    }

    /// For finding bugs: refuses an allocation or a free without a guard of [`Heap::mutate`], and the next commit after
    /// one. Default: off.
    pub fn debug_guards(mut self, on: bool) -> Self {
        self.debug_guards = on;
        self
    }

    /// Like [`MapOptions::dirty_max`]: for heaps that are larger than memory. With [`HeapOptions::quiet`], a commit
    /// that finds more changed bytes than this drops memory.
    pub fn dirty_max(mut self, bytes: u64) -> Self {
        self.map = self.map.dirty_max(bytes);
        self
    }

    /// Like [`MapOptions::debug_races`]: a store during a commit is reported with its address.
    pub fn debug_races(mut self, on: bool) -> Self {
        self.map = self.map.debug_races(on);
        self.debug_races = on;
        self
    }

    /// For finding bugs: a commit looks for pointers that lead out of the heap into this process's memory, like
    /// [`Heap::find_pointers`], and is refused if there is one. It reads all of the heap. Default: off.
    pub fn debug_pointers(mut self, on: bool) -> Self {
        self.debug_pointers = on;
        self
    }

    /// Like [`MapOptions::debug_unmarked`]: a commit is refused if the heap was stored to without [`Heap::mark_dirty`].
    pub fn debug_unmarked(mut self, on: bool) -> Self {
        self.map = self.map.debug_unmarked(on);
        self
    }

    /// Makes the heap's working memory outlive the process, however the process ends, until the machine goes down; the
    /// next live opening continues from that memory. A commit is a *cut*: the state to which the heap returns after a
    /// power cut, or if it cannot continue from the memory. [`Heap::live`] reports how the heap began. The memory is in
    /// `/dev/shm`, or in the directory `UNTORN_LIVE_DIR`, and takes as much room there as the heap is long. See
    /// `docs/LIVE_HEAPS.md`. Default: off.
    pub fn live(mut self, on: bool) -> Self {
        self.live = on;
        self
    }

    /// Requires memory of this class of a live heap. [`FailureClass::Memory`]: the memory survives kernel crashes and power
    /// cuts, because it is on byte-addressable memory; opening fails elsewhere. [`FailureClass::Process`]: it survives the
    /// end of the process alone, wherever it is. Default: class `memory` where the memory is on such memory, and the store
    /// is of class `power`; [`LiveReport::class`](crate::heap::LiveReport::class) says which.
    pub fn live_class(mut self, class: FailureClass) -> Self {
        self.live_class = Some(class);
        self
    }

    /// Sets how a cut of a live heap treats threads that store. Default: [`Cuts::Stop`]. A commit together with other
    /// files ([`Heap::syncv`]) and the last commit ([`Heap::close`]) wait for guards and sections in either case.
    pub fn cuts(mut self, cuts: Cuts) -> Self {
        self.cuts = cuts;
        self
    }

    /// Makes a thread commit a live heap this often, if something was stored to it. Default: only [`Heap::commit`]
    /// commits.
    pub fn cut_every(mut self, every: Duration) -> Self {
        self.cut_every = Some(every);
        self
    }

    /// Limits the time that a cut of a live heap with [`HeapOptions::cut_every`] takes: the next cut is made before so
    /// much has changed that it would take longer than this, judging by the speed of earlier cuts. An example is the
    /// time between a power-fail notice and the loss of power. A program that stores faster than the disk writes is not
    /// slowed down. Default: no limit.
    pub fn cut_within(mut self, most: Duration) -> Self {
        self.cut_within = Some(most);
        self
    }

    /// Like [`MapOptions::tracker`].
    pub fn tracker(mut self, tracker: untorn_os::TrackerKind) -> Self {
        self.map = self.map.tracker(tracker);
        self
    }

    /// Opens a standalone heap file, with a store of its own beside it.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Heap> {
        self.prepare()?;
        self.open_file(self.file.open(path)?)
    }

    /// Opens a heap file of a store by its name; such a heap can commit together with the store's other files.
    pub fn open_in(&self, store: &Store, path: impl AsRef<Path>) -> Result<Heap> {
        self.prepare()?;
        self.open_file(self.file.open_in(store, path)?)
    }

    fn open_file(&self, file: File) -> Result<Heap> {
        let (file, mark) = file.into_heaps_own()?;
        let Mapped { map, working, unfreed, address_space, grows } = match file.len()? {
            0 => self.create_in(&file)?,
            _ => self.map_existing(&file)?,
        };
        let (base, segments, space) = (map.as_ptr() as usize, segments_of(&map), address_space as usize);
        registry::note_addresses(base..base + space);
        let limit = memory_limit().filter(|_| self.map.dirty_max_given().is_none());
        let body = Body {
            working,
            cuts: self.cuts,
            map,
            view: file.view(),
            file,
            mark,
            quiet: self.quiet,
            debug_guards: self.debug_guards,
            debug_races: self.debug_races,
            debug_pointers: self.debug_pointers,
            memory_bytes: limit.map_or(u64::MAX, |limit| limit.bytes),
        };
        own_pages::lock_all(&body.map);
        let heap = Heap::new(base, segments, space / SEGMENT_BYTES, body);
        free_left(&heap, &unfreed)?;
        if grows {
            // Before the heap can grow beyond the address space that its file records, and before a rollback.
            heap.downgrade().set_address_space(address_space)?;
            heap.commit()?;
        }
        match self.cut_every {
            Some(every) => heap.cut_every(every, self.cut_within),
            None => Ok(heap),
        }
    }

    /// Checks the options, before a file is created.
    fn prepare(&self) -> Result<()> {
        if self.live {
            // Now, while the process may still have one thread: beside others, the kernel takes 10 to 20 ms for it, and
            // the first section would wait for that.
            is_asymmetric();
        }
        self.check_live()
    }

    fn check_live(&self) -> Result<()> {
        if self.live && self.map.is_explicit() {
            return Err(Error::invalid("a live heap finds stores by itself: it cannot have the tracker `explicit`"));
        }
        check_wanted(self.live_class)?;
        if self.live_class.is_some() && !self.live {
            return Err(Error::invalid("`live_class` needs a live heap"));
        }
        if self.cut_every.is_some_and(|every| !self.live || every.is_zero()) {
            return Err(Error::invalid("`cut_every` needs a live heap and a time longer than zero"));
        }
        if self.cut_within.is_some_and(|most| self.cut_every.is_none() || most.is_zero()) {
            return Err(Error::invalid(
                "`cut_within` needs cuts in the background (`cut_every`) and a time longer than zero",
            ));
        }
        Ok(())
    }

    /// Maps a heap's file: as an ordinary mapping, or into working memory that was made for it.
    fn map_with(&self, file: &File, options: &MapOptions, working: Option<&Working>) -> Result<Map> {
        match working {
            None => file.map_with(options),
            Some(working) => file.map_live(options, working.memory(), LiveInit::Nothing),
        }
    }

    /// Creates a heap of one segment, all zeros except for its header.
    fn create_in(&self, file: &File) -> Result<Mapped> {
        let (addresses, usual) = match sanitizer() {
            Some(_) => (SANITIZED_MIN..SANITIZED_MAX, SANITIZED_SPACE),
            None => (ADDRESS_MIN..ADDRESS_MAX, ADDRESS_SPACE),
        };
        let space = self.address_space_wanted()?.unwrap_or(usual);
        if space > addresses.len() as u64 {
            return Err(Error::invalid(format!(
                "an address space of {space} bytes is larger than the range of addresses for heaps"
            )));
        }
        let working = if self.live { Some(Working::create(file, LiveStart::New, self.live_class)?) } else { None };
        let made = self.make(file, working.as_ref(), space, addresses);
        if let (Err(_), Some(working)) = (&made, &working) {
            let _ = working.remove();
        }
        Ok(Mapped { map: made?, working, unfreed: Vec::new(), address_space: space, grows: false })
    }

    /// The address space that the program asks for, in whole segments.
    fn address_space_wanted(&self) -> Result<Option<u64>> {
        let whole = |bytes: u64| {
            let bytes = bytes.max(SEGMENT_BYTES as u64).checked_next_multiple_of(SEGMENT_BYTES as u64);
            bytes.ok_or_else(|| Error::invalid("the address space is larger than any heap supports"))
        };
        self.address_space.map(whole).transpose()
    }

    /// The address space of an existing heap in this opening; `has` is its present address space.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the options do not fit this heap.
    fn address_space_of(&self, file: &File, address: u64, has: u64) -> Result<u64> {
        let refused = |why: String| Err(Error::invalid(format!("{}: {why}", file.path().display())));
        if let Some(wanted) = self.address.filter(|wanted| *wanted as u64 != address) {
            return refused(format!(
                "the heap is always at {address:#x}, but the option `address` says {wanted:#x}. Leave out this option, \
                 which is for new heaps"
            ));
        }
        let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
        match self.address_space_wanted()? {
            Some(wanted) if wanted < has => refused(format!(
                "the heap has {} of address space, and the option `address_space` says {}. Leave it out, or give at least as \
                 much as the heap has",
                mib(has),
                mib(wanted)
            )),
            Some(wanted) if !may_lie(address, wanted) => refused(format!(
                "the heap is always at {address:#x}, where it can have {} of address space at most, and the option \
                 `address_space` says {}",
                mib(space_at(address)),
                mib(wanted)
            )),
            wanted => Ok(wanted.unwrap_or(has)),
        }
    }

    fn make(&self, file: &File, working: Option<&Working>, space: u64, addresses: Range<usize>) -> Result<Map> {
        let map = match self.address {
            Some(address) => {
                if !address.is_multiple_of(SEGMENT_BYTES) || !may_lie(address as u64, space) {
                    return Err(Error::invalid(format!(
                        "{address:#x}: a heap of {space} bytes of address space lies between {ADDRESS_MIN:#x} and \
                         {ADDRESS_MAX:#x}, or between {SANITIZED_MIN:#x} and {SANITIZED_MAX:#x}, at a multiple of \
                         {SEGMENT_BYTES:#x}"
                    )));
                }
                check_sanitizer(file, address)?;
                self.map_with(file, &self.map.address(address).address_space(space), working)?
            }
            None => self.map_anywhere(file, working, space, addresses)?,
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
        map.note_store(map.as_ptr(), size_of::<Header>())?;
        match working {
            Some(working) => name(working, &map)?,
            None => map.msync()?,
        }
        Ok(map)
    }

    /// Maps a new heap at a random address that is free in this process and that no heap open in this process has had:
    /// that heap may be opened again.
    fn map_anywhere(&self, file: &File, working: Option<&Working>, space: u64, addresses: Range<usize>) -> Result<Map> {
        // The last eighth is left for heaps that are given more address space later.
        let slots = addresses.len() as u64 / space;
        let slots = slots - slots / 8;
        let mut tries = 0;
        loop {
            let mut random = [0; 8];
            file.random(&mut random)?;
            let address = addresses.start + (u64::from_le_bytes(random) % slots * space) as usize;
            let last = tries == TRIES;
            tries += 1;
            if !last && registry::was_open(&(address..address + space as usize)) {
                continue;
            }
            match self.map_with(file, &self.map.address(address).address_space(space), working) {
                Err(Error::Invalid { .. }) if !last => {}
                done => return done,
            }
        }
    }

    fn map_existing(&self, file: &File) -> Result<Mapped> {
        let mut start = [0; START_BYTES];
        file.read_at(&mut start, 0)?;
        let (bytes, _) = start.split_first_chunk().expect("more than a header");
        let header = Header::read(bytes, &file.path())?;
        if let Some(problem) = header.problem(file.len()?) {
            return Err(Error::corrupt_heap(file.path(), problem));
        }
        let Header { address, address_space: has, .. } = header;
        self.address_space_of(file, address, has)?;
        if registry::is_open(address as usize) {
            return Err(Error::invalid(format!(
                "{}: this heap, or a copy of it, is open in this process already",
                file.path().display()
            )));
        }
        check_sanitizer(file, address as usize)?;
        let found = live::find(file, &start)?;
        let had = if let FoundLive::Resumable(kept) = &found { kept.address_space.max(has) } else { has };
        let address_space = self.address_space_of(file, address, had)?;
        let mut map = self.map.address(address as usize).address_space(address_space);
        if memory_limit().is_some_and(|limit| header.segments * SEGMENT_BYTES as u64 > limit.bytes) {
            // On a small machine, only the bytes in use of a large heap count against the limit.
            map = map.in_use(bytes_in_use(file, header.segments as usize)?);
        }
        let (mapped, working, unfreed) = self.map_found(file, found, &map).map_err(|e| match e {
            Error::Invalid { detail } if address_space > has => Error::invalid(format!(
                "{detail}. The heap has {} MiB of address space, and the options ask for {} MiB, but these addresses \
                 are in use: open this heap before other heaps, or in another program",
                has >> 20,
                address_space >> 20
            )),
            e => e,
        })?;
        let grows = address_space > has;
        if grows && !mapped.is_writable() {
            return Err(Error::invalid(format!(
                "{}: the heap cannot get more address space, because this user cannot write the file",
                file.path().display()
            )));
        }
        Ok(Mapped { map: mapped, working, unfreed, address_space, grows })
    }

    /// Maps an existing heap: returns the map, its working memory, and the blocks of sections that are to be freed.
    fn map_found(&self, file: &File, found: FoundLive, map: &MapOptions) -> Result<(Map, Option<Working>, Vec<usize>)> {
        match found {
            FoundLive::Resumable(live::Resumable { mut working, bytes, .. }) if self.live => {
                let unfreed = working.take_unfreed();
                working.choose_medium(file, self.live_class)?;
                let map = file.map_live(map, working.memory(), LiveInit::Bytes(bytes))?;
                working.go_on(&map)?;
                Ok((map, Some(working), unfreed))
            }
            FoundLive::Resumable(live::Resumable { mut working, bytes, .. }) => {
                let unfreed = working.take_unfreed();
                if holds(invariant::LIVE_BROUGHT_IN) {
                    let map = file.map_live(map, working.memory(), LiveInit::Bytes(bytes))?;
                    live::set_stamp(&map, Stamp::NONE)?;
                    map.msync()?;
                    map.unmap()?;
                }
                working.remove()?;
                Ok((file.map_with(map)?, None, unfreed))
            }
            found => {
                let start = match &found {
                    FoundLive::LastCut(why) => {
                        tracing::warn!(
                            id = "untorn.heap.last_cut",
                            file = %file.path().display(),
                            why,
                            "the heap is as of its last cut"
                        );
                        LiveStart::LastCut(why.clone())
                    }
                    _ => LiveStart::New,
                };
                if !self.live {
                    let map = file.map_with(map)?;
                    if matches!(found, FoundLive::LastCut(_)) && map.is_writable() {
                        live::set_stamp(&map, Stamp::NONE)?;
                        map.msync()?;
                    }
                    return Ok((map, None, Vec::new()));
                }
                let working = Working::create(file, start, self.live_class)?;
                let mapped = file.map_live(map, working.memory(), LiveInit::Nothing);
                let named = mapped.and_then(|map| name(&working, &map).map(|()| map));
                if named.is_err() {
                    let _ = working.remove();
                }
                Ok((named?, Some(working), Vec::new()))
            }
        }
    }
}

/// The memory of a heap that is being opened.
struct Mapped {
    map: Map,
    working: Option<Working>,
    /// Blocks of sections that must be freed before anybody uses the heap.
    unfreed: Vec<usize>,
    address_space: u64,
    /// The heap's file records a smaller address space.
    grows: bool,
}

/// Frees the blocks that undone sections had allocated, and those that completed sections had freed. After a kill
/// during this, the next opening does it again, because nobody allocates before it is done.
fn free_left(heap: &Heap, blocks: &[usize]) -> Result<()> {
    let left = blocks.iter().filter_map(|at| NonNull::new(with_exposed_provenance_mut::<u8>(*at)));
    for block in left.filter(|block| heap.size_of(*block).is_ok()) {
        // SAFETY: nothing leads there, now that the sections are undone or have ended.
        unsafe { heap.free(block)? };
    }
    match &heap.body().working {
        Some(working) => working.settle_sections(|| heap.commit())?,
        None if !blocks.is_empty() => heap.commit()?,
        None => {}
    }
    Ok(())
}

/// Commits a heap, so that its file names this memory.
fn name(working: &Working, map: &Map) -> Result<()> {
    working.make_durable()?;
    let cut = working.begin_cut(map)?;
    map.msync()?;
    working.is_named(cut);
    Ok(())
}

fn check_sanitizer(file: &File, address: usize) -> Result<()> {
    match sanitizer() {
        Some(name) if !(SANITIZED_MIN..SANITIZED_MAX).contains(&address) => Err(Error::invalid(format!(
            "{}: the heap is always at {address:#x}, but {name}, with which this program was built, needs that \
             address. Let this program make a new heap; or make one with the option `address` between \
             {SANITIZED_MIN:#x} and {SANITIZED_MAX:#x}, which programs with and without {name} can open",
            file.path().display()
        ))),
        _ => Ok(()),
    }
}

/// Reads from a heap's file the bytes of chunks that are in use.
fn bytes_in_use(file: &File, segments: usize) -> Result<u64> {
    let mut descriptors = [0; CHUNKS * size_of::<Descriptor>()];
    let (mut chunks, mut segment) = (0, 0);
    while segment < segments {
        file.read_at(&mut descriptors, (segment * SEGMENT_BYTES + DESCRIPTORS_AT) as u64)?;
        let what = |index: usize| Descriptor::read(&descriptors[index * size_of::<Descriptor>()..]).what(index);
        match what(1) {
            Some(Use::Huge(spans)) => {
                chunks += spans.min(segments - segment) * CHUNKS;
                segment += spans.min(segments - segment);
            }
            _ => {
                chunks += 1 + (1..CHUNKS).filter(|index| what(*index) != Some(Use::Free)).count();
                segment += 1;
            }
        }
    }
    Ok((chunks * CHUNK_BYTES) as u64)
}

impl Heap {
    /// Opens an existing heap.
    pub fn open(path: impl AsRef<Path>) -> Result<Heap> {
        HeapOptions::new().open(path)
    }

    /// Opens a heap; creates it if there is none.
    pub fn open_or_create(path: impl AsRef<Path>) -> Result<Heap> {
        HeapOptions::new().create(true).open(path)
    }
}
