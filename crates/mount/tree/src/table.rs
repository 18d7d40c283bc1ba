//! Inodes: their rows, the table's file, and inodes in memory. Stands on `interface` and `small_files`.

pub(crate) mod inode;
pub(crate) mod inode_table;
pub(crate) mod row;
