//! POSIX-shaped calls on ordinary descriptors: `include/untorn_posix.h` puts them in the place of `open`, `mmap`,
//! `msync`, `rename` and related calls.
//!
//! A file is **managed** if the program has named it, from its opening for writing until the last of its descriptors and
//! maps is gone. A call on any descriptor of a managed file is a call on the file as Untorn shows it; all other calls go
//! to the C library unchanged, after one look at a table that needs no lock. The calls on managed files ask the kernel
//! which file a descriptor is of, and for the descriptor's offset and flags.
//!
//! Imports run down this list only:
//!
//! 1. [`cxx_calls`](calls::cxx_calls): the C++ library's calls
//! 2. [`path_calls`](calls::path_calls), [`stream_calls`](calls::stream_calls): names and streams; [`txn_calls`](calls::txn_calls): several files as one
//! 3. [`open_calls`](calls::open_calls), [`map_calls`](calls::map_calls), [`descriptor_calls`](calls::descriptor_calls), [`shell_calls`](calls::shell_calls)
//! 4. [`io_calls`](calls::io_calls); [`transactions`](files::transactions), [`store_changes`](files::store_changes): changes of named stores; [`shown_commit`](files::shown_commit); [`relocation`](files::relocation): names of open files change
//! 5. [`name`](files::name): names and the stores behind them; [`managing`](files::managing): files begin to be managed; [`own_commits`](files::own_commits): changes that are commits; [`at_exit`](files::at_exit): the end of the process
//! 6. [`windows`](files::windows): maps of managed files; [`managed_files`](files::managed_files): the table of managed files
//! 7. [`managed_stores`](files::managed_stores): directories whose files are committed together; [`mount_files`](files::mount_files): files that a mount of Untorn's manages
//! 8. [`record_locks`](state::record_locks), [`patterns`](state::patterns), [`settings`](state::settings), [`descriptor_table`](state::descriptor_table)
//! 9. [`append_list`](state::append_list), [`own_descriptors`](state::own_descriptors), [`report`](state::report), [`posix_descriptor`](state::posix_descriptor), [`address_ranges`](state::address_ranges)
//! 10. [`call_section`](state::call_section): calls in signal handlers; [`file_owner`](state::file_owner): children that share the memory

mod calls;
mod files;
mod state;
