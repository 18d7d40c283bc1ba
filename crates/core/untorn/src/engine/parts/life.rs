//! Whether a store may be used: it is open in this process, closing, shut down, or failed.
//!
//! `closing` is the outermost lock of a store.

use crate::engine::waiting::concurrency::{AtomicBool, Mutex, MutexGuard};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use untorn_journal::journal::Journal;
use untorn_journal::{Error, Result};
use untorn_os::process_generation;

/// The life of an open store.
pub(crate) struct Life {
    /// The process that opened the store; a forked child has another generation.
    generation: u64,
    /// Held while the store closes, so that a second caller waits for the end.
    closing: Mutex<()>,
    /// Whether the store refuses further calls.
    closed: AtomicBool,
    /// Whether the store is closed and the journal may belong to the next owner. Set while the checkpoint lock is held.
    shut_down: AtomicBool,
    /// Whether the journal has failed for good; the journal itself has the reason.
    failed: AtomicBool,
}

impl Life {
    /// The life of a store that this process has just opened.
    pub(crate) fn new() -> Life {
        Life {
            generation: process_generation(),
            closing: Mutex::new(()),
            closed: AtomicBool::new(false),
            shut_down: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        }
    }

    /// Refuses handles of the parent in a forked child.
    pub(crate) fn check_fork(&self) -> Result<()> {
        if self.generation == process_generation() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Refuses calls in a forked child, and after the store was closed.
    pub(crate) fn check_usable(&self) -> Result<()> {
        self.check_fork()?;
        if self.is_closed() { Err(Error::Closed) } else { Ok(()) }
    }

    /// Refuses late calls, which could open files that belong to the next owner.
    pub(crate) fn check_not_shut_down(&self) -> Result<()> {
        if self.shut_down.load(SeqCst) { Err(Error::Closed) } else { Ok(()) }
    }

    /// Whether the store refuses further calls.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }

    /// Begins to close: further calls are refused. Returns `None`, after the end of the close, if another caller has
    /// closed the store.
    pub(crate) fn close(&self) -> Option<MutexGuard<'_, ()>> {
        let closing = self.closing.lock();
        (!self.closed.swap(true, SeqCst)).then_some(closing)
    }

    /// Notes that the journal may belong to the next owner. The caller holds the checkpoint lock.
    pub(crate) fn shut_down(&self) {
        debug_assert!(self.is_closed(), "a store is closed before it is shut down");
        self.shut_down.store(true, SeqCst);
    }

    /// Whether the journal has failed for good.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(SeqCst)
    }

    /// Notes that no more commits are possible after a failed write or flush of the journal, so that calls learn it
    /// without locking the journal.
    pub(crate) fn note_failure(&self, journal: &Journal, store: &Path) {
        let failure = journal.failure();
        let had_failed = self.failed.swap(failure.is_some(), SeqCst);
        debug_assert!(failure.is_some() || !had_failed, "a journal that failed works again");
        if !had_failed && let Some(e) = failure {
            tracing::error!(
                id = "untorn.store.stopped",
                store = %store.display(), error = %e, "no more commits until the store is reopened"
            );
        }
    }
}
