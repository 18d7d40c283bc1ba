//! Reading a store that another process owns, for C. Stands on `boundary`.

pub(crate) mod follow;
pub(crate) mod reader;
