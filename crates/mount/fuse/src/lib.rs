//! A file system over a tree of Untorn files, for unmodified programs.
//!
//! The kernel sends requests through `/dev/fuse` (`fuse`), and the tree answers them. Programs commit by `fsync`,
//! `msync`, or a rename over a file. If the kernel has dirty pages in its cache then, it is made to send them
//! (`kernel_cache`).

pub mod cli;
pub mod daemon;
mod error_line;
pub mod fuse;
mod import_export;
pub mod mounts;
mod plain_trees;
mod processes;
mod session;

pub use fuse::device::End;
