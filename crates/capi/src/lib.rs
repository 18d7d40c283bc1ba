//! `libuntorn`: the C interface of Untorn.
//!
//! Every exported function checks its arguments, makes one call of the Rust library, and converts the
//! result for C. cbindgen generates the header `include/untorn.h` from these files, documentation
//! included. So the documentation of an exported item is written for the C programmer.
//!
//! Two rules make the boundary safe. A handle is a number in the shape of a pointer, looked up in a table
//! and never followed ([`handle`]). And every function body runs inside [`error::guard`], which catches
//! panics.
//!
//! Imports run down this list only:
//!
//! 1. [`posix`]; [`heap_memory`], [`heap_roots`], [`heap_inspect`], [`section_calls`]
//! 2. [`heap`], [`map`], [`txn`], [`output_gate`]
//! 3. [`file`]: file handles; [`follow`]
//! 4. [`store`], [`ticket`], [`reader`]
//! 5. [`status`]
//! 6. [`options`], [`handle`], [`text`]
//! 7. [`versioned`], [`arguments`]: checks on arguments
//! 8. [`log`]
//! 9. [`error`]

mod arguments;
mod error;
mod file;
mod follow;
mod handle;
mod heap;
mod heap_inspect;
mod heap_memory;
mod heap_roots;
mod log;
mod map;
mod on_mount;
mod options;
mod output_gate;
mod posix;
mod read_copies;
mod reader;
mod section_calls;
mod standard_error;
mod status;
mod store;
mod text;
mod ticket;
mod txn;
mod versioned;
