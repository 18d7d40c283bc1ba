//! The volume of a session, and its commits. Stands on `host`.

pub mod committer;
pub(crate) mod disk;
pub(crate) mod journal_blocks;
pub(crate) mod scarce_room;
pub mod volume;
pub(crate) mod volume_name;
