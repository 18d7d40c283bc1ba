//! Commits as they become durable.

use crate::boundary::errors::Raises;
use crate::boundary::waits::{Deadline, repeat};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ffi::OsString;
use std::time::{Duration, SystemTime};
use untorn::reader::{Change, ChangeKind, Follow, Followed};

/// Commits of a store, each once, in order.
#[pyclass(frozen, name = "Follow", module = "untorn")]
pub(crate) struct PyFollow {
    follow: Mutex<Follow>,
}

/// A commit.
#[pyclass(frozen, name = "Commit", module = "untorn")]
pub(crate) struct PyCommit {
    /// Its place in the log.
    #[pyo3(get)]
    lsn: u64,
    /// When it was made, in seconds since 1970; `None` if its log is of an older version.
    #[pyo3(get)]
    time: Option<u64>,
    changes: Vec<Py<PyChange>>,
}

/// Commits that were applied by a checkpoint before they were read: the files have their changes.
#[pyclass(frozen, name = "Missed", module = "untorn")]
pub(crate) struct PyMissed {
    /// The first commit that may be missing.
    #[pyo3(get)]
    first_lsn: u64,
    /// The last one.
    #[pyo3(get)]
    last_lsn: u64,
}

/// A change of one file or directory.
#[pyclass(frozen, name = "Change", module = "untorn")]
pub(crate) struct PyChange {
    change: Change,
}

impl PyFollow {
    pub(crate) fn new(follow: Follow) -> PyFollow {
        PyFollow { follow: Mutex::new(follow) }
    }

    fn within(&self, py: Python<'_>, deadline: Deadline) -> PyResult<Option<Py<PyAny>>> {
        let next = repeat(py, deadline, |slice: Duration| self.follow.lock().next_within(slice).transpose())?;
        next.transpose().raises(py)?.map(|followed| object(py, followed)).transpose()
    }
}

fn object(py: Python<'_>, followed: Followed) -> PyResult<Py<PyAny>> {
    match followed {
        Followed::Commit(commit) => {
            let changes = commit.changes.into_iter().map(|change| Py::new(py, PyChange { change }));
            let changes = changes.collect::<PyResult<_>>()?;
            let since = commit.time.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
            let time = since.map(|since| since.as_secs());
            Ok(Py::new(py, PyCommit { lsn: commit.lsn, time, changes })?.into_any())
        }
        Followed::Missed { first_lsn, last_lsn } => Ok(Py::new(py, PyMissed { first_lsn, last_lsn })?.into_any()),
        // The enum may grow.
        _ => Ok(py.None()),
    }
}

#[pymethods]
impl PyFollow {
    /// LSN up to which every commit was returned, or reported as missed.
    #[getter]
    fn lsn(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.follow.lock().lsn())
    }

    /// The next commit; `None` if there is none within this many seconds.
    fn next_within(&self, py: Python<'_>, timeout: f64) -> PyResult<Option<Py<PyAny>>> {
        self.within(py, Deadline::after(Some(timeout)))
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Waits for the next commit.
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.within(py, Deadline::after(None))
    }

    fn __aiter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __anext__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("untorn._events")?.getattr("next_commit")?.call1((slf,))
    }
}

#[pymethods]
impl PyCommit {
    /// The changes; those of one file are in order.
    #[getter]
    fn changes(&self, py: Python<'_>) -> Vec<Py<PyChange>> {
        self.changes.iter().map(|change| change.clone_ref(py)).collect()
    }

    fn __repr__(&self) -> String {
        format!("<untorn.Commit: lsn {}, {} changes>", self.lsn, self.changes.len())
    }
}

#[pymethods]
impl PyMissed {
    fn __repr__(&self) -> String {
        format!("<untorn.Missed: lsn {} to {}>", self.first_lsn, self.last_lsn)
    }
}

#[pymethods]
impl PyChange {
    /// The name before this commit.
    #[getter]
    fn path(&self) -> OsString {
        self.change.path.clone().into()
    }

    /// "written", "zeroed", "resized", "created", "renamed", "removed", "mode", "mkdir" or "rmdir".
    #[getter]
    fn kind(&self) -> &'static str {
        match &self.change.kind {
            ChangeKind::Written(_) => "written",
            ChangeKind::Zeroed(_) => "zeroed",
            ChangeKind::Resized(_) => "resized",
            ChangeKind::Created(_) => "created",
            ChangeKind::Renamed(_) => "renamed",
            ChangeKind::Removed => "removed",
            ChangeKind::Mode(_) => "mode",
            ChangeKind::DirectoryMade(_) => "mkdir",
            ChangeKind::DirectoryRemoved => "rmdir",
            _ => "unknown",
        }
    }

    /// Start and end, in bytes, of a range that was written or zeroed.
    #[getter]
    fn range(&self) -> Option<(u64, u64)> {
        match &self.change.kind {
            ChangeKind::Written(range) | ChangeKind::Zeroed(range) => Some((range.start, range.end)),
            _ => None,
        }
    }

    /// The new length in bytes of a file that was resized.
    #[getter]
    fn size(&self) -> Option<u64> {
        if let ChangeKind::Resized(size) = self.change.kind { Some(size) } else { None }
    }

    /// The new name of a file that was renamed.
    #[getter]
    fn to(&self) -> Option<OsString> {
        if let ChangeKind::Renamed(to) = &self.change.kind { Some(to.clone().into()) } else { None }
    }

    /// The new permission bits.
    #[getter]
    fn mode(&self) -> Option<u32> {
        if let ChangeKind::Mode(mode) = self.change.kind { Some(mode) } else { None }
    }

    /// The bytes of the range, as this commit wrote them; `b""` for other changes.
    fn read<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let Some((start, end)) = self.range() else { return Ok(PyBytes::new(py, b"")) };
        let len = usize::try_from(end - start).unwrap_or(usize::MAX);
        PyBytes::new_with(py, len, |bytes| py.detach(|| self.change.read_at(bytes, start)).raises(py).map(drop))
    }

    fn __repr__(&self) -> String {
        format!("<untorn.Change: {} {}>", self.kind(), self.change.path.display())
    }
}
