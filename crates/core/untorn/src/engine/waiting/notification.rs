//! A descriptor by which event loops learn that commits have results.

use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use untorn_journal::{Error, Result};
use untorn_os::Fd;

/// The descriptor of a store, if any caller has asked for it.
#[derive(Default)]
pub(crate) struct Notification {
    made: OnceLock<Fd>,
}

impl Notification {
    pub(crate) fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        let fd = match self.made.get() {
            Some(fd) => fd,
            None => {
                let failed = |e| Error::io("make an event descriptor for", "the store", e);
                let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| failed(e.into()))?;
                let made = Fd::new(made).map_err(failed)?;
                self.made.get_or_init(|| made)
            }
        };
        fd.get().map_err(|_| Error::Forked)
    }

    /// Makes the descriptor readable, if there is one.
    pub(crate) fn signal(&self) {
        if let Some(Ok(fd)) = self.made.get().map(Fd::get) {
            // A full counter is readable already.
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }
}
