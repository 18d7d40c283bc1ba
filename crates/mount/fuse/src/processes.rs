//! Processes of a mount: descriptors and signals passed between them, and the log that outlives the daemon. Stands on
//! nothing else here.

pub(crate) mod passed_descriptors;
pub(crate) mod passed_signals;
pub(crate) mod supervised;
pub(crate) mod supervised_log;
