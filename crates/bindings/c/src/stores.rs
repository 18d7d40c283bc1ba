//! Stores, files, maps, transactions and gates, for C. Stands on `boundary`.

pub(crate) mod file;
#[cfg(feature = "map")]
pub(crate) mod map;
pub(crate) mod on_mount;
pub(crate) mod output_gate;
pub(crate) mod store;
pub(crate) mod ticket;
pub(crate) mod txn;
