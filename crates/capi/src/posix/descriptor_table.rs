//! Which descriptors may be of managed files: one bit for each number, read without a lock, so that calls on all other
//! descriptors cost nothing and can be made in signal handlers.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};

/// Numbers in one chunk.
const CHUNK: usize = 64 * 64;
/// Room for as many descriptors as Linux gives to a process, unless its administrator says otherwise (`fs.nr_open`).
const CHUNKS: usize = 256;

type Chunk = [AtomicU64; 64];

/// Chunks are never freed.
static TABLE: [AtomicPtr<Chunk>; CHUNKS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];

/// The word and the bit of a descriptor.
fn place(fd: c_int) -> Option<(&'static AtomicPtr<Chunk>, usize, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((TABLE.get(fd / CHUNK)?, fd % CHUNK / 64, 1 << (fd % 64)))
}

/// Whether a descriptor may be of a managed file.
#[inline]
pub(super) fn is_marked(fd: c_int) -> bool {
    place(fd).is_some_and(|(chunk, word, bit)| {
        // SAFETY: null, or a chunk that is never freed.
        unsafe { chunk.load(Acquire).as_ref() }.is_some_and(|chunk| chunk[word].load(Acquire) & bit != 0)
    })
}

/// Notes that a descriptor is of a managed file. False: its number is too large.
pub(super) fn mark(fd: c_int) -> bool {
    let Some((chunk, word, bit)) = place(fd) else { return false };
    if chunk.load(Acquire).is_null() {
        let fresh = Box::into_raw(Box::new([const { AtomicU64::new(0) }; 64]));
        if chunk.compare_exchange(ptr::null_mut(), fresh, AcqRel, Acquire).is_err() {
            // SAFETY: made above, and nobody else has seen it.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
    // SAFETY: a chunk that is never freed.
    if let Some(chunk) = unsafe { chunk.load(Acquire).as_ref() } {
        chunk[word].fetch_or(bit, AcqRel);
    }
    true
}

/// Notes that a descriptor is not, or no longer, of a managed file.
pub(super) fn unmark(fd: c_int) {
    if let Some((chunk, word, bit)) = place(fd) {
        // SAFETY: null, or a chunk that is never freed.
        if let Some(chunk) = unsafe { chunk.load(Acquire).as_ref() } {
            chunk[word].fetch_and(!bit, AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_of_one_descriptor_each() {
        for fd in [70_000, 70_063, 70_064] {
            assert!(!is_marked(fd) && mark(fd) && is_marked(fd) && !is_marked(fd + 1));
            unmark(fd);
            assert!(!is_marked(fd));
        }
        assert!(!mark(-1) && !is_marked(-1) && !mark((CHUNK * CHUNKS) as c_int) && !is_marked(c_int::MAX));
        unmark(-1);
    }
}
