//! Sections of a live heap: changes of which a killed process leaves all or none. Stands on `handle`.

pub(super) mod audit;
pub(super) mod lock;
pub(super) mod run;
pub(super) mod section;
#[doc(hidden)]
pub mod section_hooks;
