//! Exported functions: tickets of asynchronous commits.

use std::ffi::c_int;

use untorn::Ticket;

use crate::boundary::error::{Failure, guard};
use crate::boundary::handle::{self, Handle, Handles, Kind};
use crate::boundary::options::class;

/// A commit that was started and may not be durable yet. Freeing the ticket does not cancel the commit.
#[allow(non_camel_case_types)]
pub struct untorn_ticket {
    _opaque: (),
}

impl Handle for Ticket {
    const KIND: Kind = Kind::Ticket;
    fn handles() -> &'static Handles<Ticket> {
        static OPEN: Handles<Ticket> = Handles::new();
        &OPEN
    }
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

/// Tells whether the commit is durable, without waiting. Returns 1: durable; 0: not yet; -1: the commit
/// failed, with an error as untorn_commit(), or EBADF.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_ticket_poll(ticket: *const untorn_ticket) -> c_int {
    guard(-1, || match handle::get::<Ticket, _>(ticket)?.poll() {
        None => Ok(0),
        Some(Ok(())) => Ok(1),
        Some(Err(error)) => Err(error.into()),
    })
}

/// Waits until the commit survives the failures of a class, or has failed. UNTORN_CLASS_REMOTE: until the slot of
/// untorn_options.remote_slot has acknowledged it, for as long as that takes, unless UNTORN_REMOTE_DEGRADE ends the wait.
/// Closing the store ends it with an error. Returns 0, or -1 with an error as untorn_commit(), or EINVAL: the store's
/// commits do not reach the class.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_ticket_wait_for(ticket: *const untorn_ticket, failure_class: u32) -> c_int {
    guard(-1, || {
        handle::get::<Ticket, _>(ticket)?.wait_for(class(failure_class)?)?;
        Ok(0)
    })
}

/// Tells whether the commit survives the failures of a class, without waiting. Returns 1: it does; 0: not yet; -1: an
/// error as untorn_ticket_wait_for().
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_ticket_poll_for(ticket: *const untorn_ticket, failure_class: u32) -> c_int {
    guard(-1, || match handle::get::<Ticket, _>(ticket)?.poll_for(class(failure_class)?) {
        None => Ok(0),
        Some(Ok(())) => Ok(1),
        Some(Err(error)) => Err(error.into()),
    })
}

/// Returns the commit's LSN, its place in the store's log. untorn_reader_wait_for() and untorn_follow_open_from() of other
/// processes take it; that of a commit without changes is the LSN of the last record before. A commit of
/// unknown outcome (UNTORN_E_SYNC_UNKNOWN) has happened if, right after the store was opened again, untorn_status.lsn is
/// not less. -1: the commit is not durable yet, or did not happen (EAGAIN; untorn_ticket_poll() tells which), or EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_ticket_lsn(ticket: *const untorn_ticket) -> i64 {
    guard(-1, || {
        let lsn = handle::get::<Ticket, _>(ticket)?.lsn();
        let none =
            || Failure { errno: libc::EAGAIN, ..Failure::invalid("the commit is not durable yet, or has failed") };
        lsn.map(|lsn| lsn as i64).ok_or_else(none)
    })
}

/// Frees the ticket; the commit goes on. Threads that wait on the ticket are not disturbed. Returns 0,
/// or -1 with EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_ticket_free(ticket: *mut untorn_ticket) -> c_int {
    guard(-1, || {
        drop(handle::take::<Ticket, _>(ticket)?);
        Ok(0)
    })
}
