//! Commits on their way.

use crate::boundary::errors::Raises;
use crate::boundary::waits::{Alarm, Deadline, repeat};
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use untorn::{Error, Result, Store, Ticket};

/// The results of a store's commits, for event loops.
pub(crate) struct Events {
    /// A duplicate of the store's event descriptor, which outlives the store. Made for the first ticket.
    descriptor: OnceLock<OwnedFd>,
    /// The object of `untorn._events.Watch` that waits for it.
    watch: PyOnceLock<Py<PyAny>>,
}

impl Default for Events {
    fn default() -> Events {
        Events { descriptor: OnceLock::new(), watch: PyOnceLock::new() }
    }
}

impl Events {
    /// Makes a ticket of a commit that `commit` starts. From then on, the descriptor tells of results.
    pub(crate) fn ticket(self: &Arc<Self>, store: &Store, commit: impl FnOnce() -> Result<Ticket>) -> Result<PyTicket> {
        if self.descriptor.get().is_none() {
            let failed = |e: io::Error| Error::Io {
                action: "duplicate the event descriptor of",
                path: store.path(),
                source: Arc::new(e),
            };
            let _ = self.descriptor.set(store.notification_fd()?.try_clone_to_owned().map_err(failed)?);
        }
        Ok(PyTicket { ticket: commit()?, events: self.clone() })
    }
}

/// A commit on its way: its changes were taken when the ticket was made.
#[pyclass(frozen, name = "Ticket", module = "untorn")]
pub(crate) struct PyTicket {
    pub(crate) ticket: Ticket,
    events: Arc<Events>,
}

#[pymethods]
impl PyTicket {
    /// The commit's place in the log; `None` while it is on its way, and if it failed.
    #[getter]
    fn lsn(&self, py: Python<'_>) -> Option<u64> {
        py.detach(|| self.ticket.lsn())
    }

    /// Whether the commit has a result.
    fn done(&self, py: Python<'_>) -> bool {
        py.detach(|| self.ticket.poll()).is_some()
    }

    /// Waits until the commit is durable, for at most `timeout` seconds; raises the commit's error if it failed.
    #[pyo3(signature = (timeout = None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let alarm = Arc::new(Alarm::default());
        let waker = Waker::from(alarm.clone());
        let mut ticket = self.ticket.clone();
        let done = repeat(py, Deadline::after(timeout), |slice| {
            let mut poll = || match pin!(&mut ticket).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(result) => Some(result),
                Poll::Pending => None,
            };
            poll().or_else(|| {
                alarm.wait(slice);
                poll()
            })
        })?;
        match done {
            Some(result) => result.raises(py),
            None => Err(PyTimeoutError::new_err("the commit is not durable yet; its ticket can be asked again")),
        }
    }

    /// The watch of the store's event descriptor.
    #[getter]
    fn _watch(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let watch = self.events.watch.get_or_try_init(py, || {
            let descriptor = self.events.descriptor.get().map_or(-1, AsRawFd::as_raw_fd);
            Ok::<_, PyErr>(py.import("untorn._events")?.getattr("Watch")?.call1((descriptor,))?.unbind())
        })?;
        Ok(watch.clone_ref(py))
    }

    /// Gives the commit's result to a future; false while there is none.
    fn _settle(&self, py: Python<'_>, future: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Some(result) = py.detach(|| self.ticket.poll()) else { return Ok(false) };
        // A task that was cancelled does not wait any more.
        if !future.call_method0("done")?.is_truthy()? {
            match result.raises(py) {
                Ok(()) => future.call_method1("set_result", (py.None(),))?,
                Err(e) => future.call_method1("set_exception", (e,))?,
            };
        }
        Ok(true)
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        static RUNNING_LOOP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let (py, this) = (slf.py(), slf.get());
        if let Some(result) = py.detach(|| this.ticket.poll()) {
            result.raises(py)?;
            // Nothing to wait for, and `None` as the result.
            return PyTuple::empty(py).call_method0("__iter__");
        }
        let running_loop = RUNNING_LOOP.import(py, "asyncio", "get_running_loop")?.call0()?;
        let future = this._watch(py)?.call_method1(py, "add", (running_loop, slf))?;
        future.bind(py).call_method0("__await__")
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match py.detach(|| self.ticket.poll()) {
            None => "<untorn.Ticket: on its way>".into(),
            Some(Ok(())) => format!("<untorn.Ticket: durable, lsn {:?}>", self.ticket.lsn().unwrap_or_default()),
            Some(Err(e)) => format!("<untorn.Ticket: failed, {e}>"),
        }
    }
}
