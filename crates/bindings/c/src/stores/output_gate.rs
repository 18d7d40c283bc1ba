//! Exported functions: output that is held back until commits are durable.

use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, OwnedFd};

use untorn::{Error, Gate, Output, Ticket};

use crate::boundary::error::{Failure, Result, guard};
use crate::boundary::handle::{self, Handle, Handles, Kind};
use crate::boundary::options::class;
use crate::stores::ticket::untorn_ticket;

/// Output that waits until the commits that it reports are durable: a thread, and any number of outputs.
#[allow(non_camel_case_types)]
pub struct untorn_gate {
    _opaque: (),
}

/// One descriptor behind a gate.
#[allow(non_camel_case_types)]
pub struct untorn_output {
    _opaque: (),
}

impl Handle for Gate {
    const KIND: Kind = Kind::Gate;
    fn handles() -> &'static Handles<Gate> {
        static OPEN: Handles<Gate> = Handles::new();
        &OPEN
    }
}

impl Handle for Output {
    const KIND: Kind = Kind::Output;
    fn handles() -> &'static Handles<Output> {
        static OPEN: Handles<Output> = Handles::new();
        &OPEN
    }
}

/// Makes a gate. Each of its outputs holds up to bytes_max bytes; 0: 1 MiB. NULL with an error.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_gate_open(bytes_max: usize) -> *mut untorn_gate {
    guard(std::ptr::null_mut(), || {
        let gate = if bytes_max == 0 { Gate::new() } else { Gate::with_bytes_max(bytes_max) };
        handle::insert(gate?)
    })
}

/// Puts a descriptor behind the gate: a socket, a pipe, a terminal or a file. The gate works with a copy of the
/// descriptor; nothing else may write to the same socket, pipe, terminal or file. Bytes leave in the order in which
/// they were written. A pipe whose reader has left sends SIGPIPE, as usual. NULL with an error.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_gate_output(gate: *mut untorn_gate, fd: c_int) -> *mut untorn_output {
    guard(std::ptr::null_mut(), || handle::insert(handle::get::<Gate, _>(gate)?.output(copied(fd)?)))
}

/// Like untorn_gate_output(); bytes leave when their commits survive the failures of a class, such as
/// UNTORN_CLASS_REMOTE. Outputs of other classes do not wait for it. NULL with an error.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_gate_output_when(gate: *mut untorn_gate, fd: c_int, failure_class: u32) -> *mut untorn_output {
    guard(std::ptr::null_mut(), || {
        let class = class(failure_class)?;
        handle::insert(handle::get::<Gate, _>(gate)?.output_when(copied(fd)?, class))
    })
}

/// A copy of a caller's descriptor.
fn copied(fd: c_int) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(Failure::invalid(format!("{fd} is not a descriptor")));
    }
    // SAFETY: not -1, and only used for the call that copies it, which fails if the descriptor is not open.
    let copied = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
    Ok(copied.map_err(|e| Error::io("copy", format!("descriptor {fd}"), e))?)
}

/// Hands over n bytes, which are copied. They leave when the ticket's commit is durable. If the ticket is NULL, they
/// leave as soon as everything that was written to the gate before them may leave. The call waits while the output is
/// full. The ticket can be freed at once. Returns 0, or -1 with the error of the commit that failed (then nothing
/// that the gate holds ever leaves), or with the error of the descriptor.
///
/// # Safety
/// There are n bytes at buf.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_output_write(
    output: *mut untorn_output,
    buf: *const c_void,
    n: usize,
    ticket: *const untorn_ticket,
) -> c_int {
    guard(-1, || {
        let output = handle::get::<Output, _>(output)?;
        let ticket = if ticket.is_null() { None } else { Some(handle::get::<Ticket, _>(ticket)?) };
        if buf.is_null() && n > 0 {
            return Err(Failure::null("buf"));
        }
        // SAFETY: the caller promises n bytes at buf.
        let bytes = if n == 0 { &[] } else { unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), n) } };
        output.write(bytes, ticket.as_deref())?;
        Ok(0)
    })
}

/// Closes an output; the copy of its descriptor is closed when everything has left. Returns 0, or -1 with EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_output_close(output: *mut untorn_output) -> c_int {
    guard(-1, || {
        drop(handle::take::<Output, _>(output)?);
        Ok(0)
    })
}

/// Waits until everything that was written to the gate has left. Returns 0, or -1 with the error of the commit that
/// failed.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_gate_drain(gate: *mut untorn_gate) -> c_int {
    guard(-1, || {
        handle::get::<Gate, _>(gate)?.drain()?;
        Ok(0)
    })
}

/// Frees the gate. Bytes that it still holds are discarded; untorn_gate_drain() waits until they have left. Returns
/// 0, or -1 with EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_gate_free(gate: *mut untorn_gate) -> c_int {
    guard(-1, || {
        drop(handle::take::<Gate, _>(gate)?);
        Ok(0)
    })
}
