//! Handles of commits whose results are requested later, or never.

use crate::engine::Engine;
use crate::engine::options::FailureClass;
use crate::engine::waiting::completion::Completion;
use crate::engine::waiting::remote_slot::RemoteSlot;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
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
    class: FailureClass,
    remote: Option<Arc<RemoteSlot>>,
}

/// A future of a ticket's commit in a failure class: [`Ticket::durable`].
#[derive(Clone, Debug)]
#[must_use = "a future does nothing unless it is polled"]
pub struct Durable {
    ticket: Ticket,
    class: FailureClass,
}

impl Ticket {
    pub(crate) fn new(engine: &Arc<Engine>, completion: Arc<Completion>) -> Ticket {
        let (class, remote) = (engine.options.class, engine.remote.clone());
        Ticket { completion, engine: Arc::downgrade(engine), class, remote }
    }

    /// Waits until the commit survives the failures of this class, or has failed. For [`FailureClass::Remote`], it waits
    /// until the slot of [`StoreOptions::remote`](crate::StoreOptions::remote) has acknowledged the commit, for as long
    /// as that takes, unless the options allow to degrade.
    ///
    /// # Errors
    /// Those of [`Ticket::wait`]. [`Error::Invalid`]: the store's commits do not reach the class. [`Error::Io`] of kind
    /// `ConnectionAborted`: the store was closed before the slot acknowledged the commit.
    pub fn wait_for(&self, class: FailureClass) -> Result<()> {
        let remote = self.remote_for(class)?;
        self.wait()?;
        match remote {
            Some(remote) => remote.wait(self.durable_lsn()),
            None => Ok(()),
        }
    }

    /// Like [`Ticket::wait_for`], without waiting; `None` while the result is not known.
    pub fn poll_for(&self, class: FailureClass) -> Option<Result<()>> {
        let remote = match self.remote_for(class) {
            Ok(remote) => remote,
            Err(e) => return Some(Err(e)),
        };
        match (self.poll()?, remote) {
            (Ok(()), Some(remote)) => remote.poll(self.durable_lsn()),
            (done, _) => Some(done),
        }
    }

    /// A future of what [`Ticket::wait_for`] returns.
    pub fn durable(&self, class: FailureClass) -> Durable {
        Durable { ticket: self.clone(), class }
    }

    /// The result, as [`Ticket::poll_for`] returns it; if it is not known yet, the task is woken when it is.
    pub(crate) fn poll_or_wake(&self, class: FailureClass, waker: &Waker) -> Option<Result<()>> {
        let known = self.poll_for(class);
        if known.is_some() {
            return known;
        }
        match (self.completion.result_or_wake(waker)?, &self.remote) {
            (Ok(()), Some(remote)) if class == FailureClass::Remote => remote.poll_or_wake(self.durable_lsn(), waker),
            (done, _) => Some(done),
        }
    }

    /// The slot whose acknowledgement makes the commit survive the failures of this class, if it takes one.
    fn remote_for(&self, class: FailureClass) -> Result<Option<&Arc<RemoteSlot>>> {
        match class {
            FailureClass::Remote => self.remote.as_ref().map(Some).ok_or_else(|| {
                Error::invalid(
                    "the store's commits do not become remote: open it with the option `remote`, which names a slot",
                )
            }),
            FailureClass::Memory => Err(Error::invalid("no commit is of class `memory`, which is one of live heaps")),
            FailureClass::Power if self.class == FailureClass::Process => {
                Err(Error::invalid("the store is of class `process`: its commits do not survive a power cut"))
            }
            _ => Ok(None),
        }
    }

    /// Refuses a class that the store's commits do not reach.
    pub(crate) fn check_class(&self, class: FailureClass) -> Result<()> {
        self.remote_for(class).map(drop)
    }

    /// Whether the commit is of a store that names a slot.
    pub(crate) fn becomes_remote(&self) -> bool {
        self.remote.is_some()
    }

    /// Whether this commit is not before the other one in the same store's log. Both are durable here.
    pub(crate) fn covers(&self, other: &Ticket) -> bool {
        self.engine.ptr_eq(&other.engine) && self.durable_lsn() >= other.durable_lsn()
    }

    /// The commit's place in the log, once it is durable here.
    fn durable_lsn(&self) -> u64 {
        let lsn = self.completion.lsn();
        debug_assert!(lsn.is_some(), "a commit is durable and has no place in the log");
        lsn.unwrap_or(u64::MAX)
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

impl Future for Durable {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.ticket.poll_or_wake(self.class, context.waker()).map_or(Poll::Pending, Poll::Ready)
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("result", &self.completion.result()).finish_non_exhaustive()
    }
}
