//! Data files: finding, creating, changing and walking them, and removing Untorn's marks from them. Stands on `commits`
//! and `directories`.

pub mod apply;
pub mod create;
pub(crate) mod create_ahead;
pub mod data_tree;
pub mod detach;
pub mod locate;
