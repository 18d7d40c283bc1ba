//! `libuntorn`: the C face of Untorn.
//!
//! Every exported function does the same three things: check its arguments, make one call of the
//! Rust library, and turn the result into what C expects. The header `include/untorn.h` is
//! generated from these files by cbindgen, documentation included, so what is written on an
//! exported item is written for the C programmer.
//!
//! Two rules make the boundary safe. A handle is a number in the shape of a pointer, looked up in a
//! table and never followed ([`handle`]); and every body runs inside [`error::guard`], which lets
//! no panic out.

mod arguments;
mod error;
mod file;
mod handle;
mod heap;
mod map;
mod options;
mod posix;
mod status;
mod store;
mod ticket;
mod txn;
mod versioned;
