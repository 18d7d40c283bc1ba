//! The commits that wait to be written, and the threads that wait for them.
//!
//! The queue is the innermost lock of a store.

use crate::engine::files::queue::Queue;
use crate::engine::waiting::concurrency::{AtomicU64, Condvar, Mutex};
use crate::engine::waiting::notification::Notification;
use crate::engine::waiting::wakeup::Wakeup;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// The commits of a store on their way to the journal.
pub(crate) struct CommitQueue {
    pub queue: Mutex<Queue>,
    pub changed: Condvar,
    /// Tells event loops of results.
    pub notification: Arc<Notification>,
    /// Wakes the background thread.
    pub wakeup: Arc<Wakeup>,
    next_txn: AtomicU64,
    /// Number of commits for which a thread waited.
    pub waited: AtomicU64,
    /// Number of batches of commits, by which a checkpoint sees whether commits run beside it.
    pub batches: AtomicU64,
}

impl CommitQueue {
    /// An empty queue.
    pub(crate) fn new() -> CommitQueue {
        CommitQueue {
            queue: Mutex::default(),
            changed: Condvar::new(),
            notification: Arc::default(),
            wakeup: Arc::default(),
            next_txn: AtomicU64::new(1),
            waited: AtomicU64::new(0),
            batches: AtomicU64::new(0),
        }
    }

    /// A number that no other transaction of this opening has.
    pub(crate) fn new_txn_id(&self) -> u64 {
        self.next_txn.fetch_add(1, SeqCst)
    }
}
