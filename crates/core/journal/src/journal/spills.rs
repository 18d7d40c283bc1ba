//! Spill files of commits: durable before a record refers to them, and kept as long as that record is.

use super::Journal;
use super::spill_files::LiveSpill;
use crate::commits::overlay::Source;
use crate::commits::record::{Op, Record};
use crate::error::{Outcome, Result};
use crate::sync_point;

impl Journal {
    /// Makes spill files durable, names included, before a record refers to them.
    pub(super) fn flush_spills(&mut self, records: &[Record]) -> Result<()> {
        let mut any = false;
        for op in records.iter().flat_map(|r| &r.ops) {
            let Op::Write { source: Source::Spill { spill, .. }, .. } = op else { continue };
            if !self.options.durable {
                continue;
            }
            match spill.sync() {
                Ok(synced) => any |= synced,
                // Fail for every reason, lack of space included: success of a second flush would prove nothing.
                Err(e) => return Err(self.fail(Outcome::NotCommitted, e)),
            }
        }
        if any && let Err(e) = self.storage.sync_dir(&self.dir, sync_point::SPILL_NAME) {
            return Err(self.fail(Outcome::NotCommitted, e));
        }
        Ok(())
    }

    /// Keeps the spill files of records that are about to be written until the log is truncated behind those records.
    pub(super) fn keep_spills(&mut self, records: &[Record], first: u64) {
        let mut referenced = std::mem::take(&mut self.bodies);
        for (record, lsn) in records.iter().zip(first..) {
            for op in &record.ops {
                if let Op::Write { source: Source::Spill { spill, .. }, .. } = op {
                    referenced.push((spill.clone(), lsn));
                }
            }
        }
        debug_assert!(first > self.header.checkpoint_lsn, "record {first} is before {}", self.header.checkpoint_lsn);
        for (spill, lsn) in referenced {
            debug_assert!(!self.options.durable || spill.is_durable(), "record {lsn} refers to {spill:?}, not durable");
            spill.set_referenced();
            match self.spills.iter_mut().find(|e| e.spill.id == spill.id) {
                Some(known) => known.last_lsn = lsn,
                None => self.spills.push(LiveSpill { spill, first_lsn: lsn, last_lsn: lsn }),
            }
        }
    }
}
