//! Verifies a heap before a commit: its header, and the metadata and roots that were stored to since the last commit,
//! must be bytes that this library writes. So a program that stores where it must not gets an error, and its damage is
//! not committed.
//!
//! In a segment whose descriptors nobody stored to, only the bitmaps on stored pages are read: a commit that allocates
//! one block reads two pages.

use super::open_heap::{Heap, Quiescent};
use crate::heap::image::check::{Checker, ChunkSet, HeapImage};
use crate::heap::image::layout::{CHUNK_BYTES, Header, ROOTS_AT, SEGMENT_BYTES};
use crate::invariant;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use untorn_journal::{Error, Result};
use untorn_os::holds;

const ADVICE: &str = "The commit was not made: roll the heap back, and look for a store to memory that the program does \
                      not own (an element type that has changed, a pointer to freed memory, an end that was overrun)";

impl Heap {
    /// Verifies the state that is about to be committed. Returns whether it asked for the pages that were stored to.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: somebody stored to the heap's own bytes.
    pub(crate) fn verify(&self, _quiescent: &Quiescent<'_>) -> Result<bool> {
        if !holds(invariant::HEAP_VERIFIED) {
            return Ok(false);
        }
        let (base, bytes) = self.memory();
        verify_image(
            self.file(),
            base.as_ptr() as usize..base.as_ptr() as usize + bytes,
            || self.file().path(),
            self.body().map.stored_pages()?,
        )?;
        if self.body().debug_pointers {
            self.refuse_pointers()?;
        }
        Ok(true)
    }
}

/// Verifies a heap that is about to be committed, at these addresses; `stored` are the pages that were stored to.
///
/// # Errors
/// [`Error::Corrupt`]: somebody stored to the heap's own bytes.
pub(crate) fn verify_image(
    image: &dyn HeapImage,
    addresses: Range<usize>,
    path: impl Fn() -> PathBuf,
    stored: Vec<Range<u64>>,
) -> Result<()> {
    let corrupt = |what: String| Error::Corrupt { path: path(), detail: what, advice: ADVICE };
    let mut header = [0; size_of::<Header>()];
    image.read(&mut header, 0)?;
    let header =
        Header::read(&header, Path::new("")).map_err(|_| corrupt("somebody stored to the heap's header".to_owned()))?;
    if header.address != addresses.start as u64 || header.problem(addresses.len() as u64).is_some() {
        return Err(corrupt(format!("somebody stored to the heap's header: {header:?}")));
    }
    let (mut touched, mut roots) = (BTreeMap::<usize, ChunkSet>::new(), false);
    for range in stored {
        roots |= range.start < CHUNK_BYTES as u64 && range.end > ROOTS_AT as u64;
        let (start, end) = (range.start as usize, range.end as usize);
        for segment in start / SEGMENT_BYTES..end.div_ceil(SEGMENT_BYTES) {
            let first = segment * SEGMENT_BYTES;
            let mut chunks = touched.get(&segment).copied().unwrap_or_default();
            chunks.add_touched(start.max(first) - first..end - first);
            if !chunks.is_empty() {
                touched.insert(segment, chunks);
            }
        }
    }
    if let Some(problem) = Checker::problems_of(image, &header, &touched)?.first() {
        return Err(corrupt(format!("somebody stored to the heap's metadata: {problem}")));
    }
    if roots && let Some(problem) = Checker::problems_of_roots(image, &header)?.first() {
        return Err(corrupt(format!("somebody stored to the heap's table of roots: {problem}")));
    }
    Ok(())
}
