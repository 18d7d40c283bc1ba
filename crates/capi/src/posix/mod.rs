//! Calls in the shape of POSIX, on ordinary descriptors: `include/untorn_posix.h` puts them in the place of
//! `open`, `mmap`, `msync`, `rename` and related calls.
//!
//! A file is **managed** if the program has named it, from its opening for writing until the last of its descriptors and
//! maps is gone. A call on any descriptor of a managed file is a call on the file as Untorn shows it; all other calls go
//! to the C library unchanged, after one look at a table that needs no lock. The calls on managed files ask the kernel
//! which file a descriptor is of, and for the descriptor's offset and flags.
//!
//! Imports run down this list only:
//!
//! 1. [`cxx_calls`]: the C++ library's calls
//! 2. [`path_calls`], [`stream_calls`]: names and streams
//! 3. [`open_calls`], [`map_calls`], [`descriptor_calls`], [`shell_calls`]
//! 4. [`io_calls`]; [`relocation`]: names of open files change
//! 5. [`managing`]: files begin to be managed; [`at_exit`]: the end of the process
//! 6. [`managed_files`]: the table of managed files
//! 7. [`mount_files`]: files that a mount of Untorn's manages
//! 8. [`record_locks`], [`patterns`], [`descriptor_table`]
//! 9. [`report`], [`posix_descriptor`], [`address_ranges`]
//! 10. [`call_section`]: calls in signal handlers; [`file_owner`]: children that share the memory

mod address_ranges;
mod at_exit;
mod call_section;
mod cxx_calls;
mod descriptor_calls;
mod descriptor_table;
mod file_owner;
mod io_calls;
mod managed_files;
mod managing;
mod map_calls;
mod mount_files;
mod open_calls;
mod path_calls;
mod patterns;
mod posix_descriptor;
mod record_locks;
mod relocation;
mod report;
mod shell_calls;
mod stream_calls;
