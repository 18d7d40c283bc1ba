//! Workers, which make all calls that could hang, and the watchdog that ends them.

pub(super) mod watchdog;

pub use crate::device::mount_trial::try_mount;
pub use watchdog::{Limits, PROBE, Stuck, directory, end_all, missing, probe, say, supervise, work_if_asked};
