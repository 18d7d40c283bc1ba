//! The file system: messages of the kernel, the threads that answer them, and requests to the kernel to send dirty
//! pages. Stands on `mounts`.

pub(crate) mod arrivals;
pub(crate) mod device;
pub(crate) mod handlers;
pub mod kernel_cache;
pub(crate) mod privileges;
pub(crate) mod protocol;
pub(crate) mod random;
pub mod server;
pub(crate) mod waiting_call;
pub(crate) mod write_back_helper;

pub use untorn_os::mount_kernels as kernel;
