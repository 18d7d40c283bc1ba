//! Benchmarks of `untorn ship`.

mod gated;
pub(crate) mod shipping;
pub(crate) mod slow_place;
