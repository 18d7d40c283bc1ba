//! Untorn's journal: format, commit, checkpoint, recovery, checker.
//!
//! The journal is Untorn's write-ahead log (WAL). It has no clock but that of its storage, no threads, no mappings and no `unsafe`: all of it
//! runs on a simulated disk. Modules, from the bottom up: `format` and `record` (bytes), `spill` (bytes of large
//! commits), `overlay` and `final_state` (the net effect of commits), `apply` (writing that effect to the data files),
//! `store_dir` and `quarantine` (directories and the store lock), `segment_reader` and `scan` (reading), `prefetch`
//! (prefetch), `log_tail` (following the log), `snapshot` (reading without the lock), `journal` (writing), `recovery`
//! (opening).

pub mod commits;
pub mod data_files;
pub mod directories;
mod error;
pub mod format;
#[doc(hidden)]
pub mod invariant;
pub mod journal;
pub mod readers;
pub mod recovery;
pub mod scanning;
pub mod slots;
pub mod statistics;
#[doc(hidden)]
pub mod sync_point;
pub mod undo;

pub use error::{Context, Error, Outcome, Result};
