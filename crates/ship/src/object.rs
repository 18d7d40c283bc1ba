//! The objects of a bucket, byte by byte: `docs/design/SHIP_PROTOCOL.md`.

pub mod bytes;
pub mod hash;
pub mod log;
pub mod manifest;
pub mod names;
pub mod snapshot;
