//! The index of one segment of an open journal.

use crate::directories::store_dir::log_index_name;
use crate::format::{IndexHead, Key, NO_BOUND};
use crate::invariant;
use crate::scanning::log_index::read_head;
use crate::sync_point;
use std::path::Path;
use std::sync::Arc;
use untorn_os::{File, Open, Storage, holds};

/// The index of one segment.
#[derive(Default)]
pub(super) struct SegmentIndex {
    /// The file, once something was written to it.
    pub(super) file: Option<Arc<dyn File>>,
    /// Bytes of the entries of the records since the segment is in use.
    pub(super) entries: u64,
    /// An entry is missing: no more are written until the segment is used again.
    pub(super) has_gap: bool,
    /// The bound in its head on the disk.
    pub(super) bound: Bound,
    /// The journal went on in this segment, and did not begin in it when the store was opened.
    pub(super) entered: bool,
}

/// The bound in the durable head of an index.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Bound {
    /// The head has no bound, or there is no head: recovery reads the whole segment.
    #[default]
    Unknown,
    /// The bound of an earlier use of the segment.
    Stale,
    /// No record ends behind this offset.
    At(u64),
}

impl SegmentIndex {
    /// The index that an earlier owner left; with `killed`, that owner may not have flushed it.
    pub(super) fn found(storage: &dyn Storage, journal: &Path, segment: u32, key: Key, killed: bool) -> SegmentIndex {
        let file = storage.open(&journal.join(log_index_name(segment)), Open::WRITE).ok();
        let head = file.as_ref().and_then(|file| read_head(&**file, key));
        let is_durable = || !killed || file.is_some_and(|file| file.sync_data(sync_point::INDEX_FOUND).is_ok());
        let bound = match head {
            None => Bound::Unknown,
            Some(IndexHead { bound: NO_BOUND, .. }) if is_durable() => Bound::Unknown,
            Some(_) => Bound::Stale,
        };
        SegmentIndex { bound, ..SegmentIndex::default() }
    }

    /// The journal goes on at the beginning of the segment.
    pub(super) fn begin(&mut self) {
        (self.entries, self.has_gap, self.entered) = (0, false, true);
        if self.bound != Bound::Unknown && holds(invariant::BOUND_OF_THIS_USE) {
            self.bound = Bound::Stale;
        }
    }
}
