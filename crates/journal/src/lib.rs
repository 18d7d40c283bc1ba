//! Untorn's journal: format, commit, checkpoint, recovery, checker.
//!
//! No clock, no threads, no mappings, no `unsafe`: all of it runs on a simulated disk. Rooms, from
//! the bottom up: `format` and `record` (bytes), `layer` and `state` (what commits come to), `apply`
//! (making it so), `home` and `held` (directories and ownership), `scan` (reading), `journal`
//! (writing), `recovery` (opening).

pub mod apply;
#[doc(hidden)]
pub mod care;
mod error;
pub mod extent;
pub mod format;
pub mod held;
pub mod home;
pub mod journal;
pub mod layer;
pub mod record;
pub mod recovery;
pub mod scan;
pub mod state;

pub use error::{Context, Error, Outcome, Result};
