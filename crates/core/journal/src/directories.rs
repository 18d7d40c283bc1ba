//! Directories of a store: its lock, its journals, quarantined journals. Stands on `commits`.

pub mod quarantine;
pub(crate) mod spare;
pub mod store_dir;
mod trust;
