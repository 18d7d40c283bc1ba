//! Untorn's journal: format, commit, checkpoint, recovery, checker.
//!
//! The journal is Untorn's write-ahead log (WAL). No clock, no threads, no mappings, no `unsafe`: all
//! of it runs on a simulated disk. Modules, from the bottom up: `format` and `record` (bytes), `spill`
//! (bytes of large commits), `overlay` and `final_state` (what commits amount to), `apply` (writing
//! that to the data files), `store_dir` and `quarantine` (directories, and who has locked the store),
//! `segment_reader` and `scan` (reading), `begun_reads` (reading ahead), `log_tail` (reading on), `snapshot` (reading without owning), `journal` (writing), `recovery` (opening).

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
#[doc(hidden)]
pub mod sync_point;

pub use error::{Context, Error, Outcome, Result};
