//! The processes of a session: first process, supervisor, watcher. Stands on `relays`, `filter` and `view`.

pub(crate) mod outer_terminal;
pub(crate) mod session_init;
pub(crate) mod signal_thread;
pub(crate) mod supervisor;
pub mod watcher;
