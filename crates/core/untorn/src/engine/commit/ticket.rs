//! Handles of commits that nobody waits for yet.

use crate::engine::Engine;
use crate::engine::waiting::completion::Completion;
use std::sync::{Arc, Weak};
use untorn_journal::{Error, Result};

/// A commit on its way. Which changes it covers was settled when the ticket was made. Dropping the
/// ticket neither cancels the commit nor waits for it. A clone is of the same commit. A ticket does not keep the store
/// open: closing it finishes the commit, and the ticket tells how that went.
#[derive(Clone)]
#[must_use = "a dropped ticket does not tell whether its commit went through"]
pub struct Ticket {
    completion: Arc<Completion>,
    /// Nothing, once the store is closed and all its handles are gone: then the commit has its result.
    engine: Weak<Engine>,
}

impl Ticket {
    pub(crate) fn new(engine: &Arc<Engine>, completion: Arc<Completion>) -> Ticket {
        Ticket { completion, engine: Arc::downgrade(engine) }
    }

    /// Waits until the commit is durable (in the store's failure class), or failed.
    pub fn wait(&self) -> Result<()> {
        let Some(engine) = self.engine.upgrade() else { return self.completion.result().unwrap_or(Err(Error::Closed)) };
        engine.check_fork()?;
        engine.finish(&self.completion)
    }

    /// The commit's result; `None` while it is on its way.
    pub fn poll(&self) -> Option<Result<()>> {
        let Some(engine) = self.engine.upgrade() else { return Some(self.wait()) };
        if let Err(e) = engine.check_fork() {
            return Some(Err(e));
        }
        if !engine.options.background && self.completion.result().is_none() {
            engine.write_one_batch();
        }
        self.completion.result()
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("result", &self.completion.result()).finish_non_exhaustive()
    }
}
