//! The state of the simulated disk: inodes, calls that change them, and the possible results of a power cut. Stands on
//! nothing else here.

pub(super) mod disk_options;
pub(super) mod disk_state;
pub(super) mod effect;
pub(super) mod flushing;
pub(crate) mod inodes;
pub(super) mod permissions;
pub(super) mod power_cut;
pub(super) mod refusal;
pub(crate) mod stored_lines;
