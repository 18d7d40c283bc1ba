//! Benchmarks of mappings. Stands on `stores`.

pub(crate) mod heap_large;
pub(crate) mod in_order;
pub(crate) mod msync;
pub(crate) mod msync_large;
