//! Handles that Python may close while other threads use them.

use super::errors::Raises;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use pyo3::prelude::*;
use untorn::{Error, Result};

/// A handle, until it is closed. Calls share it; closing waits for them.
pub(crate) struct Slot<T> {
    /// The process that made it. In a child, a lock may be held by a thread that does not exist there.
    pid: u32,
    value: RwLock<Option<T>>,
}

impl<T: Send + Sync> Slot<T> {
    pub(crate) fn new(value: T) -> Slot<T> {
        Slot { pid: std::process::id(), value: RwLock::new(Some(value)) }
    }

    pub(crate) fn check_fork(&self) -> Result<()> {
        if std::process::id() == self.pid { Ok(()) } else { Err(Error::Forked) }
    }

    fn read(&self) -> Result<RwLockReadGuard<'_, Option<T>>> {
        match self.value.try_read() {
            Some(held) => Ok(held),
            None => self.check_fork().map(|()| self.value.read()),
        }
    }

    fn write(&self) -> Result<RwLockWriteGuard<'_, Option<T>>> {
        self.check_fork()?;
        Ok(self.value.write())
    }

    /// Calls `act` with the handle. The caller has released the interpreter's lock.
    pub(crate) fn call<R>(&self, act: impl FnOnce(&T) -> Result<R>) -> Result<R> {
        act(self.read()?.as_ref().ok_or(Error::Closed)?)
    }

    /// Calls `act` with the handle, without the interpreter's lock.
    pub(crate) fn with<R: Send>(&self, py: Python<'_>, act: impl FnOnce(&T) -> Result<R> + Send) -> PyResult<R> {
        py.detach(|| self.call(act)).raises(py)
    }

    /// Calls `act` with the handle alone, without the interpreter's lock.
    pub(crate) fn with_mut<R: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut T) -> Result<R> + Send,
    ) -> PyResult<R> {
        py.detach(|| act(self.write()?.as_mut().ok_or(Error::Closed)?)).raises(py)
    }

    /// Takes the handle out, and gives it to `act`, without the interpreter's lock. `None`: it was closed before.
    pub(crate) fn end<R: Send>(&self, py: Python<'_>, act: impl FnOnce(T) -> Result<R> + Send) -> PyResult<Option<R>> {
        py.detach(|| {
            let value = self.write()?.take();
            value.map(act).transpose()
        })
        .raises(py)
    }

    /// Whether the handle was closed.
    pub(crate) fn is_closed(&self, py: Python<'_>) -> bool {
        py.detach(|| self.read().is_ok_and(|held| held.is_none()))
    }
}
