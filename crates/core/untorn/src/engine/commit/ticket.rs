//! Handles of commits whose results are requested later, or never.

use crate::engine::Engine;
use crate::engine::waiting::completion::Completion;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use untorn_journal::{Error, Result};

/// A commit on its way. Its changes were determined when the ticket was made. Dropping the ticket neither cancels the
/// commit nor waits for it. A clone refers to the same commit. A ticket does not keep the store open: closing the store
/// finishes the commit, and the ticket reports its result.
///
/// A ticket is a future of that result, for any executor: the thread that writes the commit wakes the task.
#[derive(Clone)]
#[must_use = "a dropped ticket does not tell whether its commit went through"]
pub struct Ticket {
    completion: Arc<Completion>,
    /// Empty once the store is closed and all its handles are gone. The commit has its result then.
    engine: Weak<Engine>,
}

impl Ticket {
    pub(crate) fn new(engine: &Arc<Engine>, completion: Arc<Completion>) -> Ticket {
        Ticket { completion, engine: Arc::downgrade(engine) }
    }

    /// Waits until the commit is durable (in the store's failure class), or failed.
    pub fn wait(&self) -> Result<()> {
        let Some(engine) = self.engine.upgrade() else { return self.completion.result().unwrap_or(Err(Error::Closed)) };
        engine.life.check_fork()?;
        engine.finish(&self.completion)
    }

    /// The commit's result; `None` while it is on its way.
    pub fn poll(&self) -> Option<Result<()>> {
        let Some(engine) = self.engine.upgrade() else { return Some(self.wait()) };
        if let Err(e) = engine.life.check_fork() {
            return Some(Err(e));
        }
        if !engine.options.background && self.completion.result().is_none() {
            engine.write_one_batch();
        }
        self.completion.result()
    }

    /// The commit's place in the log, which [`Reader::wait_for`](crate::Reader::wait_for) and
    /// [`Reader::follow_from`](crate::Reader::follow_from) of other processes take. `None` while it is on its way, and
    /// if it failed. Of a commit without changes, it is that of the last record before.
    pub fn lsn(&self) -> Option<u64> {
        self.completion.lsn()
    }
}

impl Future for Ticket {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        match Ticket::poll(&self) {
            Some(result) => Poll::Ready(result),
            None => self.completion.result_or_wake(context.waker()).map_or(Poll::Pending, Poll::Ready),
        }
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("result", &self.completion.result()).finish_non_exhaustive()
    }
}
