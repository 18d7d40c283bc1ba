//! A file system over a tree of untorn files, for programs that nobody changes.
//!
//! The kernel asks through `/dev/fuse` (`fuse_server`), the tree answers, and a commit is what programs know as `fsync`,
//! `msync` and a rename over a file. What the kernel still has in its cache when that is asked, it is made to send
//! (`kernel_pull`).

pub mod cli;
mod copying;
pub mod daemon;
mod daemon_start;
mod export;
mod fuse_device;
mod fuse_protocol;
pub mod fuse_server;
mod handlers;
mod import;
pub mod kernel_pull;
mod made_whole;
mod manifest;
pub mod mount_control;
pub mod mount_point;
pub mod mounted_store;
mod passed_signals;
mod privileges;
mod put_back;
mod run_on_plain;
mod session_dir;
mod session_mount;
mod sync_paths;

pub use fuse_device::End;
