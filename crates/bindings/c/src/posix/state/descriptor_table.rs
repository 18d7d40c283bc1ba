//! Marks of the descriptors that may belong to managed files, and to named files on mounts. Each number has a bit,
//! which is read without a lock, so that calls on all other descriptors cost nothing and can be made in signal
//! handlers.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::*};

/// Numbers in one chunk.
const CHUNK: usize = 64 * 64;
/// Room for as many descriptors as Linux gives to a process, unless its administrator says otherwise (`fs.nr_open`).
const CHUNKS: usize = 256;

type Chunk = [AtomicU64; 64];

/// Descriptors of files that this library manages.
pub(crate) static MANAGED: Marks = Marks::new();
/// Descriptors of named files on Untorn mounts.
pub(crate) static ON_MOUNT: Marks = Marks::new();

/// The descriptors of [`ON_MOUNT`] by which each write is a commit.
pub(crate) static COMMITS_WRITES: Marks = Marks::new();

/// Descriptors for reading only, which show one commit of a file.
pub(crate) static SHOWN: Marks = Marks::new();

/// Whether a descriptor may be of a managed file, of a named file on a mount, or one that shows a commit.
#[inline]
pub(crate) fn is_marked(fd: c_int) -> bool {
    MANAGED.has(fd) || ON_MOUNT.has(fd) || SHOWN.has(fd)
}

/// Marks of descriptors.
pub(crate) struct Marks {
    /// Chunks are never freed.
    chunks: [AtomicPtr<Chunk>; CHUNKS],
    /// Whether any descriptor was ever marked.
    is_used: AtomicBool,
}

impl Marks {
    const fn new() -> Marks {
        Marks { chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS], is_used: AtomicBool::new(false) }
    }

    /// The word and the bit of a descriptor.
    fn place(&self, fd: c_int) -> Option<(&AtomicPtr<Chunk>, usize, u64)> {
        let fd = usize::try_from(fd).ok()?;
        Some((self.chunks.get(fd / CHUNK)?, fd % CHUNK / 64, 1 << (fd % 64)))
    }

    /// Whether a descriptor is marked.
    #[inline]
    pub fn has(&self, fd: c_int) -> bool {
        self.place(fd).is_some_and(|(chunk, word, bit)| {
            // SAFETY: null, or a chunk that is never freed.
            unsafe { chunk.load(Acquire).as_ref() }.is_some_and(|chunk| chunk[word].load(Acquire) & bit != 0)
        })
    }

    /// Whether any descriptor was ever marked.
    pub fn is_used(&self) -> bool {
        self.is_used.load(Acquire)
    }

    /// Marks a descriptor. False: its number is too large.
    pub fn set(&self, fd: c_int) -> bool {
        let Some((chunk, word, bit)) = self.place(fd) else { return false };
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
        self.is_used.store(true, Release);
        true
    }

    /// Takes the mark of a descriptor away.
    pub fn clear(&self, fd: c_int) {
        if let Some((chunk, word, bit)) = self.place(fd) {
            // SAFETY: null, or a chunk that is never freed.
            if let Some(chunk) = unsafe { chunk.load(Acquire).as_ref() } {
                chunk[word].fetch_and(!bit, AcqRel);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_of_one_descriptor_each() {
        static MARKS: Marks = Marks::new();
        for fd in [70_000, 70_063, 70_064] {
            assert!(!MARKS.has(fd) && MARKS.set(fd) && MARKS.has(fd) && !MARKS.has(fd + 1));
            MARKS.clear(fd);
            assert!(!MARKS.has(fd));
        }
        assert!(!MARKS.set(-1) && !MARKS.has(-1) && !MARKS.set((CHUNK * CHUNKS) as c_int) && !MARKS.has(c_int::MAX));
        MARKS.clear(-1);
    }
}
