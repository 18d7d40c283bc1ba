//! Contents of small files: their room in the pack, and drafts of them in memory. Stands on nothing else here.

pub(crate) mod draft;
pub(crate) mod pack;
pub(crate) mod pack_room;
