//! Mapped files whose memory Python uses through the buffer protocol.

use crate::boundary::buffers::fill;
use crate::boundary::slot::Slot;
use crate::stores::file::PyFile;
use crate::stores::ticket::{Events, PyTicket};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use untorn::{Error, Map, MapOptions};

/// The mapping of a whole file. Its memory stays while a buffer of it exists, also after `end`.
#[pyclass(frozen, name = "Map", module = "untorn._untorn")]
pub(crate) struct PyMap {
    map: Slot<Map>,
    events: Arc<Events>,
    /// Buffers that exist.
    exports: AtomicUsize,
    ended: AtomicBool,
    read_only: bool,
}

#[pymethods]
impl PyMap {
    #[new]
    fn of(py: Python<'_>, file: &Bound<'_, PyFile>, read_only: bool) -> PyResult<PyMap> {
        let file = file.get();
        let map = file.file.with(py, |file| file.map_with(&MapOptions::new()))?;
        let (exports, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
        Ok(PyMap { map: Slot::new(map), events: file.events.clone(), exports, ended, read_only })
    }

    /// The accessible bytes.
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.map.with(py, |map| Ok(map.len()))
    }

    /// Commits all changes of the file.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.map.with(py, Map::msync)
    }

    /// Starts a commit of all stores made so far.
    fn flush_async(&self, py: Python<'_>) -> PyResult<PyTicket> {
        self.map.with(py, |map| self.events.ticket(&map.file().store(), || map.msync_async()))
    }

    /// Returns to the last commit, also in memory.
    fn rollback(&self, py: Python<'_>) -> PyResult<()> {
        self.map.with(py, Map::rollback)
    }

    /// Makes the file larger, as an uncommitted change; the memory keeps its address.
    fn grow(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.map.with(py, |map| match size >= map.len() {
            true => map.resize(size),
            false => Err(Error::invalid("a mapped file can only grow: memory of arrays would go")),
        })
    }

    /// Another handle of the file.
    fn file(&self, py: Python<'_>) -> PyResult<PyFile> {
        Ok(PyFile::new(self.map.with(py, |map| map.file().try_clone())?, self.events.clone()))
    }

    /// Buffers that exist.
    #[getter]
    fn exports(&self) -> usize {
        self.exports.load(Ordering::SeqCst)
    }

    /// Discards uncommitted changes, and closes the file's own store if `alone`. New buffers are refused from then on,
    /// and the memory goes with the last one. Returns whether anything was discarded.
    fn end(&self, py: Python<'_>, alone: bool) -> PyResult<bool> {
        if self.ended.swap(true, Ordering::SeqCst) {
            return Ok(false);
        }
        self.map.with(py, |map| {
            let discarded = !self.read_only && map.file().has_changes()?;
            if discarded {
                map.rollback()?;
            }
            if alone {
                map.file().store().close()?;
            }
            Ok(discarded)
        })
    }

    /// # Safety
    /// Called by the interpreter, which passes a view of its own.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        if this.ended.load(Ordering::SeqCst) {
            return Err(PyValueError::new_err("the mapping is closed"));
        }
        if this.read_only && flags & ffi::PyBUF_WRITABLE != 0 {
            return Err(PyBufferError::new_err("the mapping is for reading only"));
        }
        let (address, len) = this.map.with(slf.py(), |map| Ok((map.as_mut_ptr() as usize, map.len() as usize)))?;
        // SAFETY: the object keeps the map, and `grow` never takes memory away. `view` is the interpreter's.
        unsafe { fill(&slf, view, (address as *mut u8, len), this.read_only, flags) }?;
        this.exports.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// # Safety
    /// Called by the interpreter, once for each view.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.exports.fetch_sub(1, Ordering::SeqCst);
    }
}
