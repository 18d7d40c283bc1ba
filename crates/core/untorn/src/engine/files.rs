//! Files of an open store: their state in memory, and changes of their names. Stands on `content` and `region`.

pub(crate) mod changed_lines;
pub(crate) mod file_state;
pub(crate) mod name_op;
pub(crate) mod open_files;
pub(crate) mod queue;
