//! Flushes of records, and of the spill files that they refer to.

use super::Journal;
use crate::commits::record::Record;
use crate::commits::spill::Spill;
use crate::error::{Error, Outcome, Result};
use crate::invariant;
use crate::sync_point;
use std::io;
use std::sync::Arc;
use untorn_os::{SyncPoint, holds};

impl Journal {
    /// Writes as many records as fit and flushes them; at the same time flushes the spill files that they refer to.
    /// Returns the number of records.
    pub(super) fn write_and_flush(&mut self, records: &[Record]) -> Result<usize> {
        let spills = std::mem::take(&mut self.unflushed_spills);
        if spills.is_empty() {
            let n = self.write_all(records)?;
            self.on_written.iter().for_each(|call| call());
            return if n > 0 { self.flush(sync_point::COMMIT).map(|()| n) } else { Ok(n) };
        }
        let (storage, mut spilled, mut written) = (self.storage.clone(), Ok(()), Ok((0, Ok(()))));
        let mut write = || {
            written = self.write_all(records).map(|n| {
                self.on_written.iter().for_each(|call| call());
                (n, self.flush_segments(sync_point::COMMIT))
            });
        };
        storage.at_once(&mut || spilled = flush_spills(&spills), &mut write);
        match (written, spilled) {
            (Ok((n, flushed)), spilled) => self.finish_flush(flushed.and(spilled)).map(|()| n),
            // Without a record, too: success of a second flush would prove nothing.
            (Err(_), Err(e)) if self.failed.is_none() => Err(self.fail(Outcome::NotCommitted, e)),
            (Err(e), _) => Err(e),
        }
    }

    /// Writes as many records as fit, and returns their number.
    fn write_all(&mut self, records: &[Record]) -> Result<usize> {
        let mut done = 0;
        while done < records.len() {
            match self.write_some(&records[done..]) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if done == 0 => return Err(e),
                // The records written so far are committed; the next call returns this error again.
                Err(_) if self.failed.is_none() => break,
                // Recovery may find the records written so far.
                Err(Error::SyncFailed { source, .. }) => {
                    return Err(Error::SyncFailed { outcome: Outcome::UnknownUntilReopened, source });
                }
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// Flushes written records, then the spill files that they refer to: one flush, or two if the group, or a durable
    /// mark before it, began in another segment.
    pub(super) fn flush(&mut self, point: SyncPoint) -> Result<()> {
        debug_assert!(!self.unflushed.is_empty(), "record {} was not written", self.next_lsn - 1);
        let spills = std::mem::take(&mut self.unflushed_spills);
        let flushed = self.flush_segments(point).and_then(|()| flush_spills(&spills));
        self.finish_flush(flushed)
    }

    fn flush_segments(&mut self, point: SyncPoint) -> io::Result<()> {
        if !holds(invariant::TOLD_WHEN_DURABLE) {
            self.tell_durable(self.next_lsn - 1);
        }
        for at in std::mem::take(&mut self.unflushed) {
            let segment = &mut self.segments[at];
            match self.options.durable {
                true => segment.flush(point)?,
                false => segment.length_due = false,
            }
        }
        Ok(())
    }

    /// Notes that all written records are durable, or that this is not known.
    fn finish_flush(&mut self, flushed: io::Result<()>) -> Result<()> {
        flushed.map_err(|e| self.fail(Outcome::UnknownUntilReopened, e))?;
        // The flushed records are at the beginning of the start segment, or behind the attribute in the file system's
        // log.
        self.open_unflushed = false;
        self.durable_lsn = self.next_lsn - 1;
        self.tell_durable(self.durable_lsn);
        Ok(())
    }
}

fn flush_spills(spills: &[(Arc<Spill>, u64)]) -> io::Result<()> {
    spills.iter().try_for_each(|(spill, end)| spill.sync_to(*end))
}
