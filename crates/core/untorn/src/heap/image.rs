//! A heap as bytes: its layout, and the checks of it. Stands on nothing else here.

pub(crate) mod check;
pub(super) mod free_in_image;
pub(super) mod layout;
pub(super) mod pointer;
pub(super) mod report;
