//! What import and export share: contents with their holes, what is told, and what cannot be kept.

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
use untorn_tree::{Ino, Kind, Pull};

/// Copied at a time: the user is told in between.
const PART: u64 = 16 << 20;
const TELL_AFTER: Duration = Duration::from_secs(2);
const TELL_AGAIN: Duration = Duration::from_secs(10);

/// Attributes that are access lists begin so.
pub const ACCESS_LISTS: &[u8] = b"system.posix_acl_";

/// No kernel has anything of the tree.
pub struct NoKernel;

impl Pull for NoKernel {
    fn pull(&self, _: Ino) -> untorn_tree::Result<()> {
        Ok(())
    }
}

/// What was copied, and what was left out.
pub struct Report {
    doing: &'static str,
    tell: Instant,
    files: u64,
    directories: u64,
    others: u64,
    bytes: u64,
    /// How often, and of what first.
    left_out: BTreeMap<&'static str, (u64, PathBuf)>,
}

impl Report {
    /// Nothing yet.
    pub fn new(doing: &'static str) -> Report {
        let tell = Instant::now() + TELL_AFTER;
        Report { doing, tell, files: 0, directories: 0, others: 0, bytes: 0, left_out: BTreeMap::new() }
    }

    /// One more.
    pub fn add(&mut self, kind: Kind) {
        match kind {
            Kind::File => self.files += 1,
            Kind::Directory => self.directories += 1,
            _ => self.others += 1,
        }
        self.progress(0);
    }

    /// So many more bytes.
    pub fn progress(&mut self, bytes: u64) {
        self.bytes += bytes;
        if Instant::now() >= self.tell {
            self.tell = Instant::now() + TELL_AGAIN;
            tell!("untorn-mount: {}: {}", self.doing, self.counts());
        }
    }

    /// Something of this file could not be kept.
    pub fn leave_out(&mut self, what: &'static str, path: &Path) {
        self.left_out.entry(what).or_insert_with(|| (0, path.to_owned())).0 += 1;
    }

    /// Numbers.
    pub fn counts(&self) -> String {
        let others = match self.others {
            0 => String::new(),
            n => format!(", {}", count(n, "other", "others")),
        };
        let (files, directories) =
            (count(self.files, "file", "files"), count(self.directories, "directory", "directories"));
        format!("{files}, {directories}{others}, {}", bytes(self.bytes))
    }

    /// An error if anything was.
    pub fn refuse_what_was_left_out(&self) -> Result<()> {
        match self.left_out.iter().next() {
            None => Ok(()),
            Some((what, (_, first))) => bail!("{}: {what}, and would be lost; this is refused", first.display()),
        }
    }

    /// Says what was left out, a line for each sort.
    pub fn say_what_was_left_out(&self) {
        for (what, (times, first)) in &self.left_out {
            tell!("untorn-mount: {what}: {}, the first at {}", count(*times, "time", "times"), first.display());
        }
    }
}

/// A path that leads to what a descriptor is of, and, if that is a directory, into it.
pub fn path_of(descriptor: impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd()))
}

/// Copies `size` bytes of a file into an empty one: shares the blocks if the file system can, and keeps holes.
pub fn contents(from: &File, to: &File, size: u64, report: &mut Report) -> Result<()> {
    // The whole file, as the kernel asks for whole blocks.
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

/// The next range at or after `at` that is no hole.
fn next_data(from: &File, at: u64, size: u64) -> Result<Option<(u64, u64)>> {
    if at >= size {
        return Ok(None);
    }
    let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
        Err(Errno::NXIO) => return Ok(None),
        // A file system that knows nothing of holes.
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
            // Not between these two, or not of this file: by memory.
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

/// The number of bytes; 0 at the end of the file.
fn by_memory(from: &File, to: &File, at: u64, most: u64) -> Result<u64> {
    let mut buffer = vec![0; most.min(1 << 20) as usize];
    let len = from.read_at(&mut buffer, at).context("cannot read")?;
    to.write_all_at(&buffer[..len], at).context("cannot write")?;
    Ok(len as u64)
}

/// Names and values of the extended attributes of what a path of [`path_of`] leads to.
pub fn attributes(path: &Path) -> rustix::io::Result<Vec<(OsString, Vec<u8>)>> {
    all_attributes(|list| rustix::fs::listxattr(path, list), |name, value| rustix::fs::getxattr(path, name, value))
}

/// Those of what a path names; a symbolic link has its own.
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
            // Gone meanwhile, or listed and not shown.
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
