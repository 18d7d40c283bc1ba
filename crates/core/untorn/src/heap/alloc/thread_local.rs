//! Thread-local state of heaps. It is one variable, so that a shared library looks it up once per call, and it has no
//! destructor, so that it works while a thread ends.

use std::cell::Cell;

pub(crate) struct Local {
    /// The heap that was looked up last in the registry, with the address or handle that was looked up.
    pub found: Cell<Option<(usize, FoundHeap)>>,
    /// The address of the guard that was taken last, and the number of times that the thread holds it.
    pub guard: Cell<(usize, usize)>,
    /// The thread's number among those that allocate, from 1 on; 0: it has none yet.
    slot: Cell<usize>,
}

impl Local {
    const fn new() -> Local {
        Local { found: Cell::new(None), guard: Cell::new((0, 0)), slot: Cell::new(0) }
    }
}

/// A heap that the registry found. The entry is untyped here, because this module is below the registry.
#[derive(Clone, Copy)]
pub(crate) struct FoundHeap {
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

/// The thread's number among those that allocate. Threads that start one after the other get different numbers.
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
