//! Shipping a store: start, run, snapshots.

pub mod options;
pub mod running;
pub mod start;
pub mod upload;
