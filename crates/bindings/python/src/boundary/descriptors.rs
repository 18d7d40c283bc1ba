//! Descriptors of Python's objects.

use pyo3::prelude::*;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use untorn::{Error, Result};

/// The number of an object's descriptor: an integer, or the result of its `fileno`.
pub(crate) fn descriptor_of(object: &Bound<'_, PyAny>) -> PyResult<i32> {
    match object.extract() {
        Ok(number) => Ok(number),
        Err(_) => object.call_method0("fileno")?.extract(),
    }
}

/// A duplicate, which the object's close does not touch.
pub(crate) fn duplicate(descriptor: i32) -> Result<OwnedFd> {
    if descriptor < 0 {
        return Err(Error::invalid(format!("{descriptor} is no descriptor")));
    }
    // SAFETY: the number is not negative; a closed one fails with EBADF.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    borrowed.try_clone_to_owned().map_err(|e| Error::Io {
        action: "duplicate",
        path: PathBuf::from(format!("descriptor {descriptor}")),
        source: Arc::new(e),
    })
}
