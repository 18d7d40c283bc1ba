//! Reading the bucket: the newest manifest, and the chain of log objects.

pub mod objects;
pub mod walk;
