//! A real file system on a block device that records every write and flush.
//!
//! ```text
//!   watchdog ──▶ worker, in a mount namespace of its own        device, a process of its own
//!                program ─▶ file system ─▶ loop device ─FUSE─▶  server: disk + log, in memory
//!                        └───────── lines of `acks` ────FUSE─▶
//! ```
//!
//! The disk is one file, served through FUSE by a process of its own ([`serve_if_asked`]), attached to
//! a loop device and mounted. Beside it lies a file `acks`: what a program writes there is in the log
//! before the write returns, so that its word stands in order among the writes of the disk.
//!
//! Nothing can hang for good. Disk and log are memory, so the server depends on no file system that it
//! serves. It ends when the worker does, which ends when the watchdog does; without a server every
//! request of the loop device fails at once; mounts go with the worker's namespace, and loop devices
//! detach themselves. The watchdog ([`watch::supervise`]) touches none of it.

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
