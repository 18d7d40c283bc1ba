//! A tree of files in a store, by inode number: names, attributes, contents, and what a sync commits.
//!
//! Nothing here knows FUSE: `crates/mount` serves a [`FileTree`] to the kernel, and the tests run one on the simulated
//! disk.

mod access_list;
mod clock;
mod contents;
mod continuation;
mod core;
mod draft;
mod file_tree;
mod handover;
mod holes;
mod inode;
mod inode_table;
mod kept;
mod limits;
mod operations;
mod pack;
mod pack_room;
mod places;
mod plain_contents;
mod resume;
mod row;
mod store_tree;
mod submission;
mod transactions;
mod tree_status;
mod verification;

pub use clock::{Clock, SystemClock};
pub use continuation::{answering, has_happened, is_repeated};
pub use file_tree::{
    Attributes, Change, Entry, Errno, FileTree, Ino, Kind, Pull, ROOT, RenameFlags, Request, Result, SetTime, SpaceUse,
    Time, Transaction, TreeStatus,
};
pub use inode_table::{TABLE, missing_table};
pub use kept::Kept;
pub use limits::{Limits, Xattrs};
pub use pack::PACK;
pub use plain_contents::Contents;
pub use store_tree::{Below, CommitMode, StoreTree, TreeOptions};
pub use verification::{Verified, verify};
