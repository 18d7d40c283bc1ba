//! Large memory for a short time: separate pages, which are given back to the system at once.

use rustix::io::Errno;
use rustix::mm::{self, MapFlags, ProtFlags};
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Zeros that take no memory before they are written. Accepted by direct reads and writes.
pub struct PageMemory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: memory that nobody else has.
unsafe impl Send for PageMemory {}
// SAFETY: as above.
unsafe impl Sync for PageMemory {}

impl PageMemory {
    /// Allocates this many bytes. `ENOMEM` if the system does not have as much.
    pub fn new(len: usize) -> io::Result<PageMemory> {
        if len == 0 {
            return Ok(PageMemory { base: NonNull::dangling(), len });
        }
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping.
        let base = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), len, protection, flags)? };
        Ok(PageMemory { base: NonNull::new(base.cast()).ok_or(Errno::NOMEM)?, len })
    }
}

impl Deref for PageMemory {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: so many bytes are mapped, or none.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl DerefMut for PageMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for PageMemory {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for PageMemory {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: mapped in `new`; no borrow of it is left.
            let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), self.len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeros_that_can_be_written() {
        for len in [0, 1, 4096, (5 << 20) + 7] {
            let mut memory = PageMemory::new(len).unwrap();
            assert!(memory.len() == len && memory.iter().all(|byte| *byte == 0));
            memory.fill(7);
            assert!(memory.as_ref().iter().all(|byte| *byte == 7));
        }
        assert!(PageMemory::new(1 << 60).is_err());
    }
}
