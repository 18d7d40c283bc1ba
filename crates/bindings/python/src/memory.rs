//! Files as memory: maps, maps for reading, and tables in heaps.

pub(crate) mod map;
pub(crate) mod read_map;
pub(crate) mod table;
