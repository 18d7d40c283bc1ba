//! The result of a commit, where the thread that writes it leaves it for those that wait.

use crate::engine::waiting::concurrency::Mutex;
use untorn_journal::Result;

/// The result of one commit, once there is one.
#[derive(Default)]
pub(crate) struct Completion {
    result: Mutex<Option<Result<()>>>,
}

impl Completion {
    pub(crate) fn complete(&self, result: Result<()>) {
        *self.result.lock() = Some(result);
    }

    pub(crate) fn result(&self) -> Option<Result<()>> {
        self.result.lock().clone()
    }
}
