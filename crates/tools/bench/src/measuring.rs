//! The means of measuring: file systems, child processes, runs in turns. Stands on `report`.

pub(crate) mod bench_run;
pub(crate) mod child;
pub(crate) mod disk_model;
pub(crate) mod fs;
pub(crate) mod harness;
pub(crate) mod library;
pub(crate) mod memory_use;
pub(crate) mod peers;
pub(crate) mod scratch;
pub(crate) mod slow_disk;
pub(crate) mod unavailable;
