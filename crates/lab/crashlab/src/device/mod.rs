//! A real file system on a block device that records every write and flush.
//!
//! ```text
//!   watchdog ──▶ worker, in a mount namespace of its own        device, a process of its own
//!                program ─▶ file system ─▶ loop device ─FUSE─▶  server: disk + log, in memory
//!                        └───────── lines of `acks` ────FUSE─▶
//! ```
//!
//! The disk is one file, served through FUSE by a process of its own ([`serve_if_asked`]), attached to a loop device
//! and mounted. A second file, `acks`, takes the program's acknowledgements. A line that a program writes there is in
//! the log before the write returns, so that it is in order with the writes to the disk.
//!
//! Nothing can hang for good. Disk and log are in memory, so the server depends on no file system that it serves. The
//! server ends when the worker does, and the worker ends when the watchdog does. Without a server, every request of the
//! loop device fails at once. Mounts go with the worker's namespace, and loop devices detach themselves. The watchdog
//! ([`watch::supervise`]) touches none of them.

mod again;
mod disk_image;
mod event;
mod filesystem;
mod loopback;
mod memory_file;
pub(crate) mod mount_trial;
mod recorder;
mod server;
pub mod watch;

pub use again::Again;
pub use disk_image::{Image, PAGE_BYTES};
pub use event::Event;
pub use filesystem::{FileSystem, SOUND, unmount_now};
pub use loopback::Loop;
pub use memory_file::memory_file;
pub use recorder::{Acks, Counts, Recorder, Trouble, path_of};
pub use server::serve_if_asked;
