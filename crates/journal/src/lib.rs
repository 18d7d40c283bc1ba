//! Untorn's journal: format, commit, checkpoint, recovery, checker.
//!
//! The journal is Untorn's write-ahead log (WAL). No clock, no threads, no mappings, no `unsafe`: all
//! of it runs on a simulated disk. Modules, from the bottom up: `format` and `record` (bytes), `spill`
//! (bytes of large commits), `overlay` and `final_state` (what commits amount to), `apply` (writing
//! that to the data files), `store_dir` and `quarantine` (directories, and who has locked the store),
//! `segment_reader` and `scan` (reading), `begun_reads` (reading ahead), `log_tail` (reading on), `snapshot` (reading without owning), `journal` (writing), `recovery` (opening).

pub mod apply;
pub mod begun_reads;
pub mod carry;
pub mod create;
mod create_ahead;
pub mod data_tree;
mod error;
pub mod final_state;
pub mod format;
#[doc(hidden)]
pub mod invariant;
pub mod journal;
pub mod leases;
pub mod locate;
pub mod log_reader;
pub mod log_tail;
pub mod look;
pub mod moment;
pub mod names_since;
pub mod overlay;
pub mod quarantine;
pub mod readers_page;
pub mod record;
pub mod recovery;
pub mod salvage;
pub mod scan;
pub mod segment_reader;
pub mod sized_memory;
pub mod snapshot;
pub(crate) mod spare;
pub mod spill;
pub mod store_dir;
pub mod strip;
#[doc(hidden)]
pub mod sync_point;
pub(crate) mod unreadable;

pub use error::{Context, Error, Outcome, Result};
