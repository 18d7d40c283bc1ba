//! Benchmarks of the SQLite extension. Stands on `kv`.

pub(crate) mod connection;
pub(crate) mod transactions;
pub(crate) mod worker;
