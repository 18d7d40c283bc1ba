//! The reference model: the expected files of a store, in a few lines.
//!
//! A commit is a list of changes. The state after commit n is the initial state with every commit up to n that was not
//! refused, in order. After a crash the store must show one of the [`Model::allowed`] states completely.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A file or a directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// A file's contents and permission bits.
    File(Vec<u8>, u32),
    /// A directory's permission bits.
    Directory(u32),
}

/// All names and their entries.
pub type Files = BTreeMap<PathBuf, Node>;

/// A change of one name by a commit.
#[derive(Clone, Debug)]
pub enum Change {
    /// Sets a name to this file or directory.
    Set(PathBuf, Node),
    /// Removes a name.
    Remove(PathBuf),
    /// Moves a file or directory to another name, and replaces the entry there.
    Rename(PathBuf, PathBuf),
    /// Sets the permission bits of a name.
    Mode(PathBuf, u32),
}

impl Change {
    /// Applies the change.
    pub fn apply(&self, files: &mut Files) {
        match self {
            Change::Set(name, node) => drop(files.insert(name.clone(), node.clone())),
            Change::Remove(name) => drop(files.remove(name)),
            Change::Rename(from, to) => {
                if let Some(node) = files.remove(from) {
                    files.insert(to.clone(), node);
                }
            }
            Change::Mode(name, new) => {
                if let Some(Node::File(_, mode) | Node::Directory(mode)) = files.get_mut(name) {
                    *mode = *new;
                }
            }
        }
    }
}

/// A commit's changes, in order.
pub type Changes = Vec<Change>;

/// The most commits of one run; the initial state counts as one.
pub const COMMITS_MAX: usize = 48;

struct Commit {
    changes: Changes,
    /// The commit before this one.
    parent: usize,
    /// The commit failed with an error that says that it did not happen.
    refused: bool,
}

/// The commits of one run, and those that a crash may leave as the last.
pub struct Model {
    /// The files as the program sees them, including uncommitted changes.
    pub now: Files,
    commits: Vec<Commit>,
    newest: usize,
    allowed: u64,
}

impl Model {
    /// Starts with commit 0, the initial state.
    pub fn new(start: Files) -> Model {
        let changes = start.iter().map(|(name, node)| Change::Set(name.clone(), node.clone())).collect();
        let commits = vec![Commit { changes, parent: 0, refused: false }];
        Model { now: start, commits, newest: 0, allowed: 1 }
    }

    /// Submits a commit: from now on a crash may leave it or not.
    pub fn submit(&mut self, changes: Changes) -> usize {
        let number = self.commits.len();
        assert!(number < COMMITS_MAX, "a program with too many commits");
        self.commits.push(Commit { changes, parent: self.newest, refused: false });
        self.newest = number;
        self.allowed |= 1 << number;
        number
    }

    /// Notes that the commit was acknowledged, and with it every one before.
    pub fn acknowledge(&mut self, number: usize) {
        self.allowed &= u64::MAX << number;
    }

    /// Notes that the commit was refused: it did not happen, and will not come back.
    pub fn refuse(&mut self, number: usize) {
        self.commits[number].refused = true;
        self.allowed &= !(1 << number);
    }

    /// Notes that the store was opened again and shows this commit as the last.
    pub fn settle(&mut self, number: usize) {
        self.newest = number;
        self.allowed = 1 << number;
        self.now = self.state(number);
    }

    /// The commits that may be the last one after a crash, as bits.
    pub fn allowed(&self) -> u64 {
        self.allowed
    }

    /// The state after a commit, if it is the last.
    pub fn state(&self, number: usize) -> Files {
        let mut chain = vec![number];
        let mut at = number;
        while at > 0 {
            at = self.commits[at].parent;
            if !self.commits[at].refused {
                chain.push(at);
            }
        }
        let mut files = Files::new();
        for change in chain.iter().rev().flat_map(|n| &self.commits[*n].changes) {
            change.apply(&mut files);
        }
        files
    }

    /// The state after all submitted commits, if all of them succeed.
    pub fn committed(&self) -> Files {
        let mut at = self.newest;
        while self.commits[at].refused {
            at = self.commits[at].parent;
        }
        self.state(at)
    }

    /// The committed entry of a name.
    pub fn committed_at(&self, name: &Path) -> Option<Node> {
        self.committed().remove(name)
    }

    /// The entry that a name had before its present committed one.
    pub fn held_before(&self, name: &Path) -> Option<Node> {
        let now = self.committed_at(name);
        let mut at = self.newest;
        while at > 0 {
            at = self.commits[at].parent;
            let node = self.state(at).remove(name);
            if node.is_some() && node != now {
                return node;
            }
        }
        None
    }
}

/// The numbers in a set of allowed commits.
pub fn numbers(allowed: u64) -> impl Iterator<Item = usize> {
    (0..COMMITS_MAX).filter(move |n| allowed >> n & 1 == 1)
}
