//! What the rest of the library asks of a view that is mapped. A view without a mapping has nothing to do.

use super::{Race, Region, changes};
use crate::store::Inner;
use crate::view::{Life, View, discard};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use untorn_journal::layer::Layer;
use untorn_journal::{Error, Result};

/// The unit of comparison: what differs is journaled in whole lines.
const LINE_BYTES: usize = 64;

impl View {
    /// Lets the region see the rest of the view.
    pub(super) fn with_region<T>(
        &mut self,
        work: impl FnOnce(&mut Region, &mut View) -> Result<T>,
    ) -> Result<Option<T>> {
        let Some(mut region) = self.region.take() else { return Ok(None) };
        // The program points into it: it stays, whatever happens.
        let done = catch_unwind(AssertUnwindSafe(|| work(&mut region, self)));
        self.region = Some(region);
        done.unwrap_or_else(|panic| resume_unwind(panic)).map(Some)
    }

    /// What the program stored to the file's mapping becomes staged changes. A mapping without maps ends
    /// with that.
    pub(crate) fn absorb(&mut self, inner: &Inner) -> Result<()> {
        if self.life != Life::Gone && self.writable {
            self.with_region(|region, view| region.absorb(view, inner, LINE_BYTES))?;
        }
        self.region = self.region.take().filter(|region| region.maps > 0);
        Ok(())
    }

    /// Forgets staged changes and what was stored since the last commit. After an error memory may still show
    /// some of it; no commit goes through until this is done again and goes well.
    pub(crate) fn discard_mapped(&mut self) -> Result<()> {
        let done = self.with_region(|region, view| {
            let found = region.find(view);
            let mut undone = std::mem::take(&mut region.found);
            let all = 0..region.accessible;
            let (zeros, bytes) = changes(&[&view.staged], &all);
            zeros.iter().chain(bytes.iter()).for_each(|range| undone.insert(range.clone()));
            discard(view);
            region.undo(view, undone, found)
        });
        done.map(|_| ())
    }

    /// A layer of the view is about to be undone: what was stored over it since is told apart by the byte.
    pub(crate) fn absorb_newer(&mut self, inner: &Inner) -> Result<()> {
        self.with_region(|region, view| region.absorb(view, inner, 1)).map(|_| ())
    }

    /// The changes of a layer are no part of the view any more, nor of memory.
    pub(crate) fn undo_mapped(&mut self, layer: &Layer) -> Result<()> {
        let done = self.with_region(|region, view| {
            let (zeros, mut undone) = changes(&[layer], &(0..region.accessible));
            zeros.iter().for_each(|range| undone.insert(range.clone()));
            region.undo(view, undone, Ok(()))
        });
        done.map(|_| ())
    }

    /// Prepares the mapping for another size of the file.
    pub(crate) fn resize_mapped(&mut self, size: u64) -> Result<()> {
        self.with_region(|region, view| region.resize(view, size)).map(|_| ())
    }

    /// Stores bytes that lie within the file.
    pub(crate) fn store_mapped(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let done = self.with_region(|region, view| region.write(view, offset, bytes))?;
        done.ok_or(Error::Closed)
    }

    /// Zeros a range of the mapping, which the caller stages.
    pub(crate) fn zero_mapped(&mut self, range: Range<u64>) -> Result<()> {
        self.with_region(|region, view| region.store_zeros(view, range)).map(|_| ())
    }

    /// Drops pages that the data file shows as well. Of a file that is gone no layer tells which.
    pub(crate) fn retire_mapped(&mut self) -> Result<()> {
        if self.life == Life::Gone {
            return Ok(());
        }
        self.with_region(|region, view| region.retire(view)).map(|_| ())
    }

    /// A store that came while a commit was on its way.
    pub(crate) fn race(&mut self) -> Result<Option<Race>> {
        self.with_region(|region, view| region.race(view)).map(Option::flatten)
    }
}
