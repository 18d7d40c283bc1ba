//! Contents of small files: their room in the pack, and their drafts in memory. Stands on nothing else here.

pub(crate) mod draft;
pub(crate) mod pack;
pub(crate) mod pack_room;
