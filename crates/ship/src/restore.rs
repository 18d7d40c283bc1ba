//! Out of the bucket: restore, follow, promote, verify.

pub mod follow;
pub mod plan;
pub mod run;
pub mod verify;
