//! Descriptors of files: kept above standard error, verified by their identity, closed in a forked child; files as
//! block devices. Stands on nothing else here.

pub(crate) mod descriptor;
pub(crate) mod descriptor_identity;
pub(crate) mod file_handle;
pub(crate) mod fork;
pub(crate) mod listener;
pub(crate) mod loop_device;
