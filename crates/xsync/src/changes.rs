//! Applies the changes of a session to the host's directories. Stands on `session` and `view`.

pub(crate) mod access_lists;
pub mod apply_changes;
pub(crate) mod kept_changes;
pub mod rescue;
pub(crate) mod work_dirs;
