//! Benchmarks of `untorn preload`. Stands on `kv`.

pub(crate) mod programs;
pub(crate) mod worker;
