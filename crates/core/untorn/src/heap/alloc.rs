//! The allocator: chunks, arenas, free space, and the table of the process's open heaps. Stands on `live`, `log`
//! and `image`.

pub(super) mod arena;
pub(super) mod body;
pub(super) mod chunk_table;
pub(super) mod guard;
pub(crate) mod in_memory;
pub(super) mod metadata;
pub(super) mod registry;
pub(super) mod space;
pub(super) mod thread_local;
