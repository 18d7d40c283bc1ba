//! Mount points: making and finding them, the store behind a mount, its status, and the requests of commands to it.
//! Stands on `processes` and `plain_trees`.

pub mod awaited_slot;
pub(crate) mod committed_files;
pub(crate) mod mount_check;
pub mod mount_control;
pub(crate) mod mount_device;
pub(crate) mod mount_options;
pub mod mount_point;
pub mod mount_status;
pub mod mounted_store;
pub(crate) mod status_question;
pub(crate) mod store_files;
pub(crate) mod sync_paths;
pub(crate) mod unmount;
