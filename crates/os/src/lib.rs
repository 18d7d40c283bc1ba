//! The only room that talks to the operating system.
//!
//! Everything Untorn does to durable state goes through two traits, [`Storage`] (a directory tree
//! on one file system) and [`File`] (one open file in it). [`Linux`] is the real one; the crash
//! laboratory puts a simulated disk behind the same traits and cuts its power at every call.
//!
//! Paths are relative to the storage's root directory: names, joined by single slashes. They never
//! leave it: `..`, absolute paths, symbolic links and mount points on the way are refused.
//!
//! `crates/crashlab/tests/storage_contract` tries what both sides promise, call by call.
//!
//! Every call that makes something durable names its reason, a [`SyncPoint`]. The crash laboratory
//! skips the sync points one at a time and shows that each is needed. Crates declare their sync
//! points with [`sync_points!`], and their invariants with [`invariants!`].

mod asymmetric_barrier;
mod both_at_once;
mod buffer;
mod chunk_scan;
mod clone_range;
mod descriptor;
mod descriptor_identity;
mod file_handle;
mod fork;
mod futex;
mod invariant;
mod kernel;
mod linux;
mod linux_map;
mod listener;
mod live_copy;
mod live_memory;
mod mapping;
mod memory_limit;
mod metadata_order;
pub mod mount_calls;
mod other_process;
mod page_memory;
mod process_memory;
mod read_mapping;
mod read_write;
mod sanitizer;
mod shared_mapping;
mod still_copy;
mod stop_threads;
mod storage;
mod sync_point;
mod thread_signals;
mod tracker;
mod write_out;

pub use asymmetric_barrier::{heavy_barrier, is_asymmetric, light_barrier};
pub use buffer::{AlignedBuf, BLOCK_BYTES};
pub use descriptor::{Fd, above_standard, is_closed_by_program};
pub use file_handle::FileHandle;
pub use fork::{is_own_descriptor, process_generation};
pub use futex::{wait_shared, wake_shared};
#[cfg(feature = "mutants")]
pub use invariant::disable;
pub use invariant::{Invariant, holds, value_if_holds};
pub use linux::{FileSystemInfo, Linux, file_system_info, umask};
pub use listener::{Listener, Pauses};
pub use live_copy::LiveCopy;
pub use live_memory::{FoundMemory, LIVE_OWN_BYTES, LiveMemory, live_memory_path, live_memory_top};
pub use mapping::{MapRequest, Mapping, MemoryLimit, Piece, Tracker};
pub use memory_limit::memory_limit;
pub use page_memory::PageMemory;
pub use process_memory::{process_memory, set_read_only};
pub use read_mapping::ReadMapping;
pub use read_write::{read_full_at, read_full_past_cache_at, write_all_at, write_more_at};
/// Names of the kernel's error numbers.
pub use rustix::io::Errno;
pub use sanitizer::sanitizer;
pub use shared_mapping::LIVE_HEAD_BYTES;
pub use still_copy::{Scratch, StillCopy};
pub use stop_threads::{NotStopped, OwnThread, own_thread, with_threads_stopped};
pub use storage::{Access, Counters, File, Kind, Meta, Open, Space, Storage, shown_by};
pub use sync_point::SyncPoint;
pub use thread_signals::without_signals;
