//! Memory of Python objects that is used without the interpreter's lock.

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;

/// A contiguous buffer of an object, of any element type, seen as bytes. The object keeps it in place until it is
/// dropped.
///
/// While a call uses the bytes without the interpreter's lock, another thread may store to them: as with `os.pread`,
/// the result is old or new for each byte. Untorn copies buffers once and does not interpret them.
pub(crate) struct Buffer(Box<ffi::Py_buffer>);

impl Buffer {
    /// The bytes of an object, for reading.
    pub(crate) fn readable(object: &Bound<'_, PyAny>) -> PyResult<Buffer> {
        Buffer::get(object, ffi::PyBUF_SIMPLE)
    }

    /// The bytes of an object that can be changed.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Buffer> {
        Buffer::get(object, ffi::PyBUF_WRITABLE)
    }

    fn get(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<Buffer> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: `view` is a fresh `Py_buffer` that does not move until it is released.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *view, flags) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        Ok(Buffer(view))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self.0.len {
            0 => &[],
            // SAFETY: `len` contiguous bytes, which the object keeps in place.
            len => unsafe { std::slice::from_raw_parts(self.0.buf.cast(), len as usize) },
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self.0.len {
            0 => &mut [],
            // SAFETY: as above, and the object allows changes.
            len => unsafe { std::slice::from_raw_parts_mut(self.0.buf.cast(), len as usize) },
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: filled by `PyObject_GetBuffer`, and released once.
        Python::attach(|_| unsafe { ffi::PyBuffer_Release(&mut *self.0) });
    }
}

/// Fills a view of memory that an object of ours owns.
///
/// # Safety
/// `view` comes from the interpreter, and `len` bytes at `address` stay accessible until the view is released.
pub(crate) unsafe fn fill(
    owner: &Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    (address, len): (*mut u8, usize),
    read_only: bool,
    flags: c_int,
) -> PyResult<()> {
    if view.is_null() {
        return Err(PyBufferError::new_err("no view to fill"));
    }
    let len = len as ffi::Py_ssize_t;
    // SAFETY: the caller's promise; the call takes its own reference to the owner.
    match unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), address.cast(), len, read_only.into(), flags) } {
        0 => Ok(()),
        _ => Err(PyErr::fetch(owner.py())),
    }
}
