//! Finds the file to which a place on the disk belongs.

use anyhow::Result;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// FS_IOC_FIEMAP from `<linux/fs.h>`.
const FIEMAP: libc::Ioctl = 0xC020_660B;
const EXTENTS_MAX: usize = 256;
/// The place is not known, not yet allocated, or not a place on the disk.
const UNKNOWN: u32 = 0x2 | 0x4 | 0x8 | 0x200;
const LAST: u32 = 0x1;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap`, with room for results.
#[repr(C)]
struct Request {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Extent; EXTENTS_MAX],
}

/// A run of a file's bytes on the disk.
#[derive(Clone, Debug)]
pub(super) struct Stretch {
    disk: u64,
    bytes: u64,
    path: PathBuf,
    offset: u64,
}

/// The places of a mounted file system's files. btrfs returns its own addresses, not the disk's.
pub(super) fn map(root: &Path) -> Vec<Stretch> {
    let (mut stretches, mut left) = (Vec::new(), vec![root.to_owned()]);
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                left.push(entry.path());
            } else if kind.is_file() {
                let name = entry.path().strip_prefix(root).unwrap_or(&entry.path()).to_owned();
                // A file that cannot be queried is not named in the report.
                let _ = of_file(&entry.path(), &name, &mut stretches);
            }
        }
    }
    stretches
}

fn of_file(path: &Path, name: &Path, stretches: &mut Vec<Stretch>) -> Result<()> {
    let file = File::open(path)?;
    let mut start = 0;
    loop {
        let mut request = Request {
            start,
            length: u64::MAX - start,
            flags: 0,
            mapped: 0,
            count: EXTENTS_MAX as u32,
            reserved: 0,
            extents: [Extent::default(); EXTENTS_MAX],
        };
        // SAFETY: `Request` has the layout of a `fiemap` with room for `count` extents.
        if unsafe { libc::ioctl(file.as_raw_fd(), FIEMAP, &mut request) } < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        let found = &request.extents[..request.mapped as usize];
        for extent in found.iter().filter(|e| e.flags & UNKNOWN == 0) {
            let Extent { logical, physical, length, .. } = *extent;
            stretches.push(Stretch { disk: physical, bytes: length, path: name.to_owned(), offset: logical });
        }
        match found.last() {
            Some(last) if last.flags & LAST == 0 => start = last.logical + last.length,
            _ => return Ok(()),
        }
    }
}

/// The file at a place on the disk, and the offset in it.
pub(super) fn find(stretches: &[Stretch], disk: u64) -> Option<(&Path, u64)> {
    let stretch = stretches.iter().find(|s| (s.disk..s.disk + s.bytes).contains(&disk))?;
    Some((&stretch.path, stretch.offset + (disk - stretch.disk)))
}
