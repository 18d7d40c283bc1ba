//! The POSIX-shaped calls. Stands on `files`.

pub(super) mod cxx_calls;
pub(super) mod descriptor_calls;
pub(super) mod io_calls;
pub(super) mod map_calls;
pub(super) mod open_calls;
pub(super) mod path_calls;
pub(super) mod preload_calls;
pub(super) mod shell_calls;
pub(super) mod stream_calls;
pub(super) mod txn_calls;
