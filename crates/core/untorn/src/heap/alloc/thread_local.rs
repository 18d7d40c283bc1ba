//! What a thread remembers of heaps. In one place, which a shared library has to find once in a call; without a
//! destructor, so that it works while a thread ends.

use std::cell::Cell;

pub(crate) struct Local {
    /// What was looked up last in the registry, by its address or handle.
    pub found: Cell<Option<(usize, Found)>>,
    /// The guard that was taken last, by its address, and how often the thread holds it.
    pub guard: Cell<(usize, usize)>,
    /// The number of the thread among those that allocate, from 1 on; 0: none yet.
    slot: Cell<usize>,
}

impl Local {
    const fn new() -> Local {
        Local { found: Cell::new(None), guard: Cell::new((0, 0)), slot: Cell::new(0) }
    }
}

/// A heap as the registry knows it, whose entries this room does not know.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    /// An entry of the registry, which is never freed.
    pub entry: *const (),
    pub opening: u64,
    pub process: u64,
}

#[cfg(not(feature = "shuttle"))]
thread_local! {
    pub(crate) static LOCAL: Local = const { Local::new() };
}

#[cfg(feature = "shuttle")]
shuttle::thread_local! {
    pub(crate) static LOCAL: Local = Local::new();
}

/// The thread's number among those that allocate: threads that follow each other have different ones.
#[inline]
pub(crate) fn slot_of_this_thread() -> usize {
    #[cold]
    fn next() -> usize {
        #[cfg(not(feature = "shuttle"))]
        let number = {
            static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
            NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 1024
        };
        #[cfg(feature = "shuttle")]
        let number = usize::from(shuttle::current::me());
        LOCAL.with(|local| local.slot.set(number + 1));
        number
    }
    match LOCAL.with(|local| local.slot.get()) {
        0 => next(),
        slot => slot - 1,
    }
}
