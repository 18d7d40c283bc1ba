//! Whole runs, as the command line asks for them. Stands on everything else here.

pub mod place_layers;
pub mod print_fstab;
pub mod run_on;
pub mod run_session;
