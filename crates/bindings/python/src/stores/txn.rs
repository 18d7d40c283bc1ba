//! Transactions over files and names.

use super::file::PyFile;
use super::ticket::{Events, PyTicket};
use crate::boundary::errors::Raises;
use crate::boundary::slot::Slot;
use parking_lot::Mutex;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;
use untorn::{Error, Result, Store, Txn};

/// A transaction. Dropping it aborts it.
#[pyclass(frozen, name = "Txn", module = "untorn._untorn")]
pub(crate) struct PyTxn {
    txn: Slot<Mutex<Txn>>,
    store: Store,
    events: Arc<Events>,
}

impl PyTxn {
    pub(crate) fn new(store: Store, events: Arc<Events>) -> PyTxn {
        PyTxn { txn: Slot::new(Mutex::new(store.begin())), store, events }
    }

    fn change<R: Send>(&self, py: Python<'_>, act: impl FnOnce(&mut Txn) -> Result<R> + Send) -> PyResult<R> {
        self.txn.with_mut(py, |txn| act(txn.get_mut()))
    }
}

#[pymethods]
impl PyTxn {
    /// Creates a file; its name appears when the transaction commits.
    fn create(&self, py: Python<'_>, name: PathBuf, permissions: u32) -> PyResult<PyFile> {
        let file = self.change(py, |txn| txn.create(&name, permissions))?;
        Ok(PyFile::new(file, self.events.clone()))
    }

    /// Adds a file: its uncommitted changes, past and future, belong to the transaction until it ends.
    fn add(&self, py: Python<'_>, file: &Bound<'_, PyFile>) -> PyResult<()> {
        let file = &file.get().file;
        let other = file.with(py, |file| file.try_clone())?;
        self.change(py, |txn| txn.add(&other))?;
        py.detach(|| drop(other));
        Ok(())
    }

    fn rename(&self, py: Python<'_>, old: PathBuf, new: PathBuf) -> PyResult<()> {
        self.change(py, |txn| txn.rename(&old, &new))
    }

    fn unlink(&self, py: Python<'_>, name: PathBuf) -> PyResult<()> {
        self.change(py, |txn| txn.unlink(&name))
    }

    fn mkdir(&self, py: Python<'_>, name: PathBuf, permissions: u32) -> PyResult<()> {
        self.change(py, |txn| txn.mkdir(&name, permissions))
    }

    fn rmdir(&self, py: Python<'_>, name: PathBuf) -> PyResult<()> {
        self.change(py, |txn| txn.rmdir(&name))
    }

    fn chmod(&self, py: Python<'_>, name: PathBuf, permissions: u32) -> PyResult<()> {
        self.change(py, |txn| txn.chmod(&name, permissions))
    }

    /// Commits: all of it, or nothing.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        self.txn.end(py, |txn| txn.into_inner().commit())?.ok_or_else(|| self.has_ended(py))
    }

    /// Starts the commit.
    fn commit_async(&self, py: Python<'_>) -> PyResult<PyTicket> {
        let commit = |txn: Mutex<Txn>| self.events.ticket(&self.store, || txn.into_inner().commit_async());
        self.txn.end(py, commit)?.ok_or_else(|| self.has_ended(py))
    }

    /// Drops all changes. Does nothing if the transaction has ended.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.txn.end(py, |txn| txn.into_inner().abort()).map(drop)
    }
}

impl PyTxn {
    fn has_ended(&self, py: Python<'_>) -> PyErr {
        let ended: Result<()> = Err(Error::invalid("the transaction has ended; begin another one"));
        ended.raises(py).expect_err("an error")
    }
}
