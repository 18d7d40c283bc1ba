//! Files of a reader as memory.

use crate::boundary::buffers::fill;
use crate::boundary::slot::Slot;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use untorn::ReadMap;

/// A file as of one commit, in memory, for reading.
#[pyclass(frozen, name = "ReadMap", module = "untorn._untorn")]
pub(crate) struct PyReadMap {
    map: Slot<ReadMap>,
    exports: AtomicUsize,
}

impl PyReadMap {
    pub(crate) fn new(map: ReadMap) -> PyReadMap {
        PyReadMap { map: Slot::new(map), exports: AtomicUsize::new(0) }
    }
}

#[pymethods]
impl PyReadMap {
    /// LSN of the commit that it shows.
    #[getter]
    fn lsn(&self, py: Python<'_>) -> PyResult<u64> {
        self.map.with(py, |map| Ok(map.lsn()))
    }

    /// Advances to the last durable commit; returns whether there is a newer one. No buffer of it may exist.
    fn refresh(&self, py: Python<'_>) -> PyResult<bool> {
        if self.exports.load(Ordering::SeqCst) > 0 {
            return Err(PyBufferError::new_err("arrays of this map exist; map the file again for the newest commit"));
        }
        self.map.with_mut(py, ReadMap::refresh)
    }

    /// # Safety
    /// Called by the interpreter, which passes a view of its own.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        if flags & ffi::PyBUF_WRITABLE != 0 {
            return Err(PyBufferError::new_err("a file of a reader is for reading only"));
        }
        // Counted first, so that `refresh` in another thread does not move the memory.
        this.exports.fetch_add(1, Ordering::SeqCst);
        let filled = this.map.with(slf.py(), |map| Ok((map.as_ptr() as usize, map.len()))).and_then(|(at, len)| {
            // SAFETY: the memory stays while the object lives and `exports` counts. `view` is the interpreter's.
            unsafe { fill(&slf, view, (at as *mut u8, len), true, flags) }
        });
        if filled.is_err() {
            this.exports.fetch_sub(1, Ordering::SeqCst);
        }
        filled
    }

    /// # Safety
    /// Called by the interpreter, once for each view.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.exports.fetch_sub(1, Ordering::SeqCst);
    }
}
