//! Reading the log, after a crash or of a running owner: finding records, and deciding which of them are accepted.
//! Stands on `directories`.

pub(crate) mod log_end;
pub(crate) mod log_index;
pub mod scan;
pub mod segment_reader;
