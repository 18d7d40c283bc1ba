//! Commits on their way.

use crate::store::Owned;
use crate::sync::Mutex;
use std::sync::Arc;
use untorn_journal::Result;

/// Where the result of a commit is left.
#[derive(Default)]
pub(crate) struct Slot {
    result: Mutex<Option<Result<()>>>,
}

impl Slot {
    pub(crate) fn fill(&self, result: Result<()>) {
        *self.result.lock().unwrap_or_else(|e| e.into_inner()) = Some(result);
    }

    pub(crate) fn get(&self) -> Option<Result<()>> {
        self.result.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }
}

/// A commit on its way. Which changes it covers was settled when the ticket was made. Dropping the
/// ticket neither cancels the commit nor waits for it.
pub struct Ticket {
    pub(crate) slot: Arc<Slot>,
    pub(crate) inner: Arc<Owned>,
}

impl Ticket {
    /// Waits until the commit is durable (in the store's failure class), or failed.
    pub fn wait(&self) -> Result<()> {
        self.inner.check_fork()?;
        self.inner.finish(&self.slot)
    }

    /// `None`: still on its way.
    pub fn poll(&self) -> Option<Result<()>> {
        if let Err(e) = self.inner.check_fork() {
            return Some(Err(e));
        }
        if self.slot.get().is_none() && !self.inner.options.background {
            self.inner.lead_once();
        }
        self.slot.get()
    }
}
