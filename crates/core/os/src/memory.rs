//! Memory of the process: buffers, large short-lived memory, the list of mappings, limits. Stands on `mapping`.

pub(crate) mod buffer;
pub(crate) mod memory_limit;
pub(crate) mod page_memory;
pub(crate) mod process_memory;
