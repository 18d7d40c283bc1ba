//! Locks, and threads that wait for each other. Stands on nothing else here.

pub(crate) mod completion;
pub(crate) mod concurrency;
pub(crate) mod notification;
pub(crate) mod remote_slot;
pub(crate) mod wakeup;
