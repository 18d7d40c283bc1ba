//! Commits: their records, the overlays of changed files, and the net effect of a run of commits. Stands on `format`.

pub mod final_state;
pub mod log_reader;
pub mod overlay;
pub mod prefetch;
pub mod record;
pub mod spill;
