//! Spill files that the journal keeps for its records, and for readers.

use crate::commits::spill::Spill;
use std::ops::Range;
use std::sync::Arc;

/// A spill file that records in the journal refer to.
pub(super) struct LiveSpill {
    pub(super) spill: Arc<Spill>,
    /// LSN of the first record that refers to it; 0 if that is not known.
    pub(super) first_lsn: u64,
    /// LSN of the last record that refers to it.
    pub(super) last_lsn: u64,
}

/// A spill file of truncated records.
pub(super) struct KeptSpill {
    pub(super) spill: Arc<Spill>,
    pub(super) commits: Range<u64>,
    pub(super) last_lsn: u64,
}
