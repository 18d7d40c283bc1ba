//! The counts of programs.

/// The counts of programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderTotals {
    /// Snapshots that were read completely.
    pub whole: u64,
    /// The number of these during which the owner made commits.
    pub across: u64,
    /// Reads of parts of files.
    pub pieces: u64,
    /// Snapshots after which a power cut was tried.
    pub survived: u64,
    /// Commits that followers got.
    pub followed: u64,
    /// Snapshots that were given up.
    pub given_up: u64,
    /// Openings by readers that found an owner which was still opening the store.
    pub busy: u64,
    /// Readers that died.
    pub died: u64,
    /// Owners that were killed.
    pub killed: u64,
    /// Power cuts.
    pub cuts: u64,
    /// The most names that were kept for readers at once.
    pub kept_most: u64,
}

impl std::ops::AddAssign for ReaderTotals {
    fn add_assign(&mut self, other: ReaderTotals) {
        self.whole += other.whole;
        self.across += other.across;
        self.pieces += other.pieces;
        self.survived += other.survived;
        self.followed += other.followed;
        self.given_up += other.given_up;
        self.busy += other.busy;
        self.died += other.died;
        self.killed += other.killed;
        self.cuts += other.cuts;
        self.kept_most = self.kept_most.max(other.kept_most);
    }
}
