//! Directories of a store: its lock, its journals, quarantined journals, the data files. Stands on `commits`.

pub mod data_tree;
pub mod quarantine;
pub(crate) mod spare;
pub mod store_dir;
