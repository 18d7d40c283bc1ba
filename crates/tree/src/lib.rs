//! A tree of files in a store, by inode number: names, attributes, contents, and what a sync commits.
//!
//! Nothing here knows FUSE: `crates/mount` serves a [`FileTree`] to the kernel, and the tests run one on the simulated
//! disk.

mod file_tree;

pub use file_tree::{
    Attributes, Change, Entry, Errno, FileTree, Ino, Kind, Pull, ROOT, RenameFlags, Request, Result, SetTime, SpaceUse,
    Time,
};
