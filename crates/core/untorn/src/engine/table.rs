//! The table of open files: how files enter it, and when they leave it. Stands on `files` and the engine's state.

pub(crate) mod file_table;
pub(crate) mod forget;
pub(crate) mod unapplied;
