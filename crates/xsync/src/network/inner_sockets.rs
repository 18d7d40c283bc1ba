//! Sockets of the session's network, made by a thread that stays in that network.
//!
//! A thread of an ordinary user may enter the network, but may never return to the host's.

use anyhow::{Context, Result};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

type Work = Box<dyn FnOnce() + Send>;

/// The thread in the session's network. It ends when this value is dropped.
#[derive(Debug)]
pub struct InnerSockets {
    work: Option<Sender<Work>>,
    thread: Option<JoinHandle<()>>,
}

impl InnerSockets {
    /// Starts the thread, which enters the network.
    pub fn begin(network: OwnedFd) -> Result<InnerSockets> {
        let (work, todo): (_, Receiver<Work>) = channel();
        let (entered, has_entered) = channel();
        let enter_and_work = move || {
            let done = move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network));
            if entered.send(done).is_ok() && done.is_ok() {
                todo.into_iter().for_each(|work| work());
            }
        };
        let thread = thread::Builder::new().spawn(enter_and_work).context("a thread for sockets")?;
        let sockets = InnerSockets { work: Some(work), thread: Some(thread) };
        has_entered.recv().expect("the thread answers").context("the session's network")?;
        Ok(sockets)
    }

    /// Makes a socket in that network.
    pub fn make<F: FnOnce() -> Result<OwnedFd> + Send + 'static>(&self, make: F) -> Result<OwnedFd> {
        let (made, is_made) = channel();
        let work = self.work.as_ref().expect("taken when this is dropped");
        // Neither call fails: the thread works until this value is dropped.
        let _ = work.send(Box::new(move || drop(made.send(make()))));
        is_made.recv().context("a thread for sockets")?
    }
}

impl Drop for InnerSockets {
    fn drop(&mut self) {
        drop(self.work.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
