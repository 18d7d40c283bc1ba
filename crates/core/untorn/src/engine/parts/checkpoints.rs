//! The state of checkpoints: the running one, and the reasons for the next.
//!
//! The checkpoint lock comes after `closing` and before the journal.

use crate::engine::waiting::concurrency::{AtomicBool, AtomicU64, Mutex};

/// The state of a store's checkpoints.
#[derive(Default)]
pub(crate) struct Checkpoints {
    /// The checkpoint lock: held during a checkpoint, so that there is one at a time.
    pub lock: Mutex<()>,
    /// Whether a checkpoint is running.
    pub running: AtomicBool,
    /// Whether the last checkpoint failed, so that another one is due in any case.
    pub failed: AtomicBool,
    /// Whether a commit waits for room in the journal.
    pub room_wanted: AtomicBool,
    /// Whether the commits of some file form many layers.
    pub merge_wanted: AtomicBool,
    /// Whether space is reserved for quarantining the journal on a full disk.
    pub has_spare: AtomicBool,
    /// Number of checkpoints.
    pub count: AtomicU64,
}
