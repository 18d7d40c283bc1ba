//! Parts that import and export share: copying contents with their holes, and reporting progress and omissions.

use anyhow::{Context, Result, bail};
use rustix::fd::{AsFd, AsRawFd};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use untorn_terminal::table::{bytes, count};
use untorn_terminal::tell;
use untorn_tree::{Ino, KernelCache, Kind};

/// Bytes that are copied between two reports of progress.
const PART: u64 = 16 << 20;
const TELL_AFTER: Duration = Duration::from_secs(2);
const TELL_AGAIN: Duration = Duration::from_secs(10);

/// Prefix of the attributes that hold access lists.
pub const ACCESS_LISTS: &[u8] = b"system.posix_acl_";

/// A tree that is not mounted: no kernel caches any of it.
pub struct NoKernel;

impl KernelCache for NoKernel {
    fn write_back(&self, _: Ino) -> untorn_tree::Result<()> {
        Ok(())
    }
}

/// Counts of copied entries, and the omissions.
pub struct Report {
    doing: &'static str,
    tell: Instant,
    files: u64,
    directories: u64,
    others: u64,
    bytes: u64,
    /// Number of omissions of each kind, and the first path.
    left_out: BTreeMap<&'static str, (u64, PathBuf)>,
}

impl Report {
    /// Creates an empty report.
    pub fn new(doing: &'static str) -> Report {
        let tell = Instant::now() + TELL_AFTER;
        Report { doing, tell, files: 0, directories: 0, others: 0, bytes: 0, left_out: BTreeMap::new() }
    }

    /// Counts one more entry.
    pub fn add(&mut self, kind: Kind) {
        match kind {
            Kind::File => self.files += 1,
            Kind::Directory => self.directories += 1,
            _ => self.others += 1,
        }
        self.progress(0);
    }

    /// Counts further bytes, and reports progress now and then.
    pub fn progress(&mut self, bytes: u64) {
        self.bytes += bytes;
        if Instant::now() >= self.tell {
            self.tell = Instant::now() + TELL_AGAIN;
            tell!("untorn-mount: {}: {}", self.doing, self.counts());
        }
    }

    /// Notes that a part of this file could not be kept.
    pub fn leave_out(&mut self, what: &'static str, path: &Path) {
        self.left_out.entry(what).or_insert_with(|| (0, path.to_owned())).0 += 1;
    }

    /// The counts in words.
    pub fn counts(&self) -> String {
        let others = match self.others {
            0 => String::new(),
            n => format!(", {}", count(n, "other", "others")),
        };
        let (files, directories) =
            (count(self.files, "file", "files"), count(self.directories, "directory", "directories"));
        format!("{files}, {directories}{others}, {}", bytes(self.bytes))
    }

    /// An error if anything was left out.
    pub fn refuse_what_was_left_out(&self) -> Result<()> {
        match self.left_out.iter().next() {
            None => Ok(()),
            Some((what, (_, first))) => {
                bail!("{}: {what}; this is refused, because they would be lost", first.display())
            }
        }
    }

    /// Prints the omissions, one line for each kind.
    pub fn say_what_was_left_out(&self) {
        for (what, (times, first)) in &self.left_out {
            tell!("untorn-mount: {what}: {}, the first at {}", count(*times, "time", "times"), first.display());
        }
    }
}

/// A path that leads to the file or into the directory of a descriptor.
pub fn path_of(descriptor: impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd()))
}

/// Copies `size` bytes of a file into an empty one; shares the blocks if the file system can, and keeps holes.
pub fn contents(from: &File, to: &File, size: u64, report: &mut Report) -> Result<()> {
    // The whole file, because the kernel shares only whole blocks.
    let shared = rustix::fs::ioctl_ficlone(to, from).is_ok();
    if shared {
        report.progress(size);
    } else {
        let mut at = 0;
        while let Some((start, end)) = next_data(from, at, size)? {
            data(from, to, (start, end), report)?;
            at = end;
        }
    }
    to.set_len(size).context("cannot set the size")
}

/// The next range with data at or after `at`.
fn next_data(from: &File, at: u64, size: u64) -> Result<Option<(u64, u64)>> {
    if at >= size {
        return Ok(None);
    }
    let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
        Err(Errno::NXIO) => return Ok(None),
        // The file system does not support holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, size))),
        found => found.context("cannot look for holes")?,
    };
    let end = rustix::fs::seek(from, SeekFrom::Hole(start)).context("cannot look for holes")?;
    Ok((start < size).then_some((start, end.min(size))))
}

fn data(from: &File, to: &File, (mut at, end): (u64, u64), report: &mut Report) -> Result<()> {
    while at < end {
        let most = (end - at).min(PART);
        let (mut read, mut write) = (at, at);
        let copied = match rustix::fs::copy_file_range(from, Some(&mut read), to, Some(&mut write), most as usize) {
            // The kernel cannot copy between these two files, or not from this one, so the bytes go through memory.
            Ok(0) | Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) => {
                by_memory(from, to, at, most)?
            }
            copied => copied.context("cannot copy")? as u64,
        };
        if copied == 0 {
            return Ok(());
        }
        at += copied;
        report.progress(copied);
    }
    Ok(())
}

/// Copies through memory; returns the number of bytes, 0 at the end of the file.
fn by_memory(from: &File, to: &File, at: u64, most: u64) -> Result<u64> {
    let mut buffer = vec![0; most.min(1 << 20) as usize];
    let len = from.read_at(&mut buffer, at).context("cannot read")?;
    to.write_all_at(&buffer[..len], at).context("cannot write")?;
    Ok(len as u64)
}

/// Names and values of the extended attributes of a file, by a path from [`path_of`].
pub fn attributes(path: &Path) -> rustix::io::Result<Vec<(OsString, Vec<u8>)>> {
    all_attributes(|list| rustix::fs::listxattr(path, list), |name, value| rustix::fs::getxattr(path, name, value))
}

/// Names and values of the extended attributes at a path, those of a symbolic link itself included.
pub fn own_attributes(path: &Path) -> rustix::io::Result<Vec<(OsString, Vec<u8>)>> {
    all_attributes(|list| rustix::fs::llistxattr(path, list), |name, value| rustix::fs::lgetxattr(path, name, value))
}

fn all_attributes(
    names: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
    value_of: impl Fn(&OsStr, &mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Vec<(OsString, Vec<u8>)>> {
    let mut list = vec![0; 64 << 10];
    let len = match names(&mut list[..]) {
        Err(Errno::OPNOTSUPP) => 0,
        len => len?,
    };
    let mut found = Vec::new();
    for name in list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = OsStr::from_bytes(name);
        let mut value = vec![0; 64 << 10];
        match value_of(name, &mut value[..]) {
            Ok(len) => value.truncate(len),
            // The attribute was removed meanwhile, or is listed but cannot be read.
            Err(Errno::NODATA | Errno::OPNOTSUPP) => continue,
            Err(e) => return Err(e),
        }
        found.push((name.to_owned(), value));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn holes_stay_and_bytes_are_copied() {
        let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        from.write_all_at(b"first", 0).unwrap();
        from.write_all_at(b"far", 40 << 20).unwrap();
        from.set_len(80 << 20).unwrap();
        contents(&from, &to, 80 << 20, &mut Report::new("copying")).unwrap();
        let about = to.metadata().unwrap();
        assert_eq!(about.len(), 80 << 20);
        assert!(about.blocks() * 512 < 1 << 20, "{} blocks", about.blocks());
        let mut found = [0; 5];
        to.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"first");
        to.read_exact_at(&mut found, 40 << 20).unwrap();
        assert_eq!(&found, b"far\0\0");
    }
}
