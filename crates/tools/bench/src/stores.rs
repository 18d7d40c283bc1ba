//! Benchmarks of stores: commits, threads, checkpoints, readers, recovery. Stands on `measuring`.

pub(crate) mod append;
pub(crate) mod checkpoints;
pub(crate) mod commits;
pub(crate) mod flush_times;
pub(crate) mod many_unclean;
pub(crate) mod nvm;
pub(crate) mod oneshot;
pub(crate) mod reader_costs;
pub(crate) mod recovery_time;
pub(crate) mod syncv;
pub(crate) mod threads;
pub(crate) mod two_files;
