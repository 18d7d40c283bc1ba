//! What a thread remembers of heaps. In one place, which a shared library has to look for once in a call; without a
//! destructor, so that it works while a thread ends.

use super::slot::WeakHeap;
use std::cell::Cell;

pub(super) struct Local {
    /// What was looked up last, by its address or handle.
    pub found: Cell<Option<(usize, WeakHeap)>>,
    /// The guard that was taken last, by its address, and how often the thread holds it.
    pub guard: Cell<(usize, usize)>,
}

thread_local! {
    pub(super) static LOCAL: Local = const { Local { found: Cell::new(None), guard: Cell::new((0, 0)) } };
}
