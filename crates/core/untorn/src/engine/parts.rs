//! The parts of an open store's shared state, each with its locks.

pub(crate) mod checkpoints;
pub(crate) mod commit_queue;
pub(crate) mod file_system_flush;
pub(crate) mod life;
pub(crate) mod opening;
pub(crate) mod shared_spill;
pub(crate) mod statistics;
