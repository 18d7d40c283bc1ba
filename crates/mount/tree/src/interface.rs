//! The interface of a tree of files: the trait, the clock, limits, access lists. Stands on nothing else here.

pub(crate) mod access_list;
pub(crate) mod clock;
pub(crate) mod file_tree;
pub(crate) mod limits;
