//! A heap's memory and its file.

use super::metadata::{Number, Refused};
use super::space::Backing;
use crate::engine::files::file_state::HeapMark;
use crate::engine::handles::file::File;
use crate::engine::handles::map::Map;
use crate::heap::image::check::HeapImage;
use crate::heap::image::layout::{CHUNK_BYTES, INSIDES, SEGMENT_BYTES};
use crate::heap::live::Working;
use crate::heap::live::cuts::Cuts;
use crate::heap::live::own_pages::{self, header_page};
use crate::invariant;
use std::ops::Range;
use untorn_journal::{Error, Result};
use untorn_os::{holds, memory_limit};

/// The heap's memory and its file.
pub(crate) struct Body {
    /// The working memory of a live heap.
    pub working: Option<Working>,
    /// How cuts of the heap are made.
    pub cuts: Cuts,
    // Before the file: a map ends before its file is closed.
    pub map: Map,
    /// The handle that programs get: it only reads.
    pub view: File,
    /// The heap's own handle.
    pub file: File,
    /// Marks the file as an open heap, so that other handles of the file only read it.
    pub mark: HeapMark,
    /// The program has promised that no thread stores during a commit without a guard.
    pub quiet: bool,
    /// For debugging: a thread that allocates or frees must hold a guard.
    pub debug_guards: bool,
    /// For debugging: commits look for stores that threads made while the commit gathered the changes.
    pub debug_races: bool,
    /// For debugging: commits look for pointers that lead out of the heap.
    pub debug_pointers: bool,
    /// The number of bytes that may be in use; more, if the memory limit has changed.
    pub memory_bytes: u64,
}

impl Backing for Body {
    fn resize(&self, segments: usize) -> Result<()> {
        let space = self.map.address_space()?;
        if (segments * SEGMENT_BYTES) as u64 > space {
            let detail = format!(
                "the heap is full: it uses all of its address space ({} MiB). Free something, or close the heap and \
                 open it once with a larger `address_space`, which it then keeps",
                space >> 20
            );
            return Err(Error::NoMemory { path: self.file.path(), detail });
        }
        let groups = (self.map.len() as usize / SEGMENT_BYTES).div_ceil(INSIDES);
        let was = self.map.len();
        self.map.resize((segments * SEGMENT_BYTES) as u64)?;
        if let Some(working) = self.working.as_ref().filter(|_| self.map.len() > was) {
            // The header is about to say so, and that the new segments are zeros.
            working.sync_lasting(invariant::LIVE_GROWN_DURABLE)?;
        }
        (groups..segments.div_ceil(INSIDES)).for_each(|group| self.lock_header(group));
        if holds(invariant::HEAP_GROWS_WHOLE) { Ok(()) } else { self.map.msync() }
    }

    fn release(&self, offset: usize, bytes: usize) -> Result<()> {
        self.file.zero(offset as u64, bytes as u64)?;
        // The metadata is about to say that they are zeros.
        self.working.as_ref().map_or(Ok(()), |working| working.flush_all(invariant::LIVE_ZEROS_DURABLE))
    }

    fn unlock_header(&self, group: usize) -> Result<()> {
        own_pages::unlock(&self.map, header_page(group))
    }

    fn lock_header(&self, group: usize) {
        own_pages::lock(&self.map, header_page(group));
    }

    fn check_memory(&self, bytes: u64) -> Result<()> {
        if bytes <= self.memory_bytes {
            return Ok(());
        }
        match memory_limit().filter(|limit| bytes > limit.bytes) {
            None => Ok(()),
            Some(limit) => Err(Error::NoMemory {
                path: self.file.path(),
                detail: format!(
                    "the heap would have {bytes} bytes in use, but {} allows only {} bytes of memory and swap; open \
                     the heap with a `dirty_max` below this limit, and commit before the changed pages exceed it",
                    limit.of, limit.bytes
                ),
            }),
        }
    }
}

impl Body {
    pub(crate) fn release_chunks(&self, chunks: Range<Number>) -> Result<()> {
        self.file.zero((chunks.start as usize * CHUNK_BYTES) as u64, (chunks.len() * CHUNK_BYTES) as u64)
    }

    pub(crate) fn corrupt(&self, detail: String) -> Error {
        Error::corrupt_heap(self.file.path(), detail)
    }

    pub(crate) fn refused(&self, why: Refused) -> Error {
        match why {
            Refused::Corrupt(detail) => self.corrupt(detail),
            Refused::NotAllocated => {
                Error::invalid("this heap did not allocate the pointer, or the program has freed it already".to_owned())
            }
            Refused::Absurd => Error::invalid("the size or the alignment is larger than any heap supports".to_owned()),
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
            false => Err(Error::corrupt_heap(self.path(), "it became shorter while it was read")),
        }
    }
}

pub(crate) fn segments_of(map: &Map) -> usize {
    map.len() as usize / SEGMENT_BYTES
}
