//! External synchrony for unmodified programs on an unmodified kernel.
//!
//! The program never waits for the disk, and the outside never sees anything that a crash could take back.
//!
//! A session runs on one private ext4 volume with data in its journal ([`volume`](volumes::volume)), and can write
//! nothing else ([`host_view`](host::host_view), [`session_root`](view::session_root)). Flushes return at once
//! ([`syscall_filter`](filter::syscall_filter)). The supervisor relays the session's output to the outside, after a
//! commit of the volume ([`committer`](volumes::committer), [`relay`](relays::relay)). See `docs/XSYNC.md`.

pub mod changes;
pub mod commands;
mod control;
pub mod filter;
pub mod host;
pub mod invariant;
pub mod network;
pub mod relays;
pub mod report;
pub mod session;
pub mod view;
pub mod volumes;
