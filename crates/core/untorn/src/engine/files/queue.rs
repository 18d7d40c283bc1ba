//! Commits that wait to be written.

use crate::engine::files::file_state::SharedFile;
use crate::engine::files::name_op::NameOp;
use crate::engine::waiting::completion::Promise;
use crate::engine::waiting::concurrency::Instant;
use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use untorn_journal::Error;

/// The queue of a store, and whether a thread is writing from it.
#[derive(Default)]
pub(crate) struct Queue {
    pub waiting: VecDeque<Request>,
    /// Names that commits on their way change (queued or being written), and the number of such commits.
    names: HashMap<PathBuf, usize>,
    /// A thread is writing a batch.
    pub leading: bool,
    /// Threads that wait for a commit of theirs now, and their largest number during the last batch.
    pub waiters: usize,
    pub waiters_max: usize,
    /// With `in_order`: why the first queued commit could not be written. It keeps its place, and is tried again
    /// whenever a thread waits for a commit.
    pub stuck: Option<Error>,
    /// Duration of the last batch.
    pub batch_took: Duration,
}

impl Queue {
    pub(crate) fn push(&mut self, request: Request) {
        debug_assert!(
            request.files.is_sorted_by(|one, next| one.id < next.id),
            "files {:?} are locked in another order, or twice",
            request.files.iter().map(|file| file.id).collect::<Vec<_>>()
        );
        debug_assert!(
            request.is_txn || request.names.is_empty(),
            "{} changes of names outside of a transaction",
            request.names.len()
        );
        for path in request.names.iter().flat_map(NameOp::paths) {
            *self.names.entry(path.to_owned()).or_insert(0) += 1;
        }
        self.waiting.push_back(request);
    }

    /// Notes that the commit with these names has a result.
    pub(crate) fn settle(&mut self, names: &[NameOp]) {
        for path in names.iter().flat_map(NameOp::paths) {
            debug_assert!(self.names.get(path).is_some_and(|n| *n > 0), "no commit on its way changes {path:?}");
            if let Some(n) = self.names.get_mut(path) {
                *n -= 1;
                if *n == 0 {
                    self.names.remove(path);
                }
            }
        }
    }

    /// Whether a commit on its way changes this name.
    pub(crate) fn changes(&self, path: &Path) -> bool {
        self.names.contains_key(path)
    }
}

/// One commit in the queue.
pub(crate) struct Request {
    /// Files with changes. Each has one overlay on its way for every request that names it, in order.
    pub files: Vec<Arc<SharedFile>>,
    pub names: Vec<NameOp>,
    /// Whether a transaction made it. A transaction that fails is aborted; other changes become uncommitted again.
    pub is_txn: bool,
    /// When the call began, if a program watches.
    pub begun: Option<Instant>,
    pub completion: Promise,
}
