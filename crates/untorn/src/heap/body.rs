//! A heap's memory and its file.

use super::alloc::{Backing, Refused};
use super::check::HeapImage;
use super::layout::SEGMENT_BYTES;
use crate::file::File;
use crate::invariant;
use crate::map::Map;
use untorn_journal::{Error, Result};
use untorn_os::holds;

/// The heap's memory and its file.
pub(super) struct Body {
    // Before the file: a map ends before its file is closed.
    pub map: Map,
    pub file: File,
    /// A commit looks for pointers out of the heap.
    pub debug_pointers: bool,
}

impl Backing for Body {
    fn grow(&self, segments: usize) -> Result<()> {
        self.map.resize((segments * SEGMENT_BYTES) as u64)?;
        if holds(invariant::HEAP_GROWS_WHOLE) { Ok(()) } else { self.map.msync() }
    }

    fn release(&self, offset: usize, bytes: usize) -> Result<()> {
        self.file.zero(offset as u64, bytes as u64)
    }
}

impl Body {
    pub(super) fn corrupt(&self, detail: String) -> Error {
        Error::corrupt_heap(self.file.path(), detail)
    }

    pub(super) fn refused(&self, why: Refused) -> Error {
        match why {
            Refused::Corrupt(detail) => self.corrupt(detail),
            Refused::NotAllocated => {
                Error::invalid("the pointer is not one that this heap gave out, or was freed already".to_owned())
            }
            Refused::Absurd => Error::invalid("no heap has so much memory, or memory of such an alignment".to_owned()),
            Refused::Grow(e) => e,
        }
    }
}

impl HeapImage for File {
    fn bytes(&self) -> Result<u64> {
        self.len()
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        match self.read_at(buf, offset)? == buf.len() {
            true => Ok(()),
            false => Err(Error::corrupt_heap(self.path(), "it became shorter just now")),
        }
    }
}

pub(super) fn segments_of(map: &Map) -> usize {
    map.len() as usize / SEGMENT_BYTES
}
