//! Commits: their records, the overlays of the files that they change, and what a run of them amounts to. Stands on
//! `format`.

pub mod begun_reads;
pub mod final_state;
pub mod log_reader;
pub mod overlay;
pub mod record;
pub mod spill;
