//! Read-only view of the first bytes of a file, which other processes change.

use rustix::io::Errno;
use rustix::mm::{self, MapFlags, ProtFlags};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The first bytes of a file, which other processes may change.
pub trait View: Send + Sync {
    /// Reads the eight bytes at an offset, a multiple of eight, in native byte order. Later loads see no older bytes.
    fn load(&self, at: usize) -> u64;
}

/// Memory that shows a file.
pub(crate) struct SharedView {
    address: NonNull<u8>,
    len: usize,
}

// SAFETY: an address of memory that only this value unmaps, read by atomic loads.
unsafe impl Send for SharedView {}
// SAFETY: as above.
unsafe impl Sync for SharedView {}

impl SharedView {
    pub(crate) fn of(file: BorrowedFd<'_>, len: usize) -> io::Result<SharedView> {
        // SAFETY: a new mapping, which replaces nothing.
        let found = unsafe { mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0)? };
        Ok(SharedView { address: NonNull::new(found.cast()).ok_or(Errno::NOMEM)?, len })
    }
}

impl View for SharedView {
    fn load(&self, at: usize) -> u64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.len, "offset {at} in a view of {} bytes", self.len);
        // SAFETY: within the mapping, aligned, and read only by atomic loads.
        unsafe { (*self.address.as_ptr().add(at).cast::<AtomicU64>()).load(SeqCst) }
    }
}

impl Drop for SharedView {
    fn drop(&mut self) {
        // SAFETY: this value's own memory, of which nobody has a reference.
        let _ = unsafe { mm::munmap(self.address.as_ptr().cast(), self.len) };
    }
}
