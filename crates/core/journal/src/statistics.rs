//! Figures of an open store, which its owner publishes behind the readers' page while a program watches.

pub mod figures;
pub mod histogram;
