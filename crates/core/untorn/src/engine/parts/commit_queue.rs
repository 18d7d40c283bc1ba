//! The commits that wait to be written, and the threads that wait for them.
//!
//! The queue is the innermost lock of a store.

use crate::engine::files::queue::Queue;
use crate::engine::waiting::concurrency::{AtomicU64, Condvar, Mutex};
use crate::engine::waiting::notification::Notification;
use crate::engine::waiting::wakeup::Wakeup;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use untorn_os::Storage;

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
    /// The process's file-size limit, which commits to memory do not ask for; 0: they do.
    file_limit: AtomicU64,
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
            file_limit: AtomicU64::new(0),
        }
    }

    /// The largest offset to which the process may write files (`RLIMIT_FSIZE`). To ask for it is a call, and a commit to
    /// memory makes none: it relies on the answer that a commit since the last checkpoint got.
    pub(crate) fn file_limit(&self, storage: &dyn Storage) -> u64 {
        match self.file_limit.load(Relaxed) {
            0 => storage.file_size_limit(),
            known => known,
        }
    }

    /// Notes that a commit went to memory, or that it did not.
    pub(crate) fn note_medium(&self, is_memory: bool, storage: &dyn Storage) {
        if is_memory != (self.file_limit.load(Relaxed) > 0) {
            self.file_limit.store(if is_memory { storage.file_size_limit() } else { 0 }, Relaxed);
        }
    }

    /// Lets the next commit ask for the process's file-size limit.
    pub(crate) fn forget_file_limit(&self) {
        self.file_limit.store(0, Relaxed);
    }

    /// A number that no other transaction of this opening has.
    pub(crate) fn new_txn_id(&self) -> u64 {
        self.next_txn.fetch_add(1, SeqCst)
    }
}
