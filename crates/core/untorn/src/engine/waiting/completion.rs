//! The result of a commit, passed from the thread that writes it to the threads that wait for it.

use crate::engine::waiting::concurrency::Mutex;
use std::io;
use std::sync::Arc;
use untorn_journal::{Error, Outcome, Result};

/// The result of one commit, once it is known.
#[derive(Default)]
pub(crate) struct Completion {
    result: Mutex<Option<Result<()>>>,
}

impl Completion {
    pub(crate) fn complete(&self, result: Result<()>) {
        let before = self.result.lock().replace(result);
        debug_assert!(before.is_none(), "a commit had a result: {before:?}");
    }

    pub(crate) fn result(&self) -> Option<Result<()>> {
        self.result.lock().clone()
    }
}

/// Why commits fail whose writer panicked.
pub(crate) const PANICKED: &str =
    "the thread that wrote the commit panicked, which is a bug in Untorn or in a callback";

/// The completion of a commit in the hands of its writer. If the writer panics, the commit has failed, and only the
/// reopened store shows whether it happened.
pub(crate) struct Promise(pub(crate) Arc<Completion>);

impl Promise {
    pub(crate) fn complete(&self, result: Result<()>) {
        self.0.complete(result);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if std::thread::panicking() && self.0.result().is_none() {
            let source = Arc::new(io::Error::other(PANICKED));
            self.0.complete(Err(Error::SyncFailed { outcome: Outcome::UnknownUntilReopened, source }));
        }
    }
}
