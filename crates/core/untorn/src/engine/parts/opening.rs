//! The facts that an opening finds. They do not change while the store is open, so they need no lock.

use std::collections::BTreeSet;
use untorn_journal::format::Header;
use untorn_journal::recovery::{Quarantined, Recovered};

/// The journal and the files as the opening found them.
pub(crate) struct Opening {
    pub recovered: Recovered,
    /// Files that recovery could not bring to their last commit.
    pub quarantined: Vec<Quarantined>,
    /// Identities of files that had commits in the journal.
    pub unapplied: BTreeSet<u64>,
    /// The header, which tells which earlier owners did not close the store.
    pub header: Header,
    /// The last LSN of the journal.
    pub last_lsn: u64,
}
