//! Open stores.

use super::file::{FileArgs, PyFile, clones};
use super::ticket::{Events, PyTicket};
use super::txn::PyTxn;
use crate::boundary::errors::Raises;
use crate::boundary::options::Options;
use crate::boundary::slot::Slot;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use untorn::{Error, FailureClass, File, Store};

/// An open store: a directory whose files change all or nothing.
#[pyclass(frozen, subclass, name = "Store", module = "untorn._untorn")]
pub(crate) struct PyStore {
    pub(crate) store: Slot<Store>,
    pub(crate) events: Arc<Events>,
    path: PathBuf,
}

#[pymethods]
impl PyStore {
    #[new]
    fn open(py: Python<'_>, path: PathBuf, create: bool, options: Options) -> PyResult<PyStore> {
        let store = options.open(py, |options| options.create(create).open(&path))?;
        Ok(PyStore { store: Slot::new(store), events: Arc::default(), path })
    }

    /// The path with which the store was opened.
    #[getter]
    fn path(&self) -> OsString {
        self.path.clone().into()
    }

    /// Whether the store was closed.
    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        self.store.is_closed(py)
    }

    fn _open_file(&self, py: Python<'_>, name: PathBuf, args: FileArgs) -> PyResult<PyFile> {
        let file = self.store.with(py, |store| args.options().open_in(store, &name))?;
        Ok(PyFile::new(file, self.events.clone()))
    }

    fn _begin(&self, py: Python<'_>) -> PyResult<PyTxn> {
        let store = self.store.with(py, |store| Ok(store.clone()))?;
        Ok(PyTxn::new(store, self.events.clone()))
    }

    /// Names in a directory of the store, sorted, as of the last commit; "" is the store itself.
    #[pyo3(signature = (directory = PathBuf::new()), text_signature = "($self, directory='')")]
    fn list(&self, py: Python<'_>, directory: PathBuf) -> PyResult<Vec<OsString>> {
        self.store.with(py, |store| store.list(&directory))
    }

    /// Renames a file in a commit of its own; a file with the new name is replaced.
    fn rename(&self, py: Python<'_>, old: PathBuf, new: PathBuf) -> PyResult<()> {
        self.store.with(py, |store| store.rename(&old, &new))
    }

    /// Brings the data files up to everything committed so far. They are plain and complete afterwards.
    fn checkpoint(&self, py: Python<'_>) -> PyResult<()> {
        self.store.with(py, |store| store.checkpoint())
    }

    /// Waits for all commits that were started, also by other threads.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        self.store.with(py, |store| store.wait())
    }

    /// Figures of the store, as a dictionary; bytes are named so.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let status = self.store.with(py, |store| Ok(store.status()))?;
        let figures = PyDict::new(py);
        figures.set_item("store_id", status.store_id)?;
        let class = if status.class == FailureClass::Power { "power" } else { "process" };
        figures.set_item("failure_class", class)?;
        figures.set_item("lsn", status.lsn)?;
        figures.set_item("commits", status.commits)?;
        figures.set_item("commit_groups", status.commit_groups)?;
        figures.set_item("checkpoints", status.checkpoints)?;
        figures.set_item("open_files", status.open_files)?;
        figures.set_item("memory_bytes", status.memory_bytes)?;
        figures.set_item("bytes_written", status.bytes_written)?;
        figures.set_item("journal_bytes_allocated", status.journal_bytes_allocated)?;
        figures.set_item("journal_bytes_max", status.journal_bytes_max)?;
        figures.set_item("journal_bytes_pending", status.journal_bytes_pending)?;
        figures.set_item("failed", status.failed)?;
        let quarantined: Vec<_> = status.quarantined.into_iter().map(|q| (q.path.into_os_string(), q.reason)).collect();
        figures.set_item("quarantined", quarantined)?;
        Ok(figures)
    }

    fn _close(&self, py: Python<'_>) -> PyResult<()> {
        self.store.end(py, |store| store.close()).map(drop)
    }
}

/// Commits files of one store as one commit. With `wait` off, returns a ticket.
#[pyfunction]
pub(crate) fn sync(py: Python<'_>, files: Vec<Bound<'_, PyFile>>, wait: bool) -> PyResult<Option<PyTicket>> {
    let Some(first) = files.first() else { return Err(PyErr::new::<pyo3::exceptions::PyValueError, _>("no files")) };
    let events = first.get().events.clone();
    let handles = clones(py, &files)?;
    let refs: Vec<&File> = handles.iter().collect();
    let synced = py.detach(|| {
        let store = refs.first().ok_or(Error::Closed)?.store();
        match wait {
            true => store.syncv(&refs).map(|()| None),
            false => events.ticket(&store, || store.syncv_async(&refs)).map(Some),
        }
    });
    let ticket = synced.raises(py);
    let closed = py.detach(|| handles.into_iter().try_for_each(File::close)).raises(py);
    ticket.and_then(|ticket| closed.map(|()| ticket))
}
