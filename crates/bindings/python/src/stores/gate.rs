//! The output gate.

use super::ticket::PyTicket;
use crate::boundary::buffers::Buffer;
use crate::boundary::descriptors::{descriptor_of, duplicate};
use crate::boundary::errors::Raises;
use crate::boundary::slot::Slot;
use crate::boundary::waits::{Deadline, repeat};
use pyo3::prelude::*;
use untorn::{GATE_BYTES_DEFAULT, Gate, Output};

/// Holds back output until the commits that it depends on are durable.
#[pyclass(frozen, name = "Gate", module = "untorn")]
pub(crate) struct PyGate {
    gate: Slot<Gate>,
}

/// One descriptor behind a gate.
#[pyclass(frozen, name = "Output", module = "untorn")]
pub(crate) struct PyOutput {
    output: Slot<Output>,
}

/// The result of a step of a wait; `None` if the wait goes on.
fn done(step: untorn::Result<bool>) -> Option<untorn::Result<()>> {
    match step {
        Ok(false) => None,
        Ok(true) => Some(Ok(())),
        Err(e) => Some(Err(e)),
    }
}

#[pymethods]
impl PyGate {
    /// A gate whose outputs hold at most `bytes_max` bytes each; a write beyond that waits.
    #[new]
    #[pyo3(signature = (*, bytes_max = GATE_BYTES_DEFAULT), text_signature = "(*, bytes_max=1048576)")]
    fn make(py: Python<'_>, bytes_max: usize) -> PyResult<PyGate> {
        Ok(PyGate { gate: Slot::new(Gate::with_bytes_max(bytes_max).raises(py)?) })
    }

    /// Puts a socket, a pipe, a file or a descriptor's number behind the gate. Nothing else may write to it.
    fn output(&self, py: Python<'_>, to: &Bound<'_, PyAny>) -> PyResult<PyOutput> {
        let descriptor = descriptor_of(to)?;
        let output = self.gate.with(py, |gate| Ok(gate.output(duplicate(descriptor)?)))?;
        Ok(PyOutput { output: Slot::new(output) })
    }

    /// Bytes that were written and not sent.
    #[getter]
    fn held_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.gate.with(py, |gate| Ok(gate.held_bytes()))
    }

    /// Waits until everything that was written has been sent. Raises the error of a commit that failed.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        // The other side of an output may not read: Ctrl-C ends the wait.
        let drain = |slice| done(self.gate.call(|gate| gate.drain_within(slice)));
        repeat(py, Deadline::after(None), drain)?.unwrap_or(Ok(())).raises(py)
    }

    /// Ends the gate; discards bytes that are still held.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.gate.end(py, |gate| {
            drop(gate);
            Ok(())
        })?;
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Drains the gate if the block ended well, and closes it.
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let drained = if kind.is_none() && !self.gate.is_closed(py) { self.drain(py) } else { Ok(()) };
        let closed = self.close(py);
        drained.and(closed)
    }
}

#[pymethods]
impl PyOutput {
    /// Hands over bytes that leave when the ticket's commit is durable; without a ticket, after everything before. Waits
    /// while the output is full; Ctrl-C ends the wait, and then none of the bytes were taken.
    #[pyo3(signature = (data, *, after = None))]
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>, after: Option<&Bound<'_, PyTicket>>) -> PyResult<()> {
        let buffer = Buffer::readable(data)?;
        let (bytes, ticket) = (buffer.bytes(), after.map(|after| &after.get().ticket));
        // As above; an interrupted write has handed over nothing.
        let write = |slice| done(self.output.call(|output| output.write_within(bytes, ticket, slice)));
        repeat(py, Deadline::after(None), write)?.unwrap_or(Ok(())).raises(py)
    }

    /// Ends the output. Its descriptor closes when everything was sent.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.output.end(py, |output| {
            drop(output);
            Ok(())
        })?;
        Ok(())
    }
}
