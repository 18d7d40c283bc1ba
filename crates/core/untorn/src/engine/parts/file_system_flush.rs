//! Flushes of the whole file system that a store lies on.

use crate::engine::waiting::concurrency::{AtomicU64, Mutex};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use untorn_journal::{Context, Result};
use untorn_os::{Storage, SyncPoint};

/// The flushes of a store's file system, one at a time.
#[derive(Default)]
pub(crate) struct FileSystemFlush {
    one_at_a_time: Mutex<()>,
    failures: AtomicU64,
}

impl FileSystemFlush {
    /// Flushes all files of the file system.
    pub(crate) fn flush(&self, storage: &dyn Storage, point: SyncPoint, store: &Path) -> Result<()> {
        let _one_at_a_time = self.one_at_a_time.lock();
        let done = storage.sync_file_system(point).context("flush", store);
        if done.is_err() {
            self.note_failure();
        }
        done
    }

    /// Notes a failed flush.
    pub(crate) fn note_failure(&self) {
        self.failures.fetch_add(1, SeqCst);
    }

    /// Number of flushes that failed. The kernel reports each failure once, to one caller.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(SeqCst)
    }
}
