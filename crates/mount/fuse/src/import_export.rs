//! Plain trees in and out of a store, whole or not at all. Stands on `mounts` and `plain_trees`.

pub(crate) mod export;
pub(crate) mod held_back;
pub(crate) mod import;
pub(crate) mod made_plain;
pub(crate) mod made_whole;
pub(crate) mod widened_modes;
