//! Open heaps: opening, roots, commits, cuts, statistics, and reading a heap of another process. Stands on
//! `collections` and everything below it.

pub(crate) mod last_cut;
pub(super) mod open;
pub(super) mod open_heap;
pub(crate) mod pointers;
pub(super) mod read_heap;
pub(super) mod root;
pub(super) mod stats;
pub(super) mod stopped_cut;
pub(super) mod verify;
