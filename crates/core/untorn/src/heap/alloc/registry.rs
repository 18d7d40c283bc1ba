//! The registry of open heaps: finds a heap by its address, for an allocator in the heap, or by a weak handle.
//!
//! An entry is never freed. A user locks it and checks that the heap in it is still the expected one. So finding a heap
//! again costs a few loads, and using a heap that another thread has closed is an error.

mod slots;

use super::arena::Arena;
use super::body::Body;
use super::chunk_table::{ChunkTable, NOBODY};
use super::guard::Guard;
use super::metadata::{Metadata, Refused};
use super::space::Space;
use super::thread_local::{FoundHeap, LOCAL};
use crate::engine::region::Marked;
use crate::engine::waiting::concurrency::{Mutex, MutexGuard};
use crate::heap::image::layout::SEGMENT_BYTES;
use crate::heap::log::live_head::LiveHead;
use crate::heap::log::section_log::SectionLogs;
use crate::heap::log::section_mark::{MarkedLock, Mode};
use crate::heap::log::section_thread::SectionHeap;
use crate::heap::log::sections::{Sections, is_same_opening};
use crate::invariant;
use parking_lot::RwLock;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use untorn_journal::{Error, Result};
use untorn_os::process_generation;

/// Threads that allocate without waiting for each other. More threads share slots.
const SLOTS: usize = 16;

/// The entry of one open heap.
pub(crate) struct Entry {
    /// The number of the opening of the heap in this entry; no two openings have the same number. 0: no heap.
    opening: AtomicU64,
    pub(crate) guard: Guard,
    pub(crate) sections: Sections,
    /// The lock for sections that have no lock of their own.
    pub(crate) section_lock: MarkedLock,
    /// Lock order. A thread that allocates takes the lock of its slot, and then, if the slot has no room, that of
    /// `live`. A thread that frees takes the lock of the slot that owns the chunk. A commit takes the guard first, then
    /// all slots in order, then `live`.
    slots: [Slot; SLOTS],
    pub(crate) live: Mutex<Option<Live>>,
    /// With `debug_guards`: a thread allocated or freed without a guard since the last commit.
    pub(crate) unguarded: AtomicBool,
    /// The heap's tracker is `explicit`.
    is_explicit: AtomicBool,
}

/// On cache lines of its own.
#[repr(align(128))]
struct Slot(Mutex<Option<LiveSlot>>);

/// The part of an open heap that the threads of a slot use.
pub(crate) struct LiveSlot {
    opening: u64,
    debug_guards: bool,
    pub(crate) arena: Arena,
    base: usize,
    marked: Arc<Marked>,
}

/// The part of an open heap that allocations use beyond a slot.
pub(crate) struct Live {
    opening: u64,
    pub(crate) space: Space,
    body: Arc<Body>,
}

impl Live {
    /// Ends an allocation. The caller holds every lock.
    pub(crate) fn free_quiescent(
        &mut self,
        slots: &mut [LockedSlot<'_>],
        address: *mut u8,
        body: &Body,
    ) -> std::result::Result<(), Refused> {
        let mut arenas = slots.iter_mut().filter_map(|slot| slot.as_mut()).map(|slot| &mut slot.arena);
        let owner = self.space.arena.owner_of(address);
        let Some(arena) = arenas.find(|arena| arena.id == owner || owner == NOBODY) else {
            return Err(Refused::NotAllocated);
        };
        if owner == NOBODY {
            return self.space.free(arena, address, body);
        }
        if let Some((number, class)) = arena.free_at(address)? {
            self.space.take_back(arena, number, class);
        }
        Ok(())
    }
}

pub(crate) type LockedSlot<'a> = MutexGuard<'a, Option<LiveSlot>>;

impl Entry {
    fn new() -> Entry {
        Entry {
            opening: AtomicU64::new(0),
            guard: Guard::new(),
            sections: Sections::new(),
            section_lock: MarkedLock::new(),
            slots: std::array::from_fn(|_| Slot(Mutex::new(None))),
            live: Mutex::new(None),
            unguarded: AtomicBool::new(false),
            is_explicit: AtomicBool::new(false),
        }
    }

    /// Locks all slots, in order.
    pub(crate) fn lock_slots(&self) -> Vec<LockedSlot<'_>> {
        self.slots.iter().map(|slot| slot.0.lock()).collect()
    }
}

/// A heap that is open.
struct Opened {
    addresses: Range<usize>,
    is_live: bool,
    heap: WeakHeap,
}

/// All entries: those of open heaps, by address, and those that can be reused.
struct Registry {
    open: Vec<Opened>,
    empty: Vec<&'static Entry>,
    openings: u64,
}

impl Registry {
    /// Finds a heap of this process: a forked child may have a heap at an address where its parent has one, too.
    fn find(&self, base: usize) -> Option<WeakHeap> {
        let found = self.open.iter().find(|one| one.addresses.start == base && one.heap.check_fork().is_ok());
        found.map(|one| one.heap)
    }

    /// Takes an entry to reuse. An entry whose guard a thread took and never released is left alone, because no other
    /// heap shall wait for that thread. A thread that takes the guard later sees that its heap is closed.
    fn empty_entry(&mut self) -> Option<&'static Entry> {
        // A lock of the scheduler (shuttle) is valid only in the run that made it.
        if cfg!(feature = "shuttle") {
            return None;
        }
        let at = self.empty.iter().position(|entry| {
            entry.guard.is_idle() && entry.sections.is_idle() && !entry.section_lock.is_locked(Mode::Exclusive)
        })?;
        Some(self.empty.swap_remove(at))
    }
}

/// The registry. Its lock is held briefly, and no other lock is taken under it.
static REGISTRY: RwLock<Registry> = RwLock::new(Registry { open: Vec::new(), empty: Vec::new(), openings: 0 });

/// Enters a heap that may grow to `segments_most` segments, until [`WeakHeap::remove`].
pub(crate) fn insert(base: usize, segments: usize, segments_most: usize, body: Arc<Body>) -> WeakHeap {
    let (opening, entry) = {
        let mut registry = REGISTRY.write();
        registry.openings += 1;
        (registry.openings, registry.empty_entry())
    };
    let entry = entry.unwrap_or_else(|| Box::leak(Box::new(Entry::new())));
    let marked = body.map.marked();
    let live = body.working.as_ref().map(|working| working.head);
    let (is_live, is_explicit) = (live.is_some(), marked.is_on());
    let metadata = Metadata::new(base as *mut u8, Some(marked.clone()).filter(|_| is_explicit), live);
    entry.guard.set_live(body.working.as_ref().map(|working| working.memory().head()));
    entry.section_lock.reset();
    entry.sections.set_heap(opening, body.working.as_ref().map(|working| working.memory().clone()));
    let space = base..base + segments_most * SEGMENT_BYTES;
    let table = Arc::new(ChunkTable::new(metadata, segments_most));
    for (id, slot) in entry.slots.iter().enumerate() {
        let arena = Arena::new(table.clone(), id as u8);
        let marked = marked.clone();
        *slot.0.lock() = Some(LiveSlot { opening, debug_guards: body.debug_guards, arena, base, marked });
    }
    *entry.live.lock() = Some(Live { opening, space: Space::new(table, segments), body });
    entry.unguarded.store(false, Relaxed);
    entry.is_explicit.store(is_explicit, Relaxed);
    entry.guard.forgive();
    entry.opening.store(opening, Release);
    let heap = WeakHeap { entry, opening, process: process_generation() };
    REGISTRY.write().open.push(Opened { addresses: space, is_live, heap });
    heap
}

/// The addresses of this process's heaps, present and past.
static PLACES: RwLock<Vec<Range<usize>>> = RwLock::new(Vec::new());

/// Notes that a heap has these addresses.
pub(crate) fn note_addresses(addresses: Range<usize>) {
    let mut places = PLACES.write();
    if !places.contains(&addresses) {
        places.push(addresses);
    }
}

/// Whether a heap has or had some of these addresses.
pub(crate) fn was_open(addresses: &Range<usize>) -> bool {
    PLACES.read().iter().any(|place| place.start < addresses.end && addresses.start < place.end)
}

/// Whether a heap at this address is open.
pub(crate) fn is_open(base: usize) -> bool {
    REGISTRY.read().find(base).is_some()
}

/// A weak handle of a heap: the heap may be closed at any moment, and calls are refused from then on. For callers that
/// can keep neither a [`crate::heap::Heap`] nor a guard of it.
#[derive(Clone, Copy)]
pub struct WeakHeap {
    pub(crate) entry: &'static Entry,
    opening: u64,
    process: u64,
}

impl From<WeakHeap> for FoundHeap {
    #[inline(always)]
    fn from(heap: WeakHeap) -> FoundHeap {
        FoundHeap { entry: std::ptr::from_ref(heap.entry).cast(), opening: heap.opening, process: heap.process }
    }
}

impl From<FoundHeap> for WeakHeap {
    #[inline(always)]
    fn from(found: FoundHeap) -> WeakHeap {
        // SAFETY: made from a reference to an entry by the conversion above, and entries are never freed.
        let entry = unsafe { &*found.entry.cast::<Entry>() };
        WeakHeap { entry, opening: found.opening, process: found.process }
    }
}

impl WeakHeap {
    /// Finds the open heap at an address, which is all that an allocator in a heap knows.
    #[inline(always)]
    pub fn at(base: *const u8) -> Result<WeakHeap> {
        #[cold]
        fn look_up(base: usize) -> Result<WeakHeap> {
            let registry = REGISTRY.read();
            let is_parents = registry.open.iter().any(|one| one.addresses.start == base);
            registry.find(base).ok_or(if is_parents { Error::Forked } else { Error::Closed })
        }
        WeakHeap::remembered(base as usize, look_up)
    }

    /// Returns the heap that this thread looked up last, if that was by this number (a handle or an address) and the
    /// heap is still open. Looks it up otherwise.
    #[inline(always)]
    pub fn remembered<E>(
        number: usize,
        look_up: impl FnOnce(usize) -> std::result::Result<WeakHeap, E>,
    ) -> std::result::Result<WeakHeap, E> {
        match LOCAL.with(|local| local.found.get()).map(|(of, found)| (of, WeakHeap::from(found))) {
            Some((of, heap)) if of == number && heap.is_open() => Ok(heap),
            _ => {
                let heap = look_up(number)?;
                LOCAL.with(|local| local.found.set(Some((number, heap.into()))));
                Ok(heap)
            }
        }
    }

    /// Whether the heap is open; another thread may close it at any moment.
    #[inline]
    pub fn is_open(self) -> bool {
        self.entry.opening.load(Acquire) == self.opening
    }

    /// Refuses handles of the parent in a forked child: its locks may be held for ever.
    #[inline]
    fn check_fork(self) -> Result<()> {
        if self.process == process_generation() { Ok(()) } else { Err(Error::Forked) }
    }

    /// The live heap that contains an address; if none does, the only open live heap.
    pub(crate) fn of_lock(address: usize) -> Result<WeakHeap> {
        let registry = REGISTRY.read();
        let mut live = registry.open.iter().filter(|one| one.is_live && one.heap.check_fork().is_ok());
        if let Some(around) = live.clone().find(|one| one.addresses.contains(&address)) {
            return Ok(around.heap);
        }
        match (live.next(), live.next()) {
            (Some(one), None) => Ok(one.heap),
            (None, _) => Err(Error::invalid("no live heap is open, but this lock is for the sections of one")),
            _ => Err(Error::invalid("several live heaps are open: name the heap that this lock is for")),
        }
    }

    /// The open live heap that a lock with this era belongs to, also after a rollback.
    pub(crate) fn of_era(era: u64) -> Option<WeakHeap> {
        let registry = REGISTRY.read();
        let mut all = registry.open.iter().filter(|one| one.is_live && one.heap.check_fork().is_ok());
        all.find(|one| is_same_opening(one.heap.entry.sections.era(), era)).map(|one| one.heap)
    }

    /// The address of the mapping, and the heap's length in bytes.
    pub(crate) fn mapped(self) -> Option<(*const u8, usize)> {
        let live = self.lock_live().ok()?;
        live.as_ref().map(|live| (live.body.map.as_ptr(), live.body.map.len() as usize))
    }

    /// The number of the opening of the heap.
    #[inline]
    pub(crate) fn opening(self) -> u64 {
        self.opening
    }

    /// The parts of this heap that sections use.
    pub(crate) fn section_heap(self) -> Result<SectionHeap> {
        self.check_fork()?;
        let registry = REGISTRY.read();
        let found = registry.open.iter().find(|one| one.heap.opening == self.opening).ok_or(Error::Closed)?;
        let Some(head) = self.entry.guard.live_memory() else {
            return Err(Error::invalid("only live heaps have sections: open the heap with `HeapOptions::live`"));
        };
        // SAFETY: the head of a live heap's memory, which is mapped for ever.
        let (head, logs) = unsafe { (LiveHead::at(head), SectionLogs::at(head)) };
        let (sections, addresses) = (&self.entry.sections, found.addresses.clone());
        Ok(SectionHeap { sections, opening: self.opening, addresses, head, logs })
    }

    /// Locks the part of the heap that allocations use beyond a slot.
    fn lock_live(self) -> Result<MutexGuard<'static, Option<Live>>> {
        let live = self.entry.live.lock();
        if live.as_ref().is_some_and(|live| live.opening == self.opening) { Ok(live) } else { Err(Error::Closed) }
    }

    /// Begins a change that is guarded like one of [`crate::heap::Heap::mutate`]; [`WeakHeap::end_mutation`] ends it in
    /// the same thread.
    #[inline(always)]
    pub fn begin_mutation(self) -> Result<()> {
        self.check_fork()?;
        let mutating = self.entry.guard.mutate();
        if !self.is_open() {
            return Err(Error::Closed);
        }
        std::mem::forget(mutating);
        Ok(())
    }

    /// Ends a change of [`WeakHeap::begin_mutation`]. False: this thread has begun none.
    #[inline(always)]
    pub fn end_mutation(self) -> Result<bool> {
        self.check_fork()?;
        // If the heap is closed, its entry may belong to another heap by now.
        if self.is_open() { Ok(self.entry.guard.end()) } else { Err(Error::Closed) }
    }

    /// Holds cuts off like [`crate::heap::Heap::hold_cuts`]; [`WeakHeap::end_hold`] ends it in the same thread.
    pub fn begin_hold(self) -> Result<()> {
        self.check_fork()?;
        let held = self.entry.guard.hold();
        if !self.is_open() {
            return Err(Error::Closed);
        }
        std::mem::forget(held);
        Ok(())
    }

    /// Ends a hold of [`WeakHeap::begin_hold`]. False: this thread has begun none.
    pub fn end_hold(self) -> Result<bool> {
        self.check_fork()?;
        if self.is_open() { Ok(self.entry.guard.leave()) } else { Err(Error::Closed) }
    }

    /// Changes the heap's own bytes all or nothing. A live heap saves the old bytes first, so that the next opening
    /// undoes the change if the process ends during it.
    pub(crate) fn change_whole(self, at: *mut u8, len: usize, change: impl FnOnce()) -> Result<()> {
        let live = self.lock_live()?;
        let working = live.as_ref().and_then(|live| live.body.working.as_ref());
        let base = live.as_ref().map_or(0, |live| live.body.map.as_ptr() as usize);
        if let Some(working) = working {
            // The change may lead to bytes that nobody has flushed.
            working.flush_all(invariant::LIVE_ROOT_SYNCED)?;
            // SAFETY: bytes of the heap, which the caller alone changes.
            working.head.save(at as usize - base, unsafe { std::slice::from_raw_parts(at, len) });
        }
        change();
        if let Some(working) = working {
            working.head.settle(base);
        }
        Ok(())
    }

    /// Removes the heap from the registry. Waits for allocations that other threads have begun.
    pub(crate) fn remove(self) {
        if self.check_fork().is_err() {
            return;
        }
        REGISTRY.write().open.retain(|one| one.heap.opening != self.opening);
        self.entry.opening.store(0, Release);
        for slot in &self.entry.slots {
            drop(slot.0.lock().take());
        }
        let live = self.entry.live.lock().take();
        self.entry.guard.set_live(None);
        self.entry.sections.set_heap(0, None);
        REGISTRY.write().empty.push(self.entry);
        drop(live);
    }
}
