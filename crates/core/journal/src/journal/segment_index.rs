//! The index of one segment of an open journal.

use crate::directories::store_dir::log_index_name;
use crate::format::{BLOCK_BYTES, IndexHead, Key, NO_BOUND};
use crate::invariant;
use crate::scanning::log_index::{ENTRIES_AT, read_head};
use crate::sync_point;
use std::io;
use std::path::Path;
use std::sync::Arc;
use untorn_os::{File, Lines, Open, Storage, holds, write_all_at};

/// Bytes by which an index on byte-addressable memory grows.
const GROWTH_BYTES: u64 = 64 << 10;

/// The index of one segment.
#[derive(Default)]
pub(super) struct SegmentIndex {
    /// The file, once something was written to it.
    pub(super) file: Option<Arc<dyn File>>,
    /// The first bytes of the file, and their number, for entries without calls.
    memory: Option<(Box<dyn Lines>, u64)>,
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

    /// Appends entries; without a call, if the segment and so its index are on byte-addressable memory.
    pub(super) fn append(&mut self, file: &dyn File, entries: &[u8], in_memory: bool) -> io::Result<()> {
        let from = ENTRIES_AT + self.entries;
        let end = from + entries.len() as u64;
        if in_memory && self.memory.as_ref().is_none_or(|(_, bytes)| end > *bytes) {
            self.memory = grown(file, end).ok();
        }
        match &self.memory {
            Some((memory, _)) => memory.copy(entries, from)?,
            None => write_all_at(file, entries, from)?,
        }
        self.entries += entries.len() as u64;
        Ok(())
    }

    /// The index has no file any more, and gets no entries until the segment is used again.
    pub(super) fn give_up(&mut self) {
        (self.file, self.memory, self.has_gap, self.bound) = (None, None, true, Bound::Unknown);
    }

    /// The journal goes on at the beginning of the segment.
    pub(super) fn begin(&mut self) {
        (self.entries, self.has_gap, self.entered) = (0, false, true);
        if self.bound != Bound::Unknown && holds(invariant::BOUND_OF_THIS_USE) {
            self.bound = Bound::Stale;
        }
    }
}

/// Writes zeros behind a file that ends before this offset, so that stores find blocks there, and maps it up to there.
fn grown(file: &dyn File, end: u64) -> io::Result<(Box<dyn Lines>, u64)> {
    let (wanted, there) = (end.next_multiple_of(GROWTH_BYTES), file.meta()?.size);
    if there < wanted {
        write_all_at(file, &vec![0; (wanted - there) as usize], there)?;
    }
    // All of an index that an earlier use of the segment has left.
    let bytes = wanted.max(there - there % BLOCK_BYTES as u64);
    Ok((file.lines(bytes)?, bytes))
}
