//! Benchmarks of mounts. Stands on `kv` and `xsync`.

pub(crate) mod file_system_programs;
pub(crate) mod fuse_peers;
pub(crate) mod mariadb;
pub(crate) mod mounted;
pub(crate) mod mounted_programs;
