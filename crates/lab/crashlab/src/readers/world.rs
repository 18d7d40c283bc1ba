//! The commits of the owners of one program, and what readers were shown.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Names and contents.
pub(super) type Tree = BTreeMap<String, Vec<u8>>;

/// One commit, which may be pending.
#[derive(Clone)]
pub(super) struct Commit {
    /// Its number in the program. Numbers grow, and are never used again.
    pub number: u64,
    /// The tree after it.
    pub tree: Arc<Tree>,
    /// The last LSN before it.
    lsn_before: u64,
    /// An LSN that is not before its own one. None while the commit is pending.
    lsn_after: Option<u64>,
}

/// The commits that the program has made and shown so far.
pub(super) struct World {
    commits: Vec<Commit>,
    acknowledged: u64,
    next: u64,
    /// The newest commit that a reader was shown for certain.
    shown: u64,
}

impl World {
    /// An empty store.
    pub fn new() -> World {
        let empty = Commit { number: 0, tree: Arc::default(), lsn_before: 0, lsn_after: Some(0) };
        World { commits: vec![empty], acknowledged: 0, next: 1, shown: 0 }
    }

    fn newest(&self) -> &Commit {
        self.commits.last().expect("the first one stays")
    }

    /// The tree after the newest commit.
    pub fn tree(&self) -> Tree {
        (*self.newest().tree).clone()
    }

    /// The number of the newest commit.
    pub fn begun(&self) -> u64 {
        self.newest().number
    }

    /// The number of the newest commit that was acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Begins a commit that leads to this tree.
    pub fn begin(&mut self, tree: Tree, lsn_before: u64) {
        self.commits.push(Commit { number: self.next, tree: Arc::new(tree), lsn_before, lsn_after: None });
        self.next += 1;
    }

    /// The newest commit was acknowledged.
    pub fn acknowledge(&mut self) {
        self.acknowledged = self.begun();
    }

    /// The store has this LSN after the newest commit.
    pub fn learn_lsn(&mut self, lsn: u64) {
        self.commits.last_mut().expect("the first one stays").lsn_after = Some(lsn);
    }

    /// A reader was shown this commit.
    pub fn show(&mut self, number: u64) {
        self.shown = self.shown.max(number);
    }

    /// The commits that a snapshot with this LSN can show: one, unless a commit is pending.
    pub fn shown_by(&self, lsn: u64) -> Vec<Commit> {
        let is_before = |commit: &Commit| commit.lsn_after.is_some_and(|after| after <= lsn);
        let first = self.commits.iter().rposition(is_before).unwrap_or(0);
        let later = self.commits[first + 1..].iter().filter(|commit| commit.lsn_before < lsn);
        std::iter::once(&self.commits[first]).chain(later).cloned().collect()
    }

    /// The commits from this one on.
    pub fn since(&self, number: u64) -> Vec<Commit> {
        self.commits.iter().filter(|commit| commit.number >= number).cloned().collect()
    }

    /// The number of a commit that is known to lie strictly between two LSNs.
    pub fn commit_between(&self, first: u64, last: u64) -> Option<u64> {
        let is_between =
            |commit: &&Commit| commit.lsn_before >= first && commit.lsn_after.is_some_and(|lsn| lsn < last);
        self.commits.iter().skip(1).find(is_between).map(|commit| commit.number)
    }

    /// The commit that recovery found, by its tree.
    pub fn recovered_commit(&self, tree: &Tree) -> Result<u64, String> {
        let found = self.commits.iter().rfind(|commit| *commit.tree == *tree);
        found.map(|commit| commit.number).ok_or_else(|| "recovery finds a mixture".into())
    }

    /// An owner opened the store, and found this tree at this LSN. Later commits are gone.
    pub fn recover(&mut self, tree: &Tree, lsn: u64) -> Result<(), String> {
        let number = self.recovered_commit(tree)?;
        for (what, least) in [("acknowledged", self.acknowledged), ("shown", self.shown)] {
            if number < least {
                return Err(format!("commit {least} was {what}, and recovery finds commit {number} at LSN {lsn}"));
            }
        }
        self.commits.retain(|commit| commit.number <= number);
        if self.newest().lsn_after.is_none() {
            self.learn_lsn(lsn);
        }
        self.acknowledge();
        Ok(())
    }
}
