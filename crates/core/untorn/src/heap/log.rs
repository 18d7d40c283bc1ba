//! Undo logs of sections in a live heap's memory. Stands on `image`.

pub(crate) mod flushing;
pub(crate) mod live_head;
pub(super) mod section_log;
pub(super) mod section_mark;
pub(super) mod section_record;
pub(super) mod section_recovery;
pub(super) mod section_stability;
pub(super) mod section_thread;
pub(super) mod sections;
