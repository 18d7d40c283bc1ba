//! Untorn's errors as exceptions.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::path::Path;
use untorn::{Error, Outcome};

/// `untorn._errors.make_error`, which knows the class and the number of each kind.
static MAKE_ERROR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Results of the library, for Python.
pub(crate) trait Raises<T> {
    /// Makes an error an exception.
    fn raises(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> Raises<T> for untorn::Result<T> {
    fn raises(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|e| exception(py, &e))
    }
}

#[cold]
fn exception(py: Python<'_>, e: &Error) -> PyErr {
    let made = MAKE_ERROR
        .get_or_try_init(py, || Ok(py.import("untorn._errors")?.getattr("make_error")?.unbind()))
        .and_then(|make| make.bind(py).call1((e.kind(), e.os_error(), e.to_string(), path(e), outcome(e))));
    made.map_or_else(|e| e, PyErr::from_value)
}

/// The file or directory of an error, if it has one.
fn path(e: &Error) -> Option<&Path> {
    match e {
        Error::Busy { path, .. }
        | Error::Corrupt { path, .. }
        | Error::Foreign { path, .. }
        | Error::NewerVersion { path, .. }
        | Error::Conflict { path, .. }
        | Error::NeedsJournal { path, .. }
        | Error::UnknownState { path }
        | Error::Untrusted { path, .. }
        | Error::NoMemory { path, .. }
        | Error::RacingStore { path, .. }
        | Error::LayoutChanged { path, .. }
        | Error::SnapshotExpired { path, .. }
        | Error::SnapshotEnded { path, .. }
        | Error::FileNotKept { path, .. }
        | Error::InTransaction { path }
        | Error::Unsupported { path, .. }
        | Error::Io { path, .. } => Some(path).filter(|path| !path.as_os_str().is_empty()).map(|path| &**path),
        _ => None,
    }
}

fn outcome(e: &Error) -> &'static str {
    match e {
        Error::SyncFailed { outcome: Outcome::UnknownUntilReopened, .. } => "unknown",
        Error::RacingStore { .. } => "committed",
        _ => "not-committed",
    }
}
