//! External synchrony for unmodified programs on an unmodified kernel: nothing waits for the disk, and nothing that a
//! crash could take back reaches the outside.
//!
//! A session runs on one private ext4 volume with data in its journal ([`volume`](volumes::volume)); nothing else in it is writable
//! ([`host_view`](host::host_view), [`session_root`](view::session_root)). Calls that flush answer at once ([`syscall_filter`](filter::syscall_filter)). What the session says to
//! the outside is relayed by the supervisor, after a commit of the volume ([`committer`](volumes::committer), [`relay`](relays::relay)). See
//! `docs/XSYNC.md`.

pub mod cares;
pub mod changes;
pub mod commands;
mod control;
pub mod filter;
pub mod host;
pub mod network;
pub mod relays;
pub mod report;
pub mod session;
pub mod view;
pub mod volumes;
