//! A file system over a tree of untorn files, for programs that nobody changes.
//!
//! The kernel asks through `/dev/fuse` (`fuse`), the tree answers, and a commit is what programs know as `fsync`,
//! `msync` and a rename over a file. What the kernel still has in its cache when that is asked, it is made to send
//! (`kernel_pull`).

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
