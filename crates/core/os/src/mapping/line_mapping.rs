//! The beginning of a file on byte-addressable memory, written by stores and without calls.
//!
//! `MAP_SYNC` promises that a page which can be stored to stays where it is after a power cut: the file system has its
//! own log on the disk before it lets the first store through. File systems without direct access to memory refuse the
//! flag, and so does memory that needs a call as a flush.
//!
//! A store to a page that the file has lost raises `SIGBUS`, which kills the process. So pages are made ready before they
//! are stored to, by a call that returns an error in that case; from then on only a program that cuts the file under an
//! open store does such harm.

use crate::descriptors::fork::process_generation;
use crate::mapping::line_stores::{LINE_BYTES, can_store, fence, store};
use crate::sync_point::SyncPoint;
use rustix::fs;
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes that are made ready for stores at once: a huge page.
const READY_BYTES: usize = 2 << 20;

/// The beginning of a file on byte-addressable memory.
pub trait Lines: Send + Sync {
    /// Stores bytes, whole lines of [`LINE_BYTES`], at an offset that is a multiple of it. Until the fence, a power cut
    /// may leave any of the lines as it was, or torn between aligned parts of eight bytes. Others that read the file
    /// see the bytes at once.
    fn store(&self, bytes: &[u8], at: u64) -> io::Result<()>;
    /// Copies bytes of any number to any offset, as a write by a call does: others that read the file see them at once,
    /// and only its flush makes them durable.
    fn copy(&self, bytes: &[u8], at: u64) -> io::Result<()>;
    /// Makes durable what this thread has stored. Stores of another thread wait for its own fence.
    fn fence(&self, point: SyncPoint) -> io::Result<()>;
}

/// Memory that shows a file.
pub(crate) struct LineMapping {
    address: NonNull<u8>,
    len: usize,
    /// Pages before this offset are ready for stores.
    ready: AtomicUsize,
    generation: u64,
}

// SAFETY: an address of memory that only this value unmaps. Threads that store to the same bytes are as wrong as threads
// that write to the same bytes of a file, and do no other harm: nobody loads from it.
unsafe impl Send for LineMapping {}
// SAFETY: as above.
unsafe impl Sync for LineMapping {}

impl LineMapping {
    /// Maps the first bytes of a file, which has them. An error: the file is not on such memory.
    pub(crate) fn of(file: BorrowedFd<'_>, len: u64) -> io::Result<LineMapping> {
        LineMapping::with(file, len, MapFlags::SHARED_VALIDATE | MapFlags::SYNC)
    }

    /// Maps a file of any file system: like memory, except that a power cut takes everything.
    pub(crate) fn for_trial(file: BorrowedFd<'_>, len: u64) -> io::Result<LineMapping> {
        LineMapping::with(file, len, MapFlags::SHARED)
    }

    fn with(file: BorrowedFd<'_>, len: u64, flags: MapFlags) -> io::Result<LineMapping> {
        if !can_store() {
            return Err(Errno::OPNOTSUPP.into());
        }
        if len == 0 || !len.is_multiple_of(LINE_BYTES as u64) {
            return Err(Errno::INVAL.into());
        }
        let (len, both) = (len as usize, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping, which replaces nothing.
        let found = unsafe { mm::mmap(std::ptr::null_mut(), len, both, flags, file, 0)? };
        let address = NonNull::new(found.cast()).ok_or(Errno::NOMEM)?;
        let mapping = LineMapping { address, len, ready: AtomicUsize::new(0), generation: process_generation() };
        // Asked last: most file systems refuse the mapping.
        if len as u64 > fs::fstat(file)?.st_size as u64 { Err(Errno::INVAL.into()) } else { Ok(mapping) }
    }

    /// The place of these bytes in memory, ready for stores.
    fn place(&self, bytes: &[u8], at: u64) -> io::Result<*mut u8> {
        let end = at.checked_add(bytes.len() as u64).filter(|end| *end <= self.len as u64).ok_or(Errno::INVAL)?;
        // The memory of a forked child's parent is not the child's.
        if self.generation != process_generation() {
            return Err(Errno::BADF.into());
        }
        self.make_ready(end as usize)?;
        // SAFETY: within the mapping.
        Ok(unsafe { self.address.as_ptr().add(at as usize) })
    }

    /// Makes pages ready for stores up to this offset: `EFAULT` if the file has lost them, `EHWPOISON` if the memory has.
    fn make_ready(&self, end: usize) -> io::Result<()> {
        let from = self.ready.load(Relaxed);
        if end <= from {
            return Ok(());
        }
        let to = end.next_multiple_of(READY_BYTES).min(self.len);
        // SAFETY: within the mapping; the call changes no contents.
        let done = rustix::io::retry_on_intr(|| unsafe {
            mm::madvise(self.address.as_ptr().add(from).cast(), to - from, Advice::LinuxPopulateWrite)
        });
        match done {
            // Before Linux 5.14, the stores themselves do it.
            Ok(()) | Err(Errno::INVAL) => {
                self.ready.fetch_max(to, Relaxed);
                Ok(())
            }
            Err(e) => Err(e.into()),
        }
    }
}

impl Lines for LineMapping {
    fn store(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let (lines, rest) = bytes.as_chunks();
        if !rest.is_empty() || !at.is_multiple_of(LINE_BYTES as u64) {
            return Err(Errno::INVAL.into());
        }
        // SAFETY: whole lines within the mapping, which nothing loads from.
        unsafe { store(self.place(bytes, at)?, lines) };
        Ok(())
    }

    fn copy(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        // SAFETY: bytes within the mapping, which nothing loads from.
        unsafe { self.place(bytes, at)?.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    fn fence(&self, _point: SyncPoint) -> io::Result<()> {
        if self.generation != process_generation() {
            return Err(Errno::BADF.into());
        }
        fence();
        Ok(())
    }
}

impl Drop for LineMapping {
    fn drop(&mut self) {
        // SAFETY: this value's own memory, of which nobody has a reference.
        let _ = unsafe { mm::munmap(self.address.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    const LEN: usize = 3 * READY_BYTES / 2;
    const POINT: SyncPoint = SyncPoint::new("TEST", "A test.");

    fn file() -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(LEN as u64).unwrap();
        file
    }

    /// The lines of the file; `None` on a processor without the instructions.
    fn mapping(file: &File) -> Option<LineMapping> {
        can_store().then(|| LineMapping::for_trial(file.as_fd(), LEN as u64).unwrap())
    }

    #[test]
    fn stored_lines_are_in_the_file() {
        let (file, mut expected) = (file(), vec![0; LEN]);
        let Some(lines) = mapping(&file) else { return };
        for nth in 1..200 {
            let len = nth * 37 % 200 * LINE_BYTES;
            let at = nth * 7919 % ((LEN - len) / LINE_BYTES) * LINE_BYTES;
            // Not aligned in memory, unlike in the file.
            let bytes = vec![nth as u8; len + 1];
            lines.store(&bytes[1..], at as u64).and_then(|()| lines.fence(POINT)).unwrap();
            expected[at..at + len].fill(nth as u8);
            let (at, len) = (nth * 7907 % (LEN - 200), nth % 200);
            lines.copy(&bytes[..len.min(bytes.len())], at as u64).unwrap();
            expected[at..at + len.min(bytes.len())].fill(nth as u8);
        }
        drop(lines);
        let mut found = vec![1; LEN];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found == expected);
    }

    #[test]
    fn other_ranges_are_refused() {
        let file = file();
        let Some(lines) = mapping(&file) else { return };
        let line = [1; LINE_BYTES];
        let refused = |bytes: &[u8], at| lines.store(bytes, at).unwrap_err().raw_os_error();
        for (bytes, at) in [(&line[..], 8), (&line[1..], 0), (&line[..], LEN as u64), (&line[..], u64::MAX - 63)] {
            assert_eq!(refused(bytes, at), Some(Errno::INVAL.raw_os_error()), "{} bytes at {at}", bytes.len());
        }
        for at in [LEN as u64 - 63, u64::MAX - 63] {
            assert_eq!(lines.copy(&line, at).unwrap_err().raw_os_error(), Some(Errno::INVAL.raw_os_error()), "at {at}");
        }
        for len in [0, 8, LEN as u64 + 64] {
            assert!(LineMapping::for_trial(file.as_fd(), len).is_err(), "{len} bytes");
        }
    }

    /// Without the call that makes pages ready, the store would kill the process (Linux 5.14 or newer).
    #[test]
    fn a_file_that_was_cut_is_an_error() {
        let file = file();
        let Some(lines) = mapping(&file) else { return };
        // SAFETY: within the mapping; the call changes no contents.
        let made_ready = unsafe { mm::madvise(lines.address.as_ptr().cast(), READY_BYTES, Advice::LinuxPopulateWrite) };
        if made_ready.is_err() {
            return println!("skipped: {made_ready:?}");
        }
        lines.store(&[1; LINE_BYTES], 0).unwrap();
        file.set_len(READY_BYTES as u64).unwrap();
        let Err(e) = lines.store(&[1; LINE_BYTES], READY_BYTES as u64) else { panic!("stored behind the end") };
        assert_eq!(e.raw_os_error(), Some(Errno::FAULT.raw_os_error()));
    }

    #[test]
    fn a_forked_child_stores_nothing() {
        let file = file();
        let Some(lines) = mapping(&file) else { return };
        // Descriptors are registered with the handler that counts processes.
        let _fd = crate::descriptors::descriptor::Fd::new(file.try_clone().unwrap().into()).unwrap();
        // SAFETY: the child calls nothing that needs a lock of another thread, and ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let line = [1; LINE_BYTES];
            let refused = [lines.store(&line, 0), lines.copy(&line, 0), lines.fence(POINT)].iter().all(Result::is_err);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!refused)) };
        }
        let mut status = 0;
        // SAFETY: `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        let mut byte = [1];
        file.read_exact_at(&mut byte, 0).unwrap();
        assert_eq!(byte, [0]);
    }

    #[test]
    fn a_file_elsewhere_is_not_mapped_as_memory() {
        assert!(LineMapping::of(file().as_fd(), LEN as u64).is_err(), "tmpfs and disks have no `MAP_SYNC`");
    }
}
