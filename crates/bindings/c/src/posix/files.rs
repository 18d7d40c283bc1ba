//! The files that programs have open through the POSIX-shaped calls, in stores and on mounts. Stands on `state`.

pub(super) mod at_exit;
mod changed_names;
pub(super) mod managed_files;
pub(super) mod managed_stores;
pub(super) mod managing;
pub(super) mod mount_files;
pub(super) mod name;
pub(super) mod own_commits;
pub(super) mod patience;
pub(super) mod relocation;
pub(super) mod shown_commit;
pub(super) mod store_changes;
pub(super) mod transactions;
pub(super) mod windows;
