//! For the command, not for programs: inspection, work on closed stores, repair, replacement of files. Stands on
//! everything else here.

pub(crate) mod adopt;
pub(crate) mod begin_at;
pub(crate) mod inspection;
pub(crate) mod leave;
pub mod offline;
pub(crate) mod put;
pub(crate) mod replacement_lock;
pub(crate) mod slots;
pub(crate) mod unneeded;
