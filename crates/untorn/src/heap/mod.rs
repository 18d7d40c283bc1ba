//! A persistent heap: ordinary data structures in a file, pointers and all.
//!
//! A heap file is always mapped at the same address, so that pointers in it stay good. Allocate in it, build
//! whatever you like, hang it on a named root, [`Heap::commit`]. After any crash the heap is as of the last commit.
//!
//! ```
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("numbers");
//! use untorn::heap::{Heap, HeapVec};
//!
//! let heap = Heap::open_or_create(&path)?;
//! let numbers = heap.root_or("numbers", |alloc| HeapVec::<u64>::new_in(alloc))?;
//! // SAFETY: this thread alone uses the root.
//! let numbers = unsafe { &mut *numbers.as_ptr() };
//! numbers.push(numbers.len() as u64);
//! heap.commit()?;
//! # Ok::<(), untorn::Error>(())
//! ```
//!
//! Nothing in a heap may point out of it: no `Box` of the program's own heap, no vtable, no `&'static str`. The trait
//! [`Storable`](trait@Storable) and its derive macro see to that.

mod arena;
mod body;
pub(crate) mod check;
mod chunk_table;
mod free_in_image;
mod guard;
mod heap_btree_map;
mod heap_map;
mod heap_pointer;
mod heap_report;
mod heap_section;
mod heap_string;
mod in_heap;
mod in_memory;
pub(crate) mod last_cut;
mod layout;
pub(crate) mod live;
mod live_cuts;
pub(crate) mod live_head;
pub(crate) mod live_outlook;
mod lost_memory;
mod metadata;
mod open;
mod open_heap;
mod own_pages;
pub(crate) mod pointers;
mod read_heap;
mod registry;

mod root;
mod section_audit;
#[doc(hidden)]
pub mod section_hooks;
mod section_lock;
mod section_log;
mod section_mark;
mod section_recovery;
mod section_run;
mod section_stability;
mod section_thread;
mod sections;
mod space;
mod stats;
mod stopped_cut;
mod storable;
mod thread_local;
mod verify;

pub use guard::Mutating;
pub use heap_btree_map::{HeapBTreeMap, Iter as HeapBTreeMapIter};
pub use heap_map::{FixedHash, HeapMap};
pub use heap_pointer::{HeapPointer, HeapPointers};
pub use heap_report::{
    HeapChunk, HeapClass, HeapLarge, HeapLeak, HeapLeaks, HeapReport, HeapRoot, LiveOutlook, NextStart,
};
pub use heap_section::Section;
pub use heap_string::HeapString;
pub use in_heap::{HeapBox, HeapVec, InHeap};
pub use in_memory::fuzz_heap;
pub use live::{LiveMemoryFound, LiveReport, LiveStart};
pub use live_cuts::{Cuts, StopTimes};
#[doc(hidden)]
pub use live_outlook::{LiveImage, live_outlook};
pub use open::HeapOptions;
pub use open_heap::Heap;
pub use read_heap::ReadHeap;
pub use registry::WeakHeap;
pub use root::{RootInfo, RootOptions, RootShape};
pub use section_lock::SectionLock;
pub use stats::HeapStats;
pub use storable::{RawPointer, Storable, is_pointer, is_storable};
pub use untorn_derive::Storable;
