//! Read-only view of a file that does not change any more, at a chosen address if needed.

use rustix::io::Errno;
use rustix::mm::{self, MapFlags, ProtFlags};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// Address space with a file at its beginning. Stores to it stay private to this process.
pub struct ReadMapping {
    address: NonNull<u8>,
    space: usize,
    len: usize,
}

// SAFETY: an address; the memory is this value's.
unsafe impl Send for ReadMapping {}
// SAFETY: as above.
unsafe impl Sync for ReadMapping {}

impl ReadMapping {
    /// Reserves address space of this size, at this address if one is given. `EEXIST` if the address is in use.
    pub fn reserve(at: Option<usize>, space: usize) -> io::Result<ReadMapping> {
        let space = space.next_multiple_of(rustix::param::page_size()).max(rustix::param::page_size());
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let (hint, flags) = at.map_or((0, flags), |at| (at, flags | MapFlags::FIXED_NOREPLACE));
        // SAFETY: a new mapping, which replaces nothing.
        let found = unsafe { mm::mmap_anonymous(hint as *mut _, space, ProtFlags::empty(), flags)? };
        let mapping = ReadMapping { address: NonNull::new(found.cast()).ok_or(Errno::NOMEM)?, space, len: 0 };
        match at {
            // A kernel before 4.17 does not know the flag.
            Some(at) if mapping.address.as_ptr() as usize != at => Err(Errno::EXIST.into()),
            _ => Ok(mapping),
        }
    }

    /// Shows the first bytes of a file, and replaces an earlier view.
    pub(crate) fn show(&mut self, file: BorrowedFd<'_>, len: usize) -> io::Result<()> {
        if len > self.space {
            return Err(Errno::NOMEM.into());
        }
        let (at, both) = (self.address.as_ptr(), ProtFlags::READ | ProtFlags::WRITE);
        if len > 0 {
            // SAFETY: within the address space of this value, of which nobody has a reference.
            unsafe {
                mm::mmap(at.cast(), len, both, MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE, file, 0)?
            };
        }
        let (shown, before) = (len.next_multiple_of(rustix::param::page_size()), self.len);
        if before > shown {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
            // SAFETY: as above.
            unsafe { mm::mmap_anonymous(at.add(shown).cast(), before - shown, ProtFlags::empty(), flags)? };
        }
        self.len = len;
        Ok(())
    }

    /// Its address.
    pub fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// The bytes that are shown.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped as long as this value lives, and changed by `show` alone.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len) }
    }
}

impl Drop for ReadMapping {
    fn drop(&mut self) {
        // SAFETY: this value's own, of which nobody has a reference.
        let _ = unsafe { mm::munmap(self.address.as_ptr().cast(), self.space) };
    }
}
