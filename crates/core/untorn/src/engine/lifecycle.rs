//! An open store from its opening to its close: its background thread, its status. Stands on `table`, `checkpoint` and
//! `commit`.

pub(crate) mod background;
pub(crate) mod left_marks;
pub(crate) mod open_store;
pub(crate) mod open_stores;
pub(crate) mod status;
mod watchers;
