//! The tree over its store: names and inodes under one lock, commits, opening, syncs, checks. Stands on `table` and
//! `handover`.

pub(crate) mod core;
pub(crate) mod store_tree;
pub(crate) mod submission;
pub(crate) mod tree_status;
pub(crate) mod verification;
