//! Spill files of commits: named before a record refers to them, flushed together with it, and kept as long as it is.

use super::Journal;
use super::spill_files::LiveSpill;
use crate::commits::overlay::Source;
use crate::commits::record::{Op, Record};
use crate::commits::spill::Spill;
use crate::error::{Outcome, Result};
use crate::sync_point;
use std::sync::Arc;

impl Journal {
    /// Makes the names of spill files durable, before a record that refers to them is written. [`Self::flush`] makes the
    /// contents durable, together with the record.
    pub(super) fn name_spills(&mut self, records: &[Record]) -> Result<()> {
        if !self.options.durable {
            return Ok(());
        }
        let mut unnamed = false;
        for op in records.iter().flat_map(|r| &r.ops) {
            let Op::Write { source: Source::Spill { spill, at, len, .. }, .. } = op else { continue };
            unnamed |= !spill.is_named();
            self.add_unflushed(spill, at + len);
        }
        if unnamed {
            // Fail for every reason, lack of space included: success of a second flush would prove nothing.
            if let Err(e) = self.storage.sync_dir(&self.dir, sync_point::SPILL_NAME) {
                self.unflushed_spills.clear();
                return Err(self.fail(Outcome::NotCommitted, e));
            }
            self.unflushed_spills.iter().for_each(|(spill, _)| spill.set_named());
        }
        Ok(())
    }

    fn add_unflushed(&mut self, spill: &Arc<Spill>, end: u64) {
        match self.unflushed_spills.iter_mut().find(|(known, _)| known.id == spill.id) {
            Some((_, known)) => *known = end.max(*known),
            None if spill.is_durable_to(end) => {}
            None => self.unflushed_spills.push((spill.clone(), end)),
        }
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
            debug_assert!(!self.options.durable || spill.is_named(), "record {lsn} refers to {spill:?}, not durable");
            spill.set_referenced();
            match self.spills.iter_mut().find(|e| e.spill.id == spill.id) {
                Some(known) => known.last_lsn = lsn,
                None => self.spills.push(LiveSpill { spill, first_lsn: lsn, last_lsn: lsn }),
            }
        }
    }
}
