//! Handles of programs: stores, files, maps, transactions, gates. Stands on all of the engine.

pub(crate) mod cursor;
pub(crate) mod file;
#[cfg(feature = "map")]
pub(crate) mod map;
pub(crate) mod map_options;
#[cfg(feature = "map")]
pub(crate) mod new_mapping;
pub(crate) mod output_gate;
#[cfg(feature = "map")]
pub mod relocate;
pub(crate) mod store;
pub(crate) mod txn;
