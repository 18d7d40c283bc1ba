//! Before a commit: the heap's header, and the metadata and the roots that were stored to since the last commit, are what
//! this library writes. A program that stores where it should not is told, and what it overwrote is not committed.

use super::check::Checker;
use super::layout::{CHUNK_BYTES, DESCRIPTORS_AT, Header, ROOTS_AT, SEGMENT_BYTES};
use super::open_heap::{Heap, Still};
use crate::invariant;
use std::collections::BTreeSet;
use untorn_journal::{Error, Result};
use untorn_os::holds;

const ADVICE: &str = "The commit was not made: roll the heap back, and look for a store to memory that the program does \
                      not own (an element type that has changed, a pointer to freed memory, an end that was overrun)";

impl Heap {
    /// Looks at what is about to be committed. Returns whether it asked which pages were stored to.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: somebody stored to the heap's own bytes.
    pub(super) fn verify(&self, _still: &Still<'_>) -> Result<bool> {
        if !holds(invariant::HEAP_VERIFIED) {
            return Ok(false);
        }
        let (base, bytes) = self.memory();
        let corrupt = |what: String| Error::Corrupt { path: self.file().path(), detail: what, advice: ADVICE };
        // SAFETY: the header is mapped, and any bytes are one.
        let header = unsafe { base.cast::<Header>().read() };
        if header.address != base.as_ptr() as u64 || header.problem(bytes as u64).is_some() {
            return Err(corrupt(format!("somebody stored to the heap's header: {header:?}")));
        }
        let (mut touched, mut roots) = (BTreeSet::new(), false);
        for range in self.body().map.stored_pages()? {
            roots |= range.start < CHUNK_BYTES as u64 && range.end > ROOTS_AT as u64;
            let (first, last) = (range.start / SEGMENT_BYTES as u64, (range.end - 1) / SEGMENT_BYTES as u64);
            touched.extend((first..=last).map(|segment| segment as usize).filter(|segment| {
                let start = (segment * SEGMENT_BYTES) as u64;
                range.start < start + CHUNK_BYTES as u64 && range.end > start + DESCRIPTORS_AT as u64
            }));
        }
        if let Some(problem) = Checker::problems_of(self.file(), &header, &touched)?.first() {
            return Err(corrupt(format!("somebody stored to the heap's metadata: {problem}")));
        }
        if roots && let Some(problem) = Checker::problems_of_roots(self.file(), &header)?.first() {
            return Err(corrupt(format!("somebody stored to the heap's table of roots: {problem}")));
        }
        if self.body().debug_pointers {
            self.refuse_pointers()?;
        }
        Ok(true)
    }
}
