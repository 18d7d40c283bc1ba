//! Holds: a reader locks the byte of its commit in the page, and the owner keeps the data that the commit needs.
//!
//! A hold is an open-file-description read lock and ends with its holder. The offset of a byte is the LSN of a commit.
//! A reader first locks everything from the published commit on, then reads the published commit again, and releases
//! all bytes but that one. An owner that overwrites anything which this commit needs lists the locks after it published
//! a newer commit, so it finds the lock. Bytes from [`FOLLOWED`] on belong to followers of the log.

use std::io;
use std::ops::Range;
use untorn_os::File;

/// End of the bytes of commits. No commit has such a number.
pub const HOLDS_END: u64 = 1 << 48;
/// The byte of a follower that has every commit up to LSN 0. Followers of later commits lock later bytes.
pub const FOLLOWED: u64 = 1 << 61;
/// The byte of a program that watches the owner's figures. Readers of version 1 lock the byte before it.
pub const WATCHED: u64 = (1 << 62) + 1;

/// Ranges of locks that are listed one by one. More of them count as one range, so that more is kept than is needed.
const LISTED_MAX: usize = 4096;

/// The commits that readers hold. Ranges may stand for several readers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holds(Vec<Range<u64>>);

impl Holds {
    /// Lists the locks on commits from this one on.
    pub fn list(page: &dyn File, from: u64) -> io::Result<Holds> {
        Holds::list_some(page, from, LISTED_MAX)
    }

    /// Lists so many locks one by one; the rest counts as one range, or a few.
    pub fn list_some(page: &dyn File, from: u64, most: usize) -> io::Result<Holds> {
        let (mut found, mut left) = (Vec::new(), Vec::new());
        left.push(from.min(HOLDS_END)..HOLDS_END);
        while let Some(range) = left.pop() {
            if found.len() >= most {
                found.push(range);
                continue;
            }
            if let Some(held) = page.held(range.clone())? {
                left.extend([range.start..held.start, held.end..range.end]);
                found.push(held);
            }
        }
        found.sort_unstable_by_key(|held| held.start);
        Ok(Holds(found))
    }

    /// Whether nobody holds a commit.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether somebody holds a commit in this interval.
    pub fn any_in(&self, commits: Range<u64>) -> bool {
        self.0.iter().any(|held| held.start < commits.end && commits.start < held.end)
    }

    /// The held range with the oldest commit.
    pub fn oldest_range(&self) -> Option<Range<u64>> {
        self.0.first().cloned()
    }

    /// The first commit of each held range.
    pub fn commits(&self) -> Vec<u64> {
        self.0.iter().map(|held| held.start).collect()
    }

    /// Drops holds of commits before this one.
    pub fn forget_before(&mut self, lsn: u64) {
        self.0.retain(|held| held.end > lsn);
        self.0.iter_mut().for_each(|held| held.start = held.start.max(lsn));
    }
}

/// The LSN of the follower that has the fewest commits.
pub fn oldest_follower(page: &dyn File) -> io::Result<Option<u64>> {
    let (mut oldest, mut range) = (None, FOLLOWED..FOLLOWED + HOLDS_END);
    while let Some(held) = page.held(range.clone())? {
        oldest = Some(held.start - FOLLOWED);
        range.end = held.start;
    }
    Ok(oldest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_half_open() {
        let mut holds = Holds(vec![3..4, 7..HOLDS_END]);
        assert!(holds.any_in(3..4) && holds.any_in(0..4) && !holds.any_in(4..7) && holds.any_in(100..101));
        assert!(!holds.any_in(0..3) && !holds.any_in(5..5));
        assert_eq!(holds.oldest_range(), Some(3..4));
        holds.forget_before(5);
        assert_eq!(holds.commits(), [7]);
        holds.forget_before(9);
        assert_eq!(holds.commits(), [9], "a reader that arrives may hold any later commit");
    }
}
