//! Complete runs for the command line. Stands on all other modules of this crate.

pub mod place_layers;
pub mod print_fstab;
pub mod run_on;
pub mod run_session;
