//! Names of commits.

/// A commit's name. Two histories that both hold the durable commit (epoch, LSN) are equal up to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Point {
    /// The opening of the store that made the commit; 0 for LSN 0.
    pub epoch: u64,
    /// The commit's number; 0 is the empty store, which every store contains.
    pub lsn: u64,
}
