//! Exported functions: tickets of commits on their way.

use std::ffi::c_int;

use untorn::Ticket;

use crate::error::guard;
use crate::handle;

/// A commit on its way. Freeing the ticket does not cancel the commit.
#[allow(non_camel_case_types)]
pub struct untorn_ticket {
    _opaque: (),
}

/// Waits until the commit is durable (in the store's failure class) or has failed. May be called
/// several times, and from several threads. Returns 0, or -1 with an error as untorn_commit().
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_ticket_wait(ticket: *const untorn_ticket) -> c_int {
    guard(-1, || {
        handle::get::<Ticket, _>(ticket)?.wait()?;
        Ok(0)
    })
}

/// Asks without waiting. Returns 1: durable; 0: still on its way; -1: failed, as untorn_commit(), or
/// EBADF.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_ticket_poll(ticket: *const untorn_ticket) -> c_int {
    guard(-1, || match handle::get::<Ticket, _>(ticket)?.poll() {
        None => Ok(0),
        Some(Ok(())) => Ok(1),
        Some(Err(error)) => Err(error.into()),
    })
}

/// Frees the ticket; the commit goes on. Threads that wait on it are not disturbed. Returns 0, or -1
/// with EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_ticket_free(ticket: *mut untorn_ticket) -> c_int {
    guard(-1, || {
        drop(handle::take::<Ticket, _>(ticket)?);
        Ok(0)
    })
}
