//! The file system: messages of the kernel, the threads that answer them, and requests to the kernel to send dirty
//! pages. Stands on `mounts`.

pub(crate) mod device;
pub(crate) mod handlers;
pub mod kernel_pull;
pub(crate) mod privileges;
pub(crate) mod protocol;
pub(crate) mod puller;
pub mod server;
pub(crate) mod waiting_call;
