//! The only crate that talks to the operating system.
//!
//! All durable state is accessed through two traits, [`Storage`] (a directory tree on one file system) and [`File`]
//! (one open file in it). [`Linux`] is the real implementation; the crash laboratory puts a simulated disk behind the
//! same traits, and cuts its power at every call.
//!
//! Paths are relative to the storage's root directory: names, joined by single slashes. They never
//! leave it: `..`, absolute paths, symbolic links and mount points on the way are refused.
//!
//! `crates/lab/crashlab/tests/storage_contract` tests the contract of both implementations, call by call.
//!
//! Every call that makes something durable names its reason, a [`SyncPoint`]. The crash laboratory
//! skips the sync points one at a time and shows that each is needed. Crates declare their sync
//! points with [`sync_points!`], and their invariants with [`invariants!`].

#[cfg(not(target_pointer_width = "64"))]
compile_error!("Untorn needs a 64-bit machine: mappings and heaps reserve more addresses than this one has");

mod descriptors;
mod invariant;
mod live;
mod mapping;
mod memory;
pub mod mount_calls;
pub mod mount_kernels;
pub mod program;
mod sanitizer;
mod storage;
mod sync_point;
mod threads;

pub use descriptors::descriptor::{Fd, above_standard, directory_above_standard, is_closed_by_program, keep_from};
pub use descriptors::descriptor_identity::file_identity;
pub use descriptors::file_handle::FileHandle;
pub use descriptors::fork::{is_own_descriptor, process_generation};
pub use descriptors::listener::{Listener, Pauses};
pub use descriptors::loop_device::{LoopDevice, loop_device_of};
#[cfg(feature = "mutants")]
pub use invariant::disable;
pub use invariant::{Invariant, holds, value_if_holds};
pub use live::live_copy::LiveCopy;
pub use live::live_medium::LiveMedium;
pub use live::live_memory::{
    FoundMemory, LIVE_OWN_BYTES, LiveMemory, lasting_memory_path, live_memory_path, live_memory_top, sync_live_memory,
};
pub use live::shared_mapping::LIVE_HEAD_BYTES;
#[doc(hidden)]
pub use mapping::line_flushes::{LineEvent, observe_lines};
pub use mapping::line_flushes::{can_flush_lines, fence_lines, flush_lines};
pub use mapping::line_mapping::Lines;
pub use mapping::line_stores::LINE_BYTES;
pub use mapping::read_mapping::ReadMapping;
pub use mapping::shared_view::View;
pub use mapping::still_copy::{Scratch, StillCopy};
pub use mapping::{MapRequest, Mapping, MemoryLimit, Piece, TrackerKind};
pub use memory::buffer::{AlignedBuf, BLOCK_BYTES};
pub use memory::memory_limit::memory_limit;
pub use memory::page_memory::PageMemory;
pub use memory::process_memory::{process_memory, set_read_only};
/// Names of the kernel's error numbers.
pub use rustix::io::Errno;
pub use sanitizer::sanitizer;
pub use storage::byte_locks::{ByteLock, lock_bytes, lock_of_others};
pub use storage::file_system_id::file_system_id;
pub use storage::file_system_info::{FileSystemInfo, file_system_info};
pub use storage::linux::{Linux, umask};
pub use storage::linux_file::attribute_of;
pub use storage::read_write::{
    read_full_at, read_full_past_cache_at, write_all_allowed_at, write_all_at, write_more_at,
};
pub use storage::share_out::Threads;
pub use storage::{Access, Counters, File, Kind, Meta, Open, Space, Storage, shown_by};
pub use sync_point::SyncPoint;
pub use threads::asymmetric_barrier::{heavy_barrier, is_asymmetric, light_barrier};
pub use threads::futex::{wait_shared, wake_shared};
pub use threads::stop_threads::{NotStopped, OwnThread, own_thread, with_threads_stopped};
pub use threads::thread_signals::without_signals;
