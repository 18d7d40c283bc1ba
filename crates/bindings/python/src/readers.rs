//! Reading stores that another process may have open.

pub(crate) mod follow;
pub(crate) mod reader;
