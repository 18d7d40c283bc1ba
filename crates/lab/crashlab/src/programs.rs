//! Programs for the simulated machine, and the expected state after each of their steps. Stands on `simulation`.

pub(crate) mod differences;
pub(crate) mod fixture;
pub(crate) mod mapping_operations;
pub(crate) mod name_operations;
pub(crate) mod oracle;
pub mod program;
pub mod reference_model;
pub(crate) mod run;
pub(crate) mod runner;
