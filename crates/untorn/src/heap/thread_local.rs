//! What a thread remembers of heaps. In one place, which a shared library has to find once in a call; without a
//! destructor, so that it works while a thread ends.

use std::cell::Cell;

pub(super) struct Local {
    /// What was looked up last in the registry, by its address or handle.
    pub found: Cell<Option<(usize, Found)>>,
    /// The guard that was taken last, by its address, and how often the thread holds it.
    pub guard: Cell<(usize, usize)>,
}

/// A heap as the registry knows it, whose entries this room does not know.
#[derive(Clone, Copy)]
pub(super) struct Found {
    /// An entry of the registry, which is never freed.
    pub entry: *const (),
    pub opening: u64,
    pub process: u64,
}

thread_local! {
    pub(super) static LOCAL: Local = const { Local { found: Cell::new(None), guard: Cell::new((0, 0)) } };
}
