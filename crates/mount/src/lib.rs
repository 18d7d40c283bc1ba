//! A file system over a tree of untorn files, for programs that nobody changes.
//!
//! The kernel asks through `/dev/fuse` (`fuse_server`), the tree answers, and a commit is what programs know as `fsync`,
//! `msync` and a rename over a file. What the kernel still has in its cache when that is asked, it is made to send
//! (`kernel_pull`).

pub mod cli;
mod copying;
pub mod daemon;
mod daemon_start;
mod daemon_supervisor;
mod deep_paths;
mod error_line;
mod export;
mod fuse_device;
mod fuse_protocol;
pub mod fuse_server;
mod handlers;
mod held_back;
mod import;
mod kept_log;
pub mod kernel_pull;
mod made_plain;
mod made_whole;
mod manifest;
mod mount_check;
pub mod mount_control;
mod mount_device;
pub mod mount_point;
pub mod mount_status;
pub mod mounted_store;
mod passed_descriptors;
mod passed_signals;
mod privileges;
mod puller;
mod put_back;
mod run_on_plain;
mod session_changes;
mod session_dir;
mod session_mount;
mod status_question;
mod store_files;
mod supervised;
mod sync_paths;
mod trial_below;
mod waiting_call;
mod widened_modes;

pub use fuse_device::End;
