//! Readers beside the owner: how they read a store without owning it, and without anybody waiting for them. Stands on
//! `scanning`, `data_files` and `undo`.

pub mod check_kept;
pub mod closed_store;
pub mod epochs;
pub mod follower;
pub(crate) mod former_log;
pub(crate) mod index_tail;
pub mod known_log;
pub mod log_tail;
pub mod look;
pub mod refusal;
pub mod snapshot;
pub mod watch;
