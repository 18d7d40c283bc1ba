//! The state of the POSIX-shaped calls: descriptors, addresses and settings. Stands on nothing else here.

pub(super) mod address_ranges;
pub(super) mod append_list;
pub(super) mod call_section;
pub(super) mod descriptor_table;
pub(super) mod file_owner;
pub(super) mod own_descriptors;
pub(super) mod patterns;
pub(super) mod posix_descriptor;
pub(super) mod record_locks;
pub(super) mod report;
pub(super) mod settings;
