//! Mapped memory that outlives its process. Stands on `storage` and everything below it.

pub(crate) mod live_copy;
pub(crate) mod live_medium;
pub(crate) mod live_memory;
pub(crate) mod shared_mapping;
