//! Readers beside the owner: the state that the owner announces to them, and how they read a store without owning it.
//! Stands on `scanning` and `data_files`.

pub mod leases;
pub mod log_tail;
pub mod look;
pub mod moment;
pub mod names_since;
pub mod readers_page;
pub mod snapshot;
