//! The index of the log, for readers: `index.N` beside `segment.N` has the heads, names and ranges of the records in it,
//! and the places of their contents. It is written after the records and never flushed. Readers believe an entry only
//! along the chain of checksums, and read the log itself where the index has a gap.

use super::Journal;
use super::index_entries::SegmentIndex;
use crate::directories::spare::open_or_create;
use crate::directories::store_dir::log_index_name;
use untorn_os::write_all_at;

impl Journal {
    /// Writes the entries of the records that were just written to the current segment.
    pub(super) fn write_index(&mut self) {
        if self.undo.is_none() {
            return;
        }
        let segment = &mut self.segments[self.current];
        let (file, before) = match std::mem::take(&mut segment.log_index) {
            SegmentIndex::New => {
                let path = self.dir.join(log_index_name(segment.index));
                (open_or_create(&*self.storage, &path, false).ok().map(|(file, _)| file), 0)
            }
            SegmentIndex::Whole { file, bytes } => (Some(file), bytes),
            SegmentIndex::Broken => (None, 0),
        };
        segment.log_index = match file {
            Some(file) if write_all_at(&*file, &self.entries.bytes, before).is_ok() => {
                SegmentIndex::Whole { file, bytes: before + self.entries.bytes.len() as u64 }
            }
            _ => SegmentIndex::Broken,
        };
    }
}
