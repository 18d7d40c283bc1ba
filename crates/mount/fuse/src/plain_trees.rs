//! Plain trees of files in a directory: copying them, names at any depth, and changes that the directory would refuse.
//! Stands on nothing else here.

pub(crate) mod copying;
pub(crate) mod deep_paths;
pub(crate) mod manifest;
pub(crate) mod trial_below;
