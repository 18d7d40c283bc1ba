//! Imports and exports plain trees, each as a whole or not at all. Stands on `mounts` and `plain_trees`.

pub(crate) mod atomic_directory;
pub(crate) mod export;
pub(crate) mod held_back;
pub(crate) mod import;
pub(crate) mod made_plain;
pub(crate) mod widened_modes;
