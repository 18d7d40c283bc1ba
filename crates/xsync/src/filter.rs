//! System calls that the supervisor answers: flushes, renames, shared mappings. Stands on `view` and `volumes`.

pub(crate) mod renames;
pub(crate) mod rings;
pub(crate) mod shared_maps;
pub(crate) mod stale_maps;
pub mod syscall_filter;
