//! Goes on through the index of the log, behind a commit that was read before: the segments themselves are not read.

use crate::commits::log_reader::LogSegment;
use crate::commits::record::{CheckSpills, SpillCache};
use crate::directories::store_dir::segment_name;
use crate::format::RecordKind;
use crate::scanning::log_end::LogEnd;
use crate::scanning::log_index::{decode, each_entry, read_index};
use crate::scanning::scan::{AcceptedRecord, Scan};
use std::path::Path;
use std::sync::Arc;
use untorn_os::Storage;

/// The end of a record, behind which the index continues.
#[derive(Clone)]
pub(crate) struct IndexTail {
    end: LogEnd,
    /// The segment of the record, once it was opened. All later records in it share one descriptor.
    log: Option<Arc<LogSegment>>,
}

impl IndexTail {
    /// The end of the record with this LSN, or `None` if that record was not accepted.
    pub fn behind(scan: &Scan, lsn: u64) -> Option<IndexTail> {
        LogEnd::behind(scan, lsn).map(|end| IndexTail { end, log: None })
    }

    /// Reads the commits up to this LSN, which is published. `None`: the indexes do not have all of them.
    pub fn read_to(&mut self, lsn: u64, storage: &Arc<dyn Storage>, journal: &Path) -> Option<Vec<AcceptedRecord>> {
        let mut spills = SpillCache::new(storage.clone(), journal.to_owned());
        spills.check = CheckSpills::WhenUsed;
        let mut newer = Vec::new();
        if self.end.lsn < lsn {
            self.read_in(self.end.segment, lsn, &**storage, journal, &mut spills, &mut newer)?;
        }
        while self.end.lsn < lsn {
            let before = self.end.lsn;
            for segment in self.end.segments_in_turn(&**storage, journal).ok()? {
                self.read_in(segment, lsn, &**storage, journal, &mut spills, &mut newer)?;
            }
            if self.end.lsn == before {
                return None;
            }
        }
        Some(newer)
    }

    /// Goes on as far as this segment has the next records. `None`: one of them cannot be read.
    fn read_in(
        &mut self,
        segment: u32,
        lsn: u64,
        storage: &dyn Storage,
        journal: &Path,
        spills: &mut SpillCache,
        newer: &mut Vec<AcceptedRecord>,
    ) -> Option<()> {
        let path = journal.join(segment_name(segment));
        let meta = storage.stat(&path).ok()?;
        let Some(index) = read_index(storage, journal, segment, meta.size) else { return Some(()) };
        let mut log = self.log.clone().filter(|log| log.is_file(&meta));
        let mut done = Ok(());
        each_entry(&index, self.end.key, |head, crc, body| {
            if self.end.lsn == lsn || done.is_err() || !self.end.is_before(&head) {
                return;
            }
            self.end.pass(&head, crc, segment);
            if head.kind != RecordKind::Commit {
                return;
            }
            done = log.clone().map_or_else(|| LogSegment::open(storage, &path), Ok).and_then(|opened| {
                let record = decode(&head, body, &opened, spills)?;
                newer.push(AcceptedRecord { lsn: head.lsn, epoch: head.epoch, time: head.time, record });
                log = Some(opened);
                Ok(())
            });
        });
        if self.end.segment == segment {
            self.log = log;
        }
        done.ok()
    }
}
