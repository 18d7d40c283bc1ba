//! Where open heaps are found: by the address that an allocator in a heap has, and by weak handles.
//!
//! An entry is never freed. Its user locks it and sees whether the heap that is meant is still in it, so that
//! finding a heap again costs a few loads, and a heap that another thread closes is an error.

use super::alloc::{Allocator as Blocks, Refused};
use super::body::Body;
use super::guard::Guard;
use super::thread_local::{Found, LOCAL};
use parking_lot::{Mutex, RwLock};
use std::alloc::Layout;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use untorn_journal::{Error, Result};
use untorn_os::process_generation;

/// The entry of one open heap.
pub(crate) struct Entry {
    /// Of the heap that is here: no two have the same. 0: none.
    opening: AtomicU64,
    pub(crate) guard: Guard,
    /// Allocations take this lock alone; a commit takes the guard first, then this.
    pub(crate) live: Mutex<Option<Live>>,
}

/// What allocations need of an open heap.
pub(crate) struct Live {
    opening: u64,
    pub(crate) blocks: Blocks,
    body: Arc<Body>,
}

/// All entries: those in use by the addresses of their heaps, and those to be used again.
struct Registry {
    open: Vec<(usize, WeakHeap)>,
    empty: Vec<&'static Entry>,
    openings: u64,
}

impl Registry {
    /// A heap of this process: a forked child may have one at an address where its parent has one.
    fn find(&self, base: usize) -> Option<WeakHeap> {
        self.open.iter().find(|(at, heap)| *at == base && heap.check_fork().is_ok()).map(|(_, heap)| *heap)
    }
}

static REGISTRY: RwLock<Registry> = RwLock::new(Registry { open: Vec::new(), empty: Vec::new(), openings: 0 });

/// Enters a heap, until [`WeakHeap::remove`].
pub(crate) fn insert(base: usize, segments: usize, body: Arc<Body>) -> WeakHeap {
    let mut registry = REGISTRY.write();
    registry.openings += 1;
    let opening = registry.openings;
    // An entry whose guard a thread took and never released is left alone: no other heap shall wait for that thread.
    // A thread that takes the guard after this sees that its heap is closed.
    let entry = match registry.empty.iter().position(|entry| entry.guard.is_idle()) {
        Some(at) => registry.empty.swap_remove(at),
        None => Box::leak(Box::new(Entry { opening: AtomicU64::new(0), guard: Guard::new(), live: Mutex::new(None) })),
    };
    *entry.live.lock() = Some(Live { opening, blocks: Blocks::new(base as *mut u8, segments), body });
    entry.opening.store(opening, Release);
    let heap = WeakHeap { entry, opening, process: process_generation() };
    registry.open.push((base, heap));
    heap
}

/// Where heaps of this process are, or were.
static PLACES: Mutex<Vec<Range<usize>>> = Mutex::new(Vec::new());

/// A heap has these addresses.
pub(crate) fn note_addresses(addresses: Range<usize>) {
    let mut places = PLACES.lock();
    if !places.contains(&addresses) {
        places.push(addresses);
    }
}

/// A heap has or had some of these addresses.
pub(crate) fn was_open(addresses: &Range<usize>) -> bool {
    PLACES.lock().iter().any(|place| place.start < addresses.end && addresses.start < place.end)
}

/// Whether a heap at this address is open.
pub(crate) fn is_open(base: usize) -> bool {
    REGISTRY.read().find(base).is_some()
}

/// A weak handle of a heap: the heap may be closed at any moment, and calls are refused from then on. For callers that
/// can keep neither a [`super::Heap`] nor a guard of it.
#[derive(Clone, Copy)]
pub struct WeakHeap {
    pub(super) entry: &'static Entry,
    opening: u64,
    process: u64,
}

impl From<WeakHeap> for Found {
    #[inline(always)]
    fn from(heap: WeakHeap) -> Found {
        Found { entry: std::ptr::from_ref(heap.entry).cast(), opening: heap.opening, process: heap.process }
    }
}

impl From<Found> for WeakHeap {
    #[inline(always)]
    fn from(found: Found) -> WeakHeap {
        // SAFETY: made from a reference to an entry by the conversion above, and entries are never freed.
        let entry = unsafe { &*found.entry.cast::<Entry>() };
        WeakHeap { entry, opening: found.opening, process: found.process }
    }
}

impl WeakHeap {
    /// The open heap at an address: what an allocator that lies in a heap knows of it.
    #[inline(always)]
    pub fn at(base: *const u8) -> Result<WeakHeap> {
        #[cold]
        fn look_up(base: usize) -> Result<WeakHeap> {
            REGISTRY.read().find(base).ok_or(Error::Closed)
        }
        WeakHeap::remembered(base as usize, look_up)
    }

    /// What this thread looked up last, if that was this number (a handle or an address) and is still open; or looks
    /// it up.
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

    /// Whether it is; in a moment it may not be.
    #[inline]
    pub fn is_open(self) -> bool {
        self.entry.opening.load(Acquire) == self.opening
    }

    /// Handles of the parent are of no use in a forked child, and its locks may be held for ever.
    #[inline]
    fn check_fork(self) -> Result<()> {
        if self.process == process_generation() { Ok(()) } else { Err(Error::Forked) }
    }

    #[inline]
    fn with<R>(self, work: impl FnOnce(&mut Blocks, &Body) -> std::result::Result<R, Refused>) -> Result<R> {
        self.check_fork()?;
        match &mut *self.entry.live.lock() {
            Some(live) if live.opening == self.opening => {
                work(&mut live.blocks, &live.body).map_err(|e| live.body.refused(e))
            }
            _ => Err(Error::Closed),
        }
    }

    /// As [`super::Heap::allocate`].
    pub fn allocate(self, layout: Layout) -> Result<NonNull<u8>> {
        self.with(|blocks, ground| blocks.allocate(layout, ground))
    }

    /// As [`super::Heap::free`].
    ///
    /// # Safety
    /// Nobody uses what was there any more.
    pub unsafe fn free(self, address: NonNull<u8>) -> Result<()> {
        self.with(|blocks, ground| blocks.free(address.as_ptr(), ground))
    }

    /// As [`super::Heap::size_of`].
    pub fn size_of(self, address: NonNull<u8>) -> Result<usize> {
        self.with(|blocks, _| blocks.size_of(address.as_ptr()))
    }

    /// Begins what [`super::Heap::mutate`] guards; ended by [`WeakHeap::end_mutation`] in the same thread.
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

    /// Ends it. False: this thread has begun none.
    #[inline(always)]
    pub fn end_mutation(self) -> Result<bool> {
        self.check_fork()?;
        // Of a closed heap the slot may be another one's by now.
        if self.is_open() { Ok(self.entry.guard.leave()) } else { Err(Error::Closed) }
    }

    /// Nobody finds the heap any more. Waits for allocations that other threads have begun.
    pub(super) fn remove(self) {
        if self.check_fork().is_err() {
            return;
        }
        let live = {
            let mut registry = REGISTRY.write();
            registry.open.retain(|(_, heap)| heap.opening != self.opening);
            self.entry.opening.store(0, Relaxed);
            registry.empty.push(self.entry);
            self.entry.live.lock().take()
        };
        drop(live);
    }
}
