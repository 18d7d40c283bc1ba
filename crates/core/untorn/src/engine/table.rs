//! The table of open files: who is in it, from where, and until when. Stands on `files` and the engine's state.

pub(crate) mod carried;
pub(crate) mod file_table;
pub(crate) mod forget;
