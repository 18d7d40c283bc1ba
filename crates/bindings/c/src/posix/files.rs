//! Files that programs have open by the calls in the shape of POSIX, in stores and on mounts. Stands on `state`.

pub(super) mod at_exit;
pub(super) mod managed_files;
pub(super) mod managing;
pub(super) mod mount_files;
pub(super) mod relocation;
