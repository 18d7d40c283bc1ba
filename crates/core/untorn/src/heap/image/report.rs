//! The report of a check of a heap.

use super::layout::CHUNK_BYTES;
use crate::engine::options::FailureClass;
use crate::heap::image::pointer::HeapPointers;
use serde::Serialize;
use std::path::PathBuf;

/// The most problems that are listed.
const PROBLEMS_MOST: usize = 100;

/// The result of a check of a heap.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct HeapReport {
    /// The heap's file.
    #[serde(serialize_with = "crate::engine::paths::path_text::path")]
    pub path: PathBuf,
    /// The address at which the heap is mapped.
    pub address: u64,
    /// The bytes of address space that the heap can grow to.
    pub address_space_bytes: u64,
    /// The bytes of the file; unused ones take no room on the disk.
    pub heap_bytes: u64,
    /// Bytes of the heap's own metadata.
    pub metadata_bytes: u64,
    /// The bytes of chunks that are free for any use.
    pub free_bytes: u64,
    /// Block sizes for which there are chunks.
    pub classes: Vec<HeapClass>,
    /// Allocations of whole chunks.
    pub large: HeapLarge,
    /// Allocations of whole segments.
    pub huge: HeapLarge,
    /// The named roots.
    pub roots: Vec<HeapRoot>,
    /// Allocations that no root reaches. `None`: the check did not look for them.
    pub leaks: Option<HeapLeaks>,
    /// Pointers that lead out of the heap. `None`: the check did not look for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pointers: Option<HeapPointers>,
    /// If the heap's file names live memory, the state that the next opening would make of it. Filled in together with
    /// leaks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<Box<LiveOutlook>>,
    /// Damage that was found. Empty: the heap is sound.
    pub problems: Vec<String>,
    /// The number of problems that are not listed.
    pub problems_more: u64,
    /// Every chunk of 64 KiB, in order.
    #[serde(skip)]
    pub chunks: Vec<HeapChunk>,
}

impl HeapReport {
    /// Whether no damage was found.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }

    /// Like [`Self::is_sound`], for the file and for the live memory from which the next opening would continue.
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

/// The state with which the next opening of a heap would begin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NextStart {
    /// Everything that is in memory and complete.
    GoesOn,
    /// The last cut; the text says why.
    LastCut(String),
    /// The memory could not be read; the text says why.
    Unknown(String),
}

/// The state that the next opening would make of a heap's live memory.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LiveOutlook {
    /// The memory.
    #[serde(serialize_with = "crate::engine::paths::path_text::path")]
    pub memory: PathBuf,
    /// The failures that the memory survives: [`FailureClass::Process`] or [`FailureClass::Memory`].
    pub class: FailureClass,
    /// Whether its lines are flushed, because the caches are lost with the power.
    pub flushes: bool,
    /// The state with which the opening would begin.
    pub next: NextStart,
    /// Sections that had not ended and would be undone.
    pub undone: usize,
    /// Sections that had ended and would be undone because they had seen changes of an unfinished one.
    pub cascaded: usize,
    /// The check of the heap in that state, if the opening would continue from the memory.
    pub heap: Option<HeapReport>,
}

/// The blocks of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HeapClass {
    /// The size of a block.
    pub block_bytes: u64,
    /// The number of chunks that hold such blocks.
    pub chunks: u64,
    /// The number of blocks in these chunks.
    pub blocks: u64,
    /// The number of blocks in use.
    pub used: u64,
}

/// Allocations that are larger than any block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeapLarge {
    /// The number of allocations.
    pub count: u64,
    /// The bytes that they take.
    pub bytes: u64,
    /// The bytes that were asked for.
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
    /// The program's own version number of the layout.
    pub version: u32,
    /// The type's size in bytes.
    pub size: u64,
    /// The type's alignment.
    pub align: u32,
    /// The address of the object.
    pub address: u64,
}

/// Allocations that no root reaches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeapLeaks {
    /// The number of these allocations.
    pub count: u64,
    /// The bytes that they take.
    pub bytes: u64,
    /// The largest of them.
    pub largest: Vec<HeapLeak>,
}

/// An allocation that no root reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HeapLeak {
    /// The address of the allocation.
    pub address: u64,
    /// The bytes that it takes.
    pub bytes: u64,
}

/// The use of a chunk of 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeapChunk {
    /// The heap's own metadata.
    Metadata,
    /// Free.
    Free,
    /// Blocks of one size.
    Blocks {
        /// The number of blocks in use.
        used: u16,
        /// The number of blocks.
        of: u16,
    },
    /// A part of an allocation of whole chunks.
    Large,
    /// A part of an allocation of whole segments.
    Huge,
}
