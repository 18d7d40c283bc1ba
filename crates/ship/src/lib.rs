//! Ships the commits of a store to an object store, restores any point of them, follows them live, and fails over.

#![forbid(unsafe_code)]

pub mod bucket;
pub mod chain;
pub mod error;
pub mod interface;
#[doc(hidden)]
pub mod invariant;
pub mod object;
pub mod point;
pub mod program;
pub mod restore;
pub mod retain;
pub mod ship;
pub mod store;
#[doc(hidden)]
pub mod sync_point;
