//! The peers of Untorn: plain system calls, in the way of a careful program.

use crate::measuring::fs::libc_o_direct;
use crate::measuring::harness::timed;
use anyhow::{Context, Result};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;
use untorn_os::{AlignedBuf, BLOCK_BYTES};

/// The lowest cost of durable bytes: one sequential write of the bytes, padded to blocks of 4 KiB, plus `fdatasync`.
///
/// The bytes have no headers, and the file is preallocated and already written.
pub struct Floor {
    file: File,
    bytes: AlignedBuf,
    at: u64,
    file_bytes: u64,
}

impl Floor {
    pub const BUFFERED: &str = "floor, buffered";
    pub const DIRECT: &str = "floor, O_DIRECT";

    /// A floor through the page cache.
    pub fn buffered(dir: &Path, commit_bytes: usize, file_bytes: u64) -> Result<Floor> {
        let path = dir.join("floor-buffered");
        fill(&path, file_bytes)?;
        let file = OpenOptions::new().write(true).open(path)?;
        Ok(Floor::over(file, commit_bytes, file_bytes))
    }

    /// A floor with direct I/O. None if the file system has no direct I/O.
    pub fn direct(dir: &Path, commit_bytes: usize, file_bytes: u64) -> Result<Option<Floor>> {
        let path = dir.join("floor-direct");
        fill(&path, file_bytes)?;
        // The file must not be cached: each direct write would first have to drop the cached bytes.
        rustix::fs::fadvise(File::open(&path)?, 0, None, rustix::fs::Advice::DontNeed)?;
        match OpenOptions::new().write(true).custom_flags(libc_o_direct()).open(path) {
            Err(e) if e.kind() == ErrorKind::InvalidInput => Ok(None),
            file => Ok(Some(Floor::over(file?, commit_bytes, file_bytes))),
        }
    }

    fn over(file: File, commit_bytes: usize, file_bytes: u64) -> Floor {
        let mut bytes = AlignedBuf::zeroed(commit_bytes.next_multiple_of(BLOCK_BYTES));
        fastrand::fill(&mut bytes);
        Floor { file, bytes, at: 0, file_bytes }
    }

    /// Writes all its bytes and flushes, once. At the end of the file it starts again at the beginning.
    pub fn write_all(&mut self) -> Result<Duration> {
        self.write(self.bytes.len())
    }

    /// Writes the first `bytes` of its bytes, padded, and flushes.
    pub fn write(&mut self, bytes: usize) -> Result<Duration> {
        let bytes = bytes.next_multiple_of(BLOCK_BYTES);
        if self.at + bytes as u64 > self.file_bytes {
            self.at = 0;
        }
        let fresh = fastrand::u64(..).to_le_bytes();
        self.bytes[..fresh.len()].copy_from_slice(&fresh);
        let time = timed(|| {
            self.file.write_all_at(&self.bytes[..bytes], self.at)?;
            self.file.sync_data()
        })?;
        self.at += bytes as u64;
        Ok(time)
    }
}

/// Makes a new file of random bytes, and flushes it.
pub fn fill(path: &Path, bytes: u64) -> Result<()> {
    let mut chunk = vec![0; 1 << 20];
    fastrand::fill(&mut chunk);
    let write = || -> std::io::Result<()> {
        let file = File::create(path)?;
        let mut at = 0;
        while at < bytes {
            let n = (bytes - at).min(chunk.len() as u64);
            file.write_all_at(&chunk[..n as usize], at)?;
            at += n;
        }
        file.sync_all()
    };
    write().with_context(|| format!("cannot fill {}", path.display()))
}

/// Replaces a file so that a crash leaves the old or the new contents.
///
/// It writes and flushes a new file, renames it over the old one, and flushes the directory.
pub fn replace_file(dir: &Path, name: &str, content: &[u8]) -> std::io::Result<()> {
    let temporary = dir.join(format!("{name}.tmp"));
    let mut file = File::create(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, dir.join(name))?;
    File::open(dir)?.sync_all()
}

/// A page with new contents each time.
pub fn fresh_page() -> [u8; BLOCK_BYTES] {
    let mut page = [7; BLOCK_BYTES];
    page[..8].copy_from_slice(&fastrand::u64(..).to_le_bytes());
    page
}

/// Writes these pages of a file, each by its own call, then flushes the file.
pub fn write_pages(path: &Path, pages: &[u64], page_bytes: u64) -> std::io::Result<()> {
    write_without_flush(path, pages, page_bytes)?.sync_data()
}

fn write_without_flush(path: &Path, pages: &[u64], page_bytes: u64) -> std::io::Result<File> {
    let file = File::options().write(true).open(path)?;
    let mut page = vec![0; page_bytes as usize];
    fastrand::fill(&mut page);
    pages.iter().try_for_each(|number| file.write_all_at(&page, number * page_bytes))?;
    Ok(file)
}

/// Writes these pages of each file, then flushes the file, or the whole file system for several files.
pub fn write_pages_of<P: AsRef<Path>>(paths: &[P], pages: &[Vec<u64>], page_bytes: u64) -> std::io::Result<()> {
    let mut last = None;
    for (path, pages) in paths.iter().zip(pages) {
        last = Some(write_without_flush(path.as_ref(), pages, page_bytes)?);
    }
    match last {
        Some(file) if paths.len() == 1 => file.sync_data(),
        Some(file) => Ok(rustix::fs::syncfs(file)?),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_wraps_and_pads() {
        let dir = tempfile::tempdir().unwrap();
        let mut floor = Floor::buffered(dir.path(), 5000, 20_000).unwrap();
        let before = fs::read(dir.path().join("floor-buffered")).unwrap();
        for at in [0, 8192, 0] {
            floor.write_all().unwrap();
            assert_eq!(floor.at, at + 8192);
        }
        let after = fs::read(dir.path().join("floor-buffered")).unwrap();
        assert_eq!(after.len(), 20_000);
        assert_eq!(after[16_384..], before[16_384..]);
        assert_ne!(after[..8192], after[8192..16_384]);
    }

    #[test]
    fn pages_are_written_and_files_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("to");
        fill(&to, 5 * 4096 + 77).unwrap();
        let before = fs::read(&to).unwrap();
        write_pages(&to, &[1, 3], 4096).unwrap();
        let after = fs::read(&to).unwrap();
        let changed = |page: &usize| before[page * 4096..][..4096] != after[page * 4096..][..4096];
        assert_eq!((0..5).filter(changed).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(before[5 * 4096..], after[5 * 4096..]);
        replace_file(dir.path(), "to", b"new").unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
