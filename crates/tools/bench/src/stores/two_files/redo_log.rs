//! A redo log in front of plain files: records of whole lines or pages, a flush, and then the files in place.

use super::plain::open_files;
#[cfg(test)]
use super::plain::read_file;
use super::protocol::{Change, LOG_BYTES, Protocol, Shape};
use crate::measuring::peers::fill;
use anyhow::Result;
use parking_lot::{Mutex, RwLock};
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A record begins with its length and the sum of its bytes.
const HEAD_BYTES: usize = 16;

pub struct RedoLog {
    files: Vec<File>,
    log: File,
    /// Changes are logged in units of so many bytes.
    unit: u64,
    /// Each transaction flushes its files, in place of the one that finds the log full.
    synchronous: bool,
    /// Each transaction locks its files for other processes.
    locks: bool,
    /// Held for writing while the log is emptied.
    in_use: RwLock<()>,
    end: Mutex<End>,
    /// All records before this number of bytes, counted from the first one, are durable.
    flushed: Mutex<u64>,
}

/// The end of the log.
struct End {
    at: u64,
    /// The bytes of all records so far.
    written: u64,
    /// Files that were changed since the log was empty.
    changed: BTreeSet<usize>,
}

impl RedoLog {
    pub fn open(dir: &Path, shape: Shape, unit: u64, synchronous: bool, locks: bool) -> Result<RedoLog> {
        let files = open_files(dir, shape)?;
        let path = dir.join("log");
        fill(&path, LOG_BYTES)?;
        let log = File::options().write(true).open(path)?;
        let end = Mutex::new(End { at: 0, written: 0, changed: BTreeSet::new() });
        Ok(RedoLog { files, log, unit, synchronous, locks, in_use: RwLock::new(()), end, flushed: Mutex::new(0) })
    }

    /// Appends a record, and flushes the log unless another thread has done so meanwhile.
    fn append(&self, record: &[u8], changes: &[Change<'_>]) -> Result<()> {
        let behind = {
            let mut end = self.end.lock();
            self.log.write_all_at(record, end.at)?;
            end.at += record.len() as u64;
            end.written += record.len() as u64;
            end.changed.extend(changes.iter().map(|change| change.file));
            end.written
        };
        let mut flushed = self.flushed.lock();
        if *flushed < behind {
            let written = self.end.lock().written;
            self.log.sync_data()?;
            *flushed = written;
        }
        Ok(())
    }

    fn has_room(&self, bytes: usize) -> bool {
        // Records of other threads may come first.
        self.end.lock().at + 8 * bytes as u64 <= LOG_BYTES
    }
}

/// The record of a redo log: for each change its file, place and length, and the whole units that it lies in. `read` reads
/// from a file, up to its end.
pub fn record_of(
    changes: &[Change<'_>],
    unit_bytes: u64,
    read: impl Fn(usize, &mut [u8], u64) -> Result<()>,
) -> Result<Vec<u8>> {
    let mut record = vec![0; HEAD_BYTES];
    for Change { file, at, bytes } in changes.iter().filter(|change| !change.bytes.is_empty()) {
        let end = at + bytes.len() as u64;
        let from = at / unit_bytes * unit_bytes;
        let to = end.next_multiple_of(unit_bytes);
        for number in [*file as u64, from, to - from] {
            record.extend(number.to_le_bytes());
        }
        let start = record.len();
        record.resize(start + (to - from) as usize, 0);
        // The first and the last unit may have bytes around the change. The file may end within the last one.
        for unit in BTreeSet::from([from, to - unit_bytes]) {
            let inside = start + (unit - from) as usize;
            read(*file, &mut record[inside..inside + unit_bytes as usize], unit)?;
        }
        let inside = start + (at - from) as usize;
        record[inside..inside + bytes.len()].copy_from_slice(bytes);
    }
    let sum = record.chunks(8).fold(0u64, |sum, word| {
        let mut bytes = [0; 8];
        bytes[..word.len()].copy_from_slice(word);
        sum.rotate_left(5) ^ u64::from_le_bytes(bytes)
    });
    let length = record.len() as u64;
    record[..8].copy_from_slice(&length.to_le_bytes());
    record[8..HEAD_BYTES].copy_from_slice(&sum.to_le_bytes());
    Ok(record)
}

fn read_some(file: &File, into: &mut [u8], at: u64) -> Result<()> {
    let mut done = 0;
    while done < into.len() {
        match file.read_at(&mut into[done..], at + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(())
}

impl Protocol for RedoLog {
    fn transact(&self, changes: &[Change<'_>]) -> Result<()> {
        let lock = |how| changes.iter().try_for_each(|change| flock(&self.files[change.file], how));
        if self.locks {
            lock(FlockOperation::LockExclusive)?;
        }
        let record = record_of(changes, self.unit, |file, into, at| read_some(&self.files[file], into, at))?;
        if !self.has_room(record.len()) {
            self.settle()?;
        }
        let in_use = self.in_use.read();
        self.append(&record, changes)?;
        changes.iter().try_for_each(|change| self.files[change.file].write_all_at(change.bytes, change.at))?;
        if self.synchronous {
            changes.iter().try_for_each(|change| self.files[change.file].sync_data())?;
        }
        drop(in_use);
        if self.locks {
            lock(FlockOperation::Unlock)?;
        }
        Ok(())
    }

    /// Flushes the files, and begins the log anew.
    fn settle(&self) -> Result<()> {
        let _alone = self.in_use.write();
        let mut end = self.end.lock();
        for file in std::mem::take(&mut end.changed) {
            self.files[file].sync_data()?;
        }
        end.at = 0;
        Ok(())
    }

    #[cfg(test)]
    fn read(&self, file: usize) -> Result<Vec<u8>> {
        read_file(&self.files[file])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_whole_units_with_what_is_around_the_change() {
        let dir = tempfile::tempdir().unwrap();
        let shape = Shape { files: 1, file_bytes: 1000, change_bytes_max: 100 };
        let log = RedoLog::open(dir.path(), shape, 64, true, false).unwrap();
        let mut expected = log.read(0).unwrap();
        let bytes = [7; 100];
        expected[100..200].copy_from_slice(&bytes);
        let change = [Change { file: 0, at: 100, bytes: &bytes }];
        let record = record_of(&change, 64, |file, into, at| read_some(&log.files[file], into, at)).unwrap();
        let length = u64::from_le_bytes(record[..8].try_into().unwrap());
        assert_eq!((length, record.len()), (record.len() as u64, HEAD_BYTES + 24 + 192));
        assert!(record[HEAD_BYTES + 24..] == expected[64..256]);
    }

    #[test]
    fn a_full_log_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let shape = Shape { files: 2, file_bytes: 100_000, change_bytes_max: 50_000 };
        let log = RedoLog::open(dir.path(), shape, 4096, false, true).unwrap();
        let bytes = vec![1; 50_000];
        for _ in 0..100 {
            log.transact(&[0, 1].map(|file| Change { file, at: 10, bytes: &bytes })).unwrap();
            assert!(log.end.lock().at <= LOG_BYTES);
        }
        assert!(log.end.lock().written > 2 * LOG_BYTES);
        assert_eq!(*log.flushed.lock(), log.end.lock().written);
    }
}
