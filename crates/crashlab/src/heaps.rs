//! Random programs over a heap, beside a twin in ordinary memory.

mod file;
pub(crate) mod scenes;
mod simulated;
mod twin;
mod world;

pub use file::blocks_of;
pub use simulated::{Effort, HeapCase, HeapViolation, Programs, Totals, again_heap};
pub use twin::{Change, Twin};
pub use world::World;
