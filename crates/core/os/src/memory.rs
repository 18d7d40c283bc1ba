//! Memory of the process: buffers, much memory for a short time, what is mapped, how much there is. Stands on
//! `mapping`.

pub(crate) mod buffer;
pub(crate) mod memory_limit;
pub(crate) mod page_memory;
pub(crate) mod process_memory;
