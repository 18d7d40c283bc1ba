//! Errors, buffers, locks and waits on the way between Python and Rust.

pub(crate) mod buffers;
pub(crate) mod descriptors;
pub(crate) mod errors;
pub(crate) mod options;
pub(crate) mod slot;
pub(crate) mod waits;
