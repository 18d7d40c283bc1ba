//! Sections of a live heap: groups of changes that a killed process leaves completely or not at all. Stands on
//! `handle`.

pub(super) mod audit;
pub(super) mod lock;
pub(super) mod run;
pub(super) mod section;
pub mod section_hooks;
