//! What a look at a heap tells.

use super::layout::CHUNK_BYTES;
use crate::heap::image::pointer::HeapPointers;
use serde::Serialize;
use std::path::PathBuf;

/// Problems that are told in full.
const PROBLEMS_MOST: usize = 100;

/// What a look at a heap found.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct HeapReport {
    /// The heap's file.
    #[serde(serialize_with = "crate::engine::paths::path_text::path")]
    pub path: PathBuf,
    /// Where the heap is mapped.
    pub address: u64,
    /// Bytes of address space that it can grow to.
    pub address_space_bytes: u64,
    /// Bytes of the file; those that nobody uses take no room on the disk.
    pub heap_bytes: u64,
    /// Bytes of the heap's own metadata.
    pub metadata_bytes: u64,
    /// Bytes of chunks that are free for anything.
    pub free_bytes: u64,
    /// Sizes of blocks that there are chunks for.
    pub classes: Vec<HeapClass>,
    /// Allocations of whole chunks.
    pub large: HeapLarge,
    /// Allocations of whole segments.
    pub huge: HeapLarge,
    /// The named roots.
    pub roots: Vec<HeapRoot>,
    /// What no root reaches. `None`: it was not looked for.
    pub leaks: Option<HeapLeaks>,
    /// Pointers that lead out of the heap. `None`: they were not looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pointers: Option<HeapPointers>,
    /// Of a heap whose file names live memory: what the next opening would make of that. Looked at beside leaks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<Box<LiveOutlook>>,
    /// Damage. Empty: sound.
    pub problems: Vec<String>,
    /// Problems beyond those.
    pub problems_more: u64,
    /// Every chunk of 64 KiB, in order.
    #[serde(skip)]
    pub chunks: Vec<HeapChunk>,
}

impl HeapReport {
    /// No damage was found.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }

    /// As of [`Self::is_sound`], neither here nor in live memory that the next opening would go on from.
    pub fn is_sound_with_live(&self) -> bool {
        let live = self.live.as_ref().and_then(|live| live.heap.as_ref());
        self.is_sound() && live.is_none_or(HeapReport::is_sound)
    }

    pub(crate) fn problem(&mut self, what: String) {
        match self.problems.len() < PROBLEMS_MOST {
            true => self.problems.push(what),
            false => self.problems_more += 1,
        }
    }
}

/// What the next opening of a heap would begin with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NextStart {
    /// Everything that is in memory and whole.
    GoesOn,
    /// The last cut, and why.
    LastCut(String),
    /// The memory could not be looked at, and why.
    Unknown(String),
}

/// What the next opening would make of a heap's live memory.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LiveOutlook {
    /// The memory.
    #[serde(serialize_with = "crate::engine::paths::path_text::path")]
    pub memory: PathBuf,
    /// What the heap would be.
    pub next: NextStart,
    /// Sections that had not ended, and would be undone.
    pub undone: usize,
    /// Sections that had ended, and would be undone since they had seen what one of those did.
    pub cascaded: usize,
    /// The heap as it would be then, if the opening goes on from the memory.
    pub heap: Option<HeapReport>,
}

/// Blocks of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HeapClass {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Chunks that hold such blocks.
    pub chunks: u64,
    /// Blocks in them.
    pub blocks: u64,
    /// Blocks in use.
    pub used: u64,
}

/// Allocations that are larger than any block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeapLarge {
    /// How many.
    pub count: u64,
    /// Bytes that they take.
    pub bytes: u64,
    /// Bytes that were asked for.
    pub asked_bytes: u64,
}

impl HeapLarge {
    pub(crate) fn add(&mut self, asked_bytes: u64, chunks: usize) {
        self.count += 1;
        self.asked_bytes += asked_bytes;
        self.bytes += (chunks * CHUNK_BYTES) as u64;
    }
}

/// A root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeapRoot {
    /// Its name.
    pub name: String,
    /// The type's name, cut off after 104 bytes.
    pub type_name: String,
    /// The program's own number of its layout.
    pub version: u32,
    /// The type's size in bytes.
    pub size: u64,
    /// The type's alignment.
    pub align: u32,
    /// Where it is.
    pub address: u64,
}

/// Allocations that no root reaches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeapLeaks {
    /// How many.
    pub count: u64,
    /// Bytes that they take.
    pub bytes: u64,
    /// The largest of them.
    pub largest: Vec<HeapLeak>,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HeapLeak {
    /// Where it is.
    pub address: u64,
    /// Bytes that it takes.
    pub bytes: u64,
}

/// What a chunk of 64 KiB is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeapChunk {
    /// The heap's own.
    Metadata,
    /// Nothing.
    Free,
    /// Blocks of one size.
    Blocks {
        /// Blocks in use.
        used: u16,
        /// Blocks.
        of: u16,
    },
    /// A part of an allocation of whole chunks.
    Large,
    /// A part of an allocation of whole segments.
    Huge,
}
