//! A mapping whose pages are a file in memory, so that the next process finds the stored bytes.
//!
//! The data file never shows through: its contents are copied when they are shown. Stored pages are found as in private
//! mappings, with one difference: a page that is not in the page table counts as stored to. The system may have evicted
//! it after the store, as it does with pages of files, and then forgets the mark.

use crate::descriptors::descriptor::Fd;
use crate::mapping::linux_map::LinuxMapping;
use crate::mapping::still_copy::StillCopy;
use crate::mapping::{MapRequest, Mapping, Piece, TrackerKind};
use crate::memory::buffer::AlignedBuf;
use crate::storage::File;
use crate::storage::read_write::read_full_at;
use parking_lot::Mutex;
use rustix::fs::{self, FallocateFlags, SeekFrom};
use rustix::io::Errno;
use rustix::mm::MapFlags;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes before the mapped part of the file in memory. They take memory only as they are reserved.
pub const LIVE_HEAD_BYTES: usize = 68 << 20;
/// Bytes that are copied at once.
const PIECE_BYTES: usize = 1 << 20;

pub(crate) struct SharedMapping {
    inner: LinuxMapping,
    path: PathBuf,
    file: Fd,
    data: Arc<dyn File>,
    /// How the file is mapped.
    how: MapFlags,
    /// End of the part that is allocated and mapped.
    end: Mutex<u64>,
}

/// The offset in the memory file of an offset of the mapping.
fn in_file(offset: u64) -> u64 {
    LIVE_HEAD_BYTES as u64 + offset
}

/// Allocates a range, so that stores to it find memory.
pub(crate) fn allocate(file: &OwnedFd, offset: u64, bytes: u64) -> io::Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current.unwrap_or(u64::MAX);
    let end = offset + bytes;
    // Refused here, because the kernel would send `SIGXFSZ`, which kills the process.
    if end > limit && end > fs::fstat(file)?.st_size as u64 {
        return Err(Errno::FBIG.into());
    }
    match bytes {
        0 => Ok(()),
        _ => Ok(rustix::io::retry_on_intr(|| fs::fallocate(file, FallocateFlags::empty(), offset, bytes))?),
    }
}

/// Writes bytes whose place is allocated.
pub(crate) fn write_all(file: &Fd, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let fd = file.own()?;
        match rustix::io::retry_on_intr(|| rustix::io::pwrite(fd, bytes, at))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => {
                bytes = &bytes[n..];
                at += n as u64;
            }
        }
    }
    Ok(())
}

impl SharedMapping {
    pub(crate) fn new(
        file: OwnedFd,
        path: &Path,
        data: Arc<dyn File>,
        request: &MapRequest,
        present: u64,
        how: MapFlags,
    ) -> io::Result<SharedMapping> {
        let inner = LinuxMapping::of(file.try_clone()?, request)?;
        let (path, file, end) = (path.to_owned(), Fd::new(file)?, Mutex::new(0));
        let mapping = SharedMapping { inner, path, file, data, how, end };
        mapping.reach(present)?;
        Ok(mapping)
    }

    /// Allocates and maps memory up to this offset. Returns the previous end.
    fn reach(&self, wanted: u64) -> io::Result<u64> {
        let mut end = self.end.lock();
        let old = *end;
        if wanted > old {
            let file = self.file.own()?.try_clone_to_owned()?;
            // Memory that another process left is usually allocated completely; checking that is faster than allocating
            // again.
            let hole = fs::seek(&file, SeekFrom::Hole(in_file(old)));
            if hole.map_or(true, |hole| hole < in_file(wanted)) {
                allocate(&file, in_file(old), wanted - old).map_err(|e| self.full(e, wanted))?;
            }
            self.inner.map_shared(old..wanted, in_file(old), self.how)?;
            *end = wanted;
        }
        Ok(old)
    }

    /// Names the full file system, which is not that of the data file.
    fn full(&self, e: io::Error, wanted: u64) -> io::Error {
        match Errno::from_io_error(&e) {
            Some(Errno::NOSPC | Errno::DQUOT | Errno::NOMEM) => io::Error::new(
                io::ErrorKind::StorageFull,
                format!(
                    "no room for {wanted} bytes of live memory in {}; nothing was lost. Make room there, make that tmpfs \
                     larger, or set UNTORN_LIVE_DIR to a directory in another one",
                    self.path.display()
                ),
            ),
            _ => e,
        }
    }

    fn write_zeros(&self, range: Range<u64>) -> io::Result<()> {
        let zeros = AlignedBuf::zeroed_up_to(PIECE_BYTES.min(range.end.saturating_sub(range.start) as usize));
        let mut at = range.start;
        while at < range.end {
            let n = (range.end - at).min(zeros.len() as u64);
            write_all(&self.file, &zeros[..n as usize], in_file(at))?;
            at += n;
        }
        Ok(())
    }
}

impl Mapping for SharedMapping {
    fn address(&self) -> *mut u8 {
        self.inner.address()
    }

    fn address_space(&self) -> u64 {
        self.inner.address_space()
    }

    fn page_bytes(&self) -> u64 {
        self.inner.page_bytes()
    }

    fn tracker(&self) -> TrackerKind {
        self.inner.tracker()
    }

    /// Copies the range from the data file.
    fn show(&self, range: Range<u64>) -> io::Result<()> {
        self.reach(range.end)?;
        let mut buf = AlignedBuf::zeroed_up_to(PIECE_BYTES.min((range.end - range.start) as usize));
        let mut at = range.start;
        while at < range.end {
            let n = (range.end - at).min(buf.len() as u64) as usize;
            let read = read_full_at(&*self.data, &mut buf[..n], at)?;
            buf[read..n].fill(0);
            write_all(&self.file, &buf[..n], in_file(at))?;
            at += n as u64;
        }
        Ok(())
    }

    fn blank(&self, range: Range<u64>) -> io::Result<()> {
        let there = self.reach(range.end)?.min(range.end);
        self.write_zeros(range.start.min(there)..there)
    }

    fn hide(&self, range: Range<u64>) -> io::Result<()> {
        let mut end = self.end.lock();
        if range.end < *end {
            return Err(Errno::INVAL.into());
        }
        if range.start < *end {
            self.inner.hide(range.start..*end)?;
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fs::fallocate(self.file.own()?, flags, in_file(range.start), *end - range.start)?;
            *end = range.start;
        }
        Ok(())
    }

    /// Does nothing, because nothing needs to be read ahead.
    fn populate(&self, _range: Range<u64>) -> io::Result<()> {
        Ok(())
    }

    fn changed(&self, within: Range<u64>, into: &mut Vec<Range<u64>>) -> io::Result<()> {
        self.inner.changed_or_absent(within, u64::MAX, &mut |range| match into.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => into.push(range),
        })
    }

    fn copy_changed(&self, within: Range<u64>, most: u64, into: &mut StillCopy) -> io::Result<bool> {
        // Ask for one more than `most`, to detect that there are more.
        self.inner.changed_or_absent(within, most.saturating_add(1), &mut |range| into.push(range))?;
        // With another tracker, a second search would find no fewer pages, so copy all.
        if into.pages() > most && self.tracker() == TrackerKind::Scan {
            return Ok(false);
        }
        // SAFETY: accessible, like every range that a caller asks about; the caller that stopped the threads ensures
        // that nobody stores.
        unsafe { into.copy_from(self.inner.address()) };
        Ok(true)
    }

    fn private(&self, within: Range<u64>, into: &mut Vec<Range<u64>>) -> io::Result<()> {
        if !within.is_empty() {
            into.push(within);
        }
        Ok(())
    }

    fn copy_out(&self, pieces: &mut [Piece<'_>]) -> io::Result<()> {
        self.inner.copy_out(pieces)
    }

    fn copy_in(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner.copy_in(offset, bytes)
    }

    fn leave(&mut self) {
        self.inner.leave();
    }
}
