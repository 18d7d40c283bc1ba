//! Shared by all calls of the C interface: arguments, errors, handles, texts, options, the log. Stands on nothing
//! else here.

pub(crate) mod arguments;
pub(crate) mod error;
pub(crate) mod handle;
pub(crate) mod log;
pub(crate) mod options;
pub(crate) mod standard_error;
pub(crate) mod status;
pub(crate) mod text;
pub(crate) mod versioned;
