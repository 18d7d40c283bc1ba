//! Benchmarks of the SQLite extension. Stands on `kv`.

mod connection;
pub(crate) mod transactions;
pub(crate) mod worker;
