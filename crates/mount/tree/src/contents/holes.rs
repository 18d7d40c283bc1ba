//! Where contents have holes: what lies in the object's data file, under what the log and uncommitted changes have.

use crate::interface::file_tree::{Errno, Ino, Result};
use crate::table::inode::Place;
use crate::tree::core::{Core, object_path, refused};
use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno as SystemErrno;
use std::ops::Range;
use std::os::fd::OwnedFd;

/// Smaller files count as having no holes: to ask costs more than it tells.
const SMALL: u64 = 1 << 20;

/// Blocks of zeros of a small file are holes.
const BLOCK: usize = 4096;

/// The data file of an object.
enum Below {
    File(OwnedFd),
    /// The commit that makes it is on its way.
    Nothing,
    /// All of it counts as data.
    Unknown,
}

/// Contents of a file, as far as holes go.
pub(crate) struct Holes {
    data: Below,
    bytes: Vec<Range<u64>>,
    zeros: Vec<Range<u64>>,
    /// Where the object ends; the rest of the file is a hole.
    end: u64,
}

/// The range with a place, or else the first one after it.
fn at_or_after(ranges: &[Range<u64>], at: u64) -> Option<&Range<u64>> {
    ranges.get(ranges.partition_point(|range| range.end <= at))
}

impl Holes {
    /// Of a file; `None` if all of it is a hole.
    pub fn of(core: &mut Core, ino: Ino) -> Result<Option<Holes>> {
        let Some(object) = core.object(ino)? else {
            let mut contents = vec![0; core.bytes_len(ino)? as usize];
            core.read_bytes(ino, 0, &mut contents)?;
            // What was allocated, and what is cut off and longer again, may be zeros behind the last byte.
            contents.truncate(contents.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
            let blocks = contents.chunks(BLOCK).zip((0..).step_by(BLOCK));
            let data = blocks.filter(|(block, _)| block.iter().any(|byte| *byte != 0));
            let bytes: Vec<Range<u64>> = data.map(|(block, at)| at..at + block.len() as u64).collect();
            let end = bytes.last().map_or(0, |last| last.end);
            return Ok((end > 0).then_some(Holes { data: Below::Nothing, bytes, zeros: Vec::new(), end }));
        };
        // In this order: what a checkpoint moves meanwhile is seen in one of the two.
        let (bytes, zeros) = refused(object.unapplied())?;
        let end = refused(object.len())?;
        let store = core.store.path();
        let open = |path| match rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => Below::File(file),
            Err(SystemErrno::NOENT) => Below::Nothing,
            Err(_) => Below::Unknown,
        };
        // A store on the simulated disk has no path.
        let data = if store.as_os_str().is_empty() { Below::Unknown } else { open(store.join(object_path(ino))) };
        Ok(Some(Holes { data, bytes, zeros, end }))
    }

    /// The first place in the data file, from `at` on, that is data there.
    fn data_below(&self, at: u64) -> Option<u64> {
        let file = match &self.data {
            Below::File(file) => file,
            Below::Nothing => return None,
            Below::Unknown => return Some(at),
        };
        match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Err(SystemErrno::NXIO) => None,
            // A file system that knows nothing of holes.
            found => Some(found.unwrap_or(at)),
        }
    }

    fn hole_below(&self, at: u64) -> u64 {
        match &self.data {
            Below::File(file) => rustix::fs::seek(file, SeekFrom::Hole(at)).unwrap_or(self.end),
            Below::Nothing => at,
            Below::Unknown => self.end,
        }
    }

    /// The first byte from `at` on that may be something but a hole.
    pub fn next_data(&self, at: u64) -> Option<u64> {
        let changed = at_or_after(&self.bytes, at).map(|range| range.start.max(at));
        let mut below = self.data_below(at);
        while let Some(found) = below.filter(|found| *found < changed.unwrap_or(self.end)) {
            match at_or_after(&self.zeros, found).filter(|zeros| zeros.start <= found) {
                Some(zeros) => below = self.data_below(zeros.end),
                None => break,
            }
        }
        changed.into_iter().chain(below).min().filter(|found| *found < self.end)
    }

    /// The first place from `at` on that is a hole; the end of the object is one.
    pub fn next_hole(&self, mut at: u64) -> u64 {
        while at < self.end {
            if let Some(bytes) = at_or_after(&self.bytes, at).filter(|bytes| bytes.start <= at) {
                at = bytes.end;
                continue;
            }
            let is_zero = at_or_after(&self.zeros, at).is_some_and(|zeros| zeros.start <= at);
            if is_zero || self.data_below(at) != Some(at) {
                return at;
            }
            let changed = [&self.bytes, &self.zeros].into_iter().filter_map(|ranges| at_or_after(ranges, at));
            at = changed.map(|range| range.start).chain([self.hole_below(at)]).min().unwrap_or(self.end).max(at + 1);
        }
        at.min(self.end)
    }

    /// Blocks of 512 bytes that are taken, about.
    pub fn blocks(&self, size: u64) -> u64 {
        let below = match &self.data {
            Below::File(file) => rustix::fs::fstat(file).ok().and_then(|about| u64::try_from(about.st_blocks).ok()),
            Below::Nothing => Some(0),
            Below::Unknown => None,
        };
        let below = below.unwrap_or(size.div_ceil(512));
        let changed: u64 = self.bytes.iter().map(|range| range.end - range.start).sum();
        (below + changed.div_ceil(512)).min(size.div_ceil(4096) * 8)
    }
}

impl Core {
    /// Blocks that a file takes, if it is one of those that may have holes.
    pub fn blocks_of(&mut self, ino: Ino) -> Option<u64> {
        let inode = self.inodes.get(&ino)?;
        let size = inode.size();
        if !inode.is_file() || inode.place() != Place::Object || size < SMALL {
            return None;
        }
        Holes::of(self, ino).ok()?.map(|holes| holes.blocks(size))
    }

    /// `lseek` with `SEEK_DATA` and `SEEK_HOLE`.
    pub fn seek(&mut self, ino: Ino, offset: u64, whence: i32) -> Result<u64> {
        let size = self.inode(ino)?.size();
        if offset >= size {
            return Err(Errno(libc::ENXIO));
        }
        let holes = Holes::of(self, ino)?;
        let data = |at| holes.as_ref().and_then(|holes| holes.next_data(at)).filter(|found| *found < size);
        match whence {
            libc::SEEK_DATA => data(offset).ok_or(Errno(libc::ENXIO)),
            libc::SEEK_HOLE => Ok(holes.as_ref().map_or(offset, |h| h.next_hole(offset).clamp(offset, size))),
            _ => Err(Errno(libc::EINVAL)),
        }
    }
}
