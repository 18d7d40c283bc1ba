//! Files in memory, mapped: stores and flushes of their lines without a system call.

use super::delay::{lines_of, take_time_of};
use super::processor::{LINE_BYTES, fence, store_lines, write_back};
use crate::measuring::peers::fill;
use crate::stores::two_files::protocol::{Change, LOG_BYTES, Protocol, Shape};
use crate::stores::two_files::redo_log::record_of;
use anyhow::Result;
use memmap2::{MmapOptions, MmapRaw};
use parking_lot::Mutex;
use std::fs::File;
use std::path::Path;

/// A mapped file.
struct Mapped(MmapRaw);

impl Mapped {
    /// Makes a file, and maps it.
    fn create(path: &Path, bytes: u64) -> Result<Mapped> {
        fill(path, bytes)?;
        let file = File::options().read(true).write(true).open(path)?;
        Ok(Mapped(MmapOptions::new().populate().map_raw(&file)?))
    }

    fn place(&self, at: usize, bytes: usize) -> *mut u8 {
        assert!(at + bytes <= self.0.len(), "{bytes} bytes at {at} of {}", self.0.len());
        self.0.as_mut_ptr().wrapping_add(at)
    }

    /// Stores bytes: whole lines past the caches, the lines at both ends through them. Everything is in the memory after a
    /// fence.
    fn put(&self, at: u64, bytes: &[u8]) {
        let at = at as usize;
        let to = self.place(at, bytes.len());
        let first = at.next_multiple_of(LINE_BYTES).min(at + bytes.len()) - at;
        let lines = (bytes.len() - first) / LINE_BYTES;
        let last = first + lines * LINE_BYTES;
        for (from, end) in [(0, first), (last, bytes.len())].into_iter().filter(|(from, end)| from < end) {
            // SAFETY: within the mapping and the bytes; the caller keeps other threads from this place.
            unsafe {
                to.add(from).copy_from_nonoverlapping(bytes[from..end].as_ptr(), end - from);
                write_back(to.add(from));
            }
        }
        // SAFETY: as above, and aligned to lines.
        unsafe { store_lines(to.wrapping_add(first), bytes[first..].as_ptr(), lines) };
        take_time_of(lines_of(at, bytes.len()));
    }

    fn get(&self, at: u64, into: &mut [u8]) {
        let from = self.place(at as usize, into.len());
        // SAFETY: within the mapping; the caller keeps other threads from this place.
        unsafe { into.as_mut_ptr().copy_from_nonoverlapping(from, into.len()) };
    }
}

/// Makes the files, and maps them.
fn map_files(dir: &Path, shape: Shape) -> Result<Vec<Mapped>> {
    (0..shape.files).map(|n| Mapped::create(&dir.join(n.to_string()), shape.file_bytes)).collect()
}

#[cfg(test)]
fn read_file(file: &Mapped) -> Vec<u8> {
    let mut bytes = vec![0; file.0.len()];
    file.get(0, &mut bytes);
    bytes
}

/// Stores in place, and one fence: a crash may leave a part of a transaction.
pub struct NoConsistency {
    files: Vec<Mapped>,
}

impl NoConsistency {
    pub fn open(dir: &Path, shape: Shape) -> Result<NoConsistency> {
        Ok(NoConsistency { files: map_files(dir, shape)? })
    }
}

impl Protocol for NoConsistency {
    fn transact(&self, changes: &[Change<'_>]) -> Result<()> {
        changes.iter().for_each(|change| self.files[change.file].put(change.at, change.bytes));
        fence();
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }

    #[cfg(test)]
    fn read(&self, file: usize) -> Result<Vec<u8>> {
        Ok(read_file(&self.files[file]))
    }
}

/// A redo log of lines in front of the files: the log, a fence, the files in place, a fence.
pub struct FineLog {
    files: Vec<Mapped>,
    log: Mapped,
    /// The end of the log.
    end: Mutex<u64>,
}

impl FineLog {
    pub fn open(dir: &Path, shape: Shape) -> Result<FineLog> {
        let log = Mapped::create(&dir.join("log"), LOG_BYTES)?;
        Ok(FineLog { files: map_files(dir, shape)?, log, end: Mutex::new(0) })
    }
}

impl Protocol for FineLog {
    fn transact(&self, changes: &[Change<'_>]) -> Result<()> {
        let record = record_of(changes, LINE_BYTES as u64, |file, into, at| {
            self.files[file].get(at, into);
            Ok(())
        })?;
        let at = {
            let mut end = self.end.lock();
            let bytes = record.len().next_multiple_of(LINE_BYTES) as u64;
            // The files have everything before, so the log begins anew where it is full.
            let at = if *end + bytes > LOG_BYTES { 0 } else { *end };
            *end = at + bytes;
            at
        };
        self.log.put(at, &record);
        fence();
        changes.iter().for_each(|change| self.files[change.file].put(change.at, change.bytes));
        fence();
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }

    #[cfg(test)]
    fn read(&self, file: usize) -> Result<Vec<u8>> {
        Ok(read_file(&self.files[file]))
    }
}

#[cfg(test)]
mod tests {
    use super::super::delay::lines_so_far;
    use super::super::processor::CAN_FLUSH;
    use super::*;

    #[test]
    fn bytes_at_any_place_are_stored_and_their_lines_counted() {
        if !CAN_FLUSH {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let file = Mapped::create(&dir.path().join("f"), 8192).unwrap();
        let mut expected = read_file(&file);
        let bytes: Vec<u8> = (0..1000u32).map(|n| n as u8).collect();
        for at in 0..300 {
            let len = at * 7 % 500;
            let before = lines_so_far();
            file.put(at as u64, &bytes[..len]);
            assert!(lines_so_far() - before >= lines_of(at, len) as u64);
            expected[at..at + len].copy_from_slice(&bytes[..len]);
            assert!(read_file(&file) == expected, "{len} bytes at {at}");
        }
    }
}
