//! Calls in the shape of POSIX, on ordinary descriptors: `include/untorn_posix.h` puts them in the place of
//! `open`, `mmap`, `msync` and related calls in one source file.
//!
//! A file is **managed** from the first shared, writable map of the file (or from its opening, if the file
//! already has a store beside it) until the last of its descriptors and maps is gone. A call on any
//! descriptor of a managed file is a call on the file as Untorn shows it; all other calls go to the C
//! library unchanged. Each call asks the kernel which file a descriptor is of, and for the descriptor's
//! offset and flags. So `dup`, descriptors from other sources and reused numbers need no bookkeeping.

mod io_calls;
mod managed_files;
mod map_calls;
mod open_calls;
mod posix_descriptor;
