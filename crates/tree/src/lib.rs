//! A tree of files in a store, by inode number: names, attributes, contents, and what a sync commits.
//!
//! Nothing here knows FUSE: `crates/mount` serves a [`FileTree`] to the kernel, and the tests run one on the simulated
//! disk.

mod clock;
mod contents;
mod core;
mod file_tree;
mod inode;
mod inode_table;
mod operations;
mod plain_contents;
mod row;
mod store_tree;

pub use clock::{Clock, SystemClock};
pub use file_tree::{
    Attributes, Change, Entry, Errno, FileTree, Ino, Kind, Pull, ROOT, RenameFlags, Request, Result, SetTime, SpaceUse,
    Time,
};
pub use store_tree::{CommitMode, StoreTree, TreeOptions};
