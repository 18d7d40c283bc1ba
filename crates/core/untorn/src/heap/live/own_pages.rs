//! Write-protects the pages of a heap that only this library stores to, and rarely: those of the header, with the bits
//! of segments inside of allocations, and the table of roots. A stray store of the program is a `SIGSEGV` at the store,
//! and a system call that would write there fails with `EFAULT`. Unlocking and locking costs two system calls when the
//! heap grows, shrinks or gets a root, and nothing in a commit.
//!
//! If pages cannot be locked (a page size above 4096 bytes, or a process that has reached its limit on mappings), they
//! stay writable: a commit verifies the header and the roots in any case.

use crate::engine::handles::map::Map;
use crate::heap::image::layout::{CHUNK_BYTES, DESCRIPTORS_AT, INSIDES, ROOTS_AT, SEGMENT_BYTES};
use std::ops::Range;
use untorn_journal::{Error, Result};
use untorn_os::set_read_only;

/// The pages of the table of roots.
pub(crate) const ROOT_PAGES: Range<usize> = ROOTS_AT..CHUNK_BYTES;

/// The page of the header, or of the bits for another group of segments.
pub(crate) fn header_page(group: usize) -> Range<usize> {
    let at = group * INSIDES * SEGMENT_BYTES;
    at..at + DESCRIPTORS_AT
}

const _: () = assert!(ROOT_PAGES.start.is_multiple_of(4096) && ROOT_PAGES.end.is_multiple_of(4096));

fn own_pages(map: &Map) -> impl Iterator<Item = Range<usize>> {
    let segments = map.len() as usize / SEGMENT_BYTES;
    std::iter::once(ROOT_PAGES).chain((0..segments.div_ceil(INSIDES)).map(header_page))
}

fn set_locked(map: &Map, pages: Range<usize>, on: bool) -> std::io::Result<()> {
    if rustix::param::page_size() != DESCRIPTORS_AT {
        return Ok(());
    }
    let base = map.as_ptr() as usize;
    // SAFETY: pages of a heap, which is mapped. A caller that stores to them unlocks them first.
    unsafe { set_read_only(base + pages.start..base + pages.end, on) }
}

/// Lets this library store to these pages of a heap until they are locked again. The caller has the lock under which
/// they are changed.
pub(crate) fn unlock(map: &Map, pages: Range<usize>) -> Result<()> {
    set_locked(map, pages, false).map_err(|e| Error::io("change the protection of", map.file().path(), e))
}

/// Protects these pages of a heap from stores.
pub(crate) fn lock(map: &Map, pages: Range<usize>) {
    // If this fails, the next commit finds stray stores.
    let _ = set_locked(map, pages, true);
}

/// Unlocks all such pages, before the heap's memory is overwritten with the file's contents.
pub(crate) fn unlock_all(map: &Map) -> Result<()> {
    own_pages(map).try_for_each(|pages| unlock(map, pages))
}

/// Locks all such pages, after they were mapped or mapped anew.
pub(crate) fn lock_all(map: &Map) {
    own_pages(map).for_each(|pages| lock(map, pages));
}
