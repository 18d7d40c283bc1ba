//! Processes on the simulated machine: their files and mappings. Stands on `state`.

pub(super) mod machine;
pub(super) mod mapped_pages;
pub(super) mod process;
pub(super) mod real_memory;
mod simulated_file;
mod simulated_lines;
pub(super) mod simulated_mapping;
