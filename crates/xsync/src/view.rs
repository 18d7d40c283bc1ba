//! The file system of a session: overlays, its root, the directory of `--on`. Stands on `host` and `volumes`.

pub(crate) mod exact;
pub mod on_directory;
pub(crate) mod origins;
pub(crate) mod overlays;
pub(crate) mod sealed_directory;
pub mod session_root;
pub(crate) mod split_view;
