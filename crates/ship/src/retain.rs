//! Retention: snapshots that are made in the bucket, and pruning.

pub mod compact;
pub mod delete;
pub mod prune;
