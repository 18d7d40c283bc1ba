//! Handles of commits that nobody waits for yet.

use crate::completion::Completion;
use crate::open_store::OpenStore;
use std::sync::Arc;
use untorn_journal::Result;

/// A commit on its way. Which changes it covers was settled when the ticket was made. Dropping the
/// ticket neither cancels the commit nor waits for it. A clone is of the same commit.
#[derive(Clone)]
#[must_use = "a dropped ticket does not tell whether its commit went through"]
pub struct Ticket {
    pub(crate) completion: Arc<Completion>,
    pub(crate) store: Arc<OpenStore>,
}

impl Ticket {
    /// Waits until the commit is durable (in the store's failure class), or failed.
    pub fn wait(&self) -> Result<()> {
        self.store.check_fork()?;
        self.store.finish(&self.completion)
    }

    /// The commit's result; `None` while it is on its way.
    pub fn poll(&self) -> Option<Result<()>> {
        if let Err(e) = self.store.check_fork() {
            return Some(Err(e));
        }
        if !self.store.options.background && self.completion.result().is_none() {
            self.store.write_one_batch();
        }
        self.completion.result()
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("result", &self.completion.result()).finish_non_exhaustive()
    }
}
