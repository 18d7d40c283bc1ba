//! The host around a session: mounts, capabilities, streams, outside readers. Stands on `report`.

pub(crate) mod capabilities;
pub(crate) mod deep_path;
pub(crate) mod file_flags;
pub(crate) mod held_directories;
pub(crate) mod host_mounts;
pub mod host_view;
pub(crate) mod mount_flags;
pub(crate) mod outer_streams;
pub mod outside_readers;
pub(crate) mod private_mounts;
