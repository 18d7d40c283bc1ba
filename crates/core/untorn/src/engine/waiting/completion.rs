//! The result of a commit, passed from the thread that writes it to the threads that wait for it.

use crate::engine::waiting::concurrency::Mutex;
use untorn_journal::Result;

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
