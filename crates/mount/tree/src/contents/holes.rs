//! Finds the holes of a file: those of the object's data file, overlaid by changes in the log and uncommitted changes.

use crate::interface::file_tree::{Errno, Ino, Result};
use crate::table::inode::Place;
use crate::tree::core::{Core, object_path, refused};
use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno as SystemErrno;
use std::ops::Range;
use std::os::fd::OwnedFd;

/// Smaller files count as having no holes: finding them costs more than it saves.
const SMALL: u64 = 1 << 20;

/// Blocks of this size that have only zeros are holes of a small file.
const BLOCK: usize = 4096;

/// The data file of an object.
enum Below {
    File(OwnedFd),
    /// There is no data file yet: the commit that makes it is on its way.
    Nothing,
    /// The data file cannot be opened: all of it counts as data.
    Unknown,
}

/// The data and the holes of a file.
pub(crate) struct Holes {
    data: Below,
    bytes: Vec<Range<u64>>,
    zeros: Vec<Range<u64>>,
    /// The end of the object; the rest of the file is a hole.
    end: u64,
}

/// The range that contains a position, or else the first one after it.
fn at_or_after(ranges: &[Range<u64>], at: u64) -> Option<&Range<u64>> {
    ranges.get(ranges.partition_point(|range| range.end <= at))
}

impl Holes {
    /// Finds the holes of a file; `None` if all of it is a hole.
    pub fn of(core: &mut Core, ino: Ino) -> Result<Option<Holes>> {
        let Some(object) = core.object(ino)? else {
            let mut contents = vec![0; core.bytes_len(ino)? as usize];
            core.read_bytes(ino, 0, &mut contents)?;
            // Zeros at the end may come from an allocation, or from truncating the file and extending it again.
            contents.truncate(contents.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
            let blocks = contents.chunks(BLOCK).zip((0..).step_by(BLOCK));
            let data = blocks.filter(|(block, _)| block.iter().any(|byte| *byte != 0));
            let bytes: Vec<Range<u64>> = data.map(|(block, at)| at..at + block.len() as u64).collect();
            let end = bytes.last().map_or(0, |last| last.end);
            return Ok((end > 0).then_some(Holes { data: Below::Nothing, bytes, zeros: Vec::new(), end }));
        };
        // Read before the data file: bytes that a checkpoint moves meanwhile are then seen in one of the two.
        let (bytes, zeros) = refused(object.unapplied())?;
        let end = refused(object.len())?;
        let store = core.store.path();
        let open = |path| match rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => Below::File(file),
            Err(SystemErrno::NOENT) => Below::Nothing,
            Err(_) => Below::Unknown,
        };
        debug_assert!(
            [&bytes, &zeros].into_iter().all(|ranges| ranges.is_sorted_by(|one, next| one.end <= next.start)),
            "changed ranges of inode {ino} are not in order: {bytes:?}, {zeros:?}"
        );
        // A store on the simulated disk has no path.
        let data = if store.as_os_str().is_empty() { Below::Unknown } else { open(store.join(object_path(ino))) };
        Ok(Some(Holes { data, bytes, zeros, end }))
    }

    /// The first position from `at` on that is data in the data file.
    fn data_below(&self, at: u64) -> Option<u64> {
        let file = match &self.data {
            Below::File(file) => file,
            Below::Nothing => return None,
            Below::Unknown => return Some(at),
        };
        match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Err(SystemErrno::NXIO) => None,
            // The file system does not support holes.
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

    /// The first byte from `at` on that may be data.
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

    /// The first position from `at` on that is a hole; the end of the object is one.
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

    /// The approximate number of blocks of 512 bytes that are in use.
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
    /// Blocks that a file uses, if the file may have holes.
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
