//! External synchrony for unmodified programs on an unmodified kernel: nothing waits for the disk, and nothing that a
//! crash could take back reaches the outside.
//!
//! A session runs on one private ext4 volume with data in its journal ([`volume`]); nothing else in it is writable
//! ([`host_view`], [`session_root`]). Calls that flush answer at once ([`syscall_filter`]). What the session says to
//! the outside is relayed by the supervisor, after a commit of the volume ([`committer`], [`relay`]). See
//! `docs/XSYNC.md`.

mod access_lists;
mod answers;
pub mod apply_changes;
mod capabilities;
pub mod cares;
pub mod committer;
mod connection;
mod control;
mod datagrams;
mod deep_path;
mod exact;
mod file_flags;
mod held_directories;
mod host_mounts;
pub mod host_view;
mod inner_sockets;
mod journal_blocks;
mod kept_changes;
pub mod listen;
mod loop_device;
mod mount_flags;
mod netlink;
pub mod on_directory;
mod origins;
mod outer_streams;
mod outer_terminal;
mod outgoing;
mod outgoing_rules;
pub mod outside_readers;
mod overlays;
pub mod place_layers;
pub mod print_fstab;
mod private_mounts;
pub mod relay;
mod renames;
mod requests;
pub mod rescue;
mod rings;
pub mod run_on;
pub mod run_session;
mod scarce_room;
mod sealed_directory;
mod session_home;
mod session_init;
pub mod session_network;
pub mod session_report;
pub mod session_root;
mod shared_maps;
mod signal_thread;
mod split_view;
mod stale_maps;
pub mod status_socket;
mod supervisor;
pub mod syscall_filter;
pub mod volume;
mod volume_name;
pub mod watcher;
mod work_dirs;
