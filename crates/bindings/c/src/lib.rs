//! `libuntorn`: the C interface of Untorn.
//!
//! Every exported function checks its arguments, makes one call of the Rust library, and converts the
//! result for C. cbindgen generates the header `include/untorn.h` from these files, documentation
//! included. So the documentation of an exported item is written for the C programmer.
//!
//! Two rules make the boundary safe. A handle is a number in the shape of a pointer, looked up in a table
//! and never followed ([`handle`](boundary::handle)). And every function body runs inside [`boundary::error::guard`], which catches
//! panics.
//!
//! Imports run down this list only:
//!
//! 1. [`posix`]; [`heap_memory`](heaps::memory), [`heap_roots`](heaps::roots), [`heap_inspect`](heaps::inspect), [`section_calls`](heaps::section_calls)
//! 2. [`heap`](heaps::heap), [`map`](stores::map), [`txn`](stores::txn), [`output_gate`](stores::output_gate)
//! 3. [`file`](stores::file): file handles; [`follow`](readers::follow)
//! 4. [`store`](stores::store), [`ticket`](stores::ticket), [`reader`](readers::reader)
//! 5. [`status`](boundary::status)
//! 6. [`options`](boundary::options), [`handle`](boundary::handle), [`text`](boundary::text)
//! 7. [`versioned`](boundary::versioned), [`arguments`](boundary::arguments): checks on arguments
//! 8. [`log`](boundary::log)
//! 9. [`error`](boundary::error)

// The parts that are left out are the only users of some items below them.
#![cfg_attr(not(feature = "posix"), allow(dead_code, unused_imports))]

mod boundary;
#[cfg(feature = "heap")]
mod heaps;
// Held over a fork. The child unlocks them, for which `parking_lot` has a table that another thread may have locked.
#[allow(clippy::disallowed_types)]
#[cfg(feature = "posix")]
mod posix;
#[cfg(feature = "readers")]
mod readers;
mod stores;
