//! A tree of files in a store, by inode number: names, attributes, contents, and their commits.
//!
//! The crate knows nothing of FUSE: `crates/mount/fuse` serves a [`FileTree`] to the kernel, and the tests run one on
//! the simulated disk.

mod committed_tree;
mod contents;
mod handover;
mod interface;
mod operations;
mod resume;
mod small_files;
mod table;
mod tree;

pub use committed_tree::{CommittedFile, CommittedTree};
pub use contents::plain_contents::Contents;
pub use handover::log::HandoverLog;
pub use interface::clock::{Clock, SystemClock};
pub use interface::file_tree::{
    Attributes, Change, Entry, Errno, FileTree, Ino, KernelCache, Kind, ROOT, RenameFlags, Request, Result, SetTime,
    SpaceUse, Time, Transaction, TreeStatus,
};
pub use interface::limits::{Limits, Xattrs};
pub use resume::continuation::{answering, has_happened, is_repeated};
pub use small_files::pack::PACK;
pub use table::inode_table::{TABLE, missing_table};
pub use tree::store_tree::{Below, CommitMode, StoreTree, TreeOptions};
pub use tree::verification::{Verified, verify};
