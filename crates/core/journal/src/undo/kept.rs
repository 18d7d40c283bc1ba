//! The data that an owner keeps for readers, in memory: which ranges, names and intervals are kept.

use crate::error::Error;
use crate::undo::holds::Holds;
use crate::undo::index::Inode;
use crate::undo::kept_links::KeptLinks;
use crate::undo::page::Published;
use rangemap::RangeMap;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_os::File;

/// Old bytes of one interval.
pub(super) struct OldBytes {
    pub(super) file: Arc<dyn File>,
    pub(super) bytes: u64,
}

/// A file that is kept under a name in the undo directory.
pub(super) struct Link {
    pub(super) commits: Range<u64>,
    pub(super) file: Inode,
    /// Its bytes, which are freed with the link if the file has lost its own name.
    pub(super) bytes: u64,
}

/// The data that is kept now.
pub(super) struct Kept {
    pub(super) published: Published,
    pub(super) index: Option<Arc<dyn File>>,
    /// Old bytes, by the interval's start and end.
    pub(super) old_bytes: BTreeMap<(u64, u64), OldBytes>,
    pub(super) links: BTreeMap<u64, Link>,
    pub(super) next_link: u64,
    pub(super) own_links: KeptLinks,
    /// Up to which commit the ranges of each file, and its length, were kept last.
    pub(super) ranges: BTreeMap<Inode, RangeMap<u64, u64>>,
    pub(super) lengths: BTreeMap<Inode, u64>,
    /// The commit that changed each name last, of those that were kept.
    pub(super) names: BTreeMap<PathBuf, u64>,
    /// Intervals of entries without bytes of their own.
    pub(super) intervals: BTreeSet<(u64, u64)>,
    /// The undo directory may exist.
    pub(super) has_dir: bool,
    /// Bytes of the log that are kept.
    pub(super) log_bytes: u64,
}

impl Kept {
    pub(super) fn new(published: Published) -> Kept {
        Kept {
            published,
            index: None,
            old_bytes: BTreeMap::new(),
            links: BTreeMap::new(),
            next_link: 0,
            own_links: KeptLinks::default(),
            ranges: BTreeMap::new(),
            lengths: BTreeMap::new(),
            names: BTreeMap::new(),
            intervals: BTreeSet::new(),
            has_dir: true,
            log_bytes: 0,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        let old: u64 = self.old_bytes.values().map(|old| old.bytes).sum();
        let links: u64 = self.links.values().map(|link| link.bytes).sum();
        old + links + self.log_bytes + self.published.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.old_bytes.is_empty() && self.links.is_empty() && self.intervals.is_empty()
    }
}

/// A file of the undo directory is missing, or another one is in its place.
pub(super) fn damaged(dir: &Path) -> Error {
    Error::corrupt(dir, "it was changed while the store was open".to_owned())
}

impl Kept {
    /// The parts of these ranges that somebody needs, with the start of the interval of each.
    pub(super) fn needed(
        &self,
        inode: Inode,
        ranges: &rangemap::RangeSet<u64>,
        to: u64,
        held: &Holds,
    ) -> Vec<(Range<u64>, u64)> {
        let mut needed = Vec::new();
        let none = RangeMap::new();
        let known = self.ranges.get(&inode).unwrap_or(&none);
        for range in ranges.iter() {
            let before = known.overlapping(range.clone());
            let before = before.map(|(kept, from)| (kept.start.max(range.start)..kept.end.min(range.end), *from));
            let mut parts: Vec<(Range<u64>, u64)> = before.chain(known.gaps(range).map(|gap| (gap, 0))).collect();
            parts.sort_unstable_by_key(|(part, _)| part.start);
            needed.extend(parts.into_iter().filter(|(_, from)| held.any_in(*from..to)));
        }
        needed
    }
}
