//! A persistent heap: ordinary data structures in a file, pointers and all.
//!
//! A heap file is always mapped at the same address, so that pointers in it stay valid. Allocate in it, build any
//! structure, set a named root to it, [`Heap::commit`]. After any crash the heap is as of the last commit.
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
//! [`Storable`](trait@Storable) and its derive macro ensure that.

pub(crate) mod alloc;
pub(crate) mod collections;
pub(crate) mod handle;
pub(crate) mod image;
pub(crate) mod live;
pub(crate) mod log;
pub(crate) mod sections;

pub use alloc::guard::Mutating;
pub use alloc::registry::WeakHeap;
pub use collections::btree_map::{HeapBTreeMap, Iter as HeapBTreeMapIter};
pub use collections::in_heap::{HeapBox, HeapVec, InHeap};
pub use collections::map::{FixedHash, HeapMap};
pub use collections::storable::Storable;
pub use collections::string::HeapString;
pub use handle::open::HeapOptions;
pub use handle::open_heap::Heap;
pub use handle::read_heap::ReadHeap;
pub use handle::root::{RootInfo, RootOptions, RootShape};
pub use handle::stats::HeapStats;
pub use image::pointer::{HeapPointer, HeapPointers};
pub use image::report::{
    HeapChunk, HeapClass, HeapLarge, HeapLeak, HeapLeaks, HeapReport, HeapRoot, LiveOutlook, NextStart,
};
pub use live::cuts::{Cuts, StopTimes};
pub use live::{LiveMemoryFound, LiveReport, LiveStart};
pub use sections::lock::SectionLock;
pub use sections::section::Section;
pub use untorn_derive::Storable;
