//! Files that are replaced whole.

use crate::boundary::buffers::Buffer;
use crate::boundary::descriptors::duplicate;
use crate::boundary::errors::Raises;
use pyo3::prelude::*;
use std::fs::File;
use std::path::PathBuf;
use untorn::offline;

/// Replaces the contents of a file, all or nothing.
#[pyfunction]
pub(crate) fn put(py: Python<'_>, path: PathBuf, data: &Bound<'_, PyAny>) -> PyResult<u64> {
    let buffer = Buffer::readable(data)?;
    let mut bytes = buffer.bytes();
    py.detach(|| offline::put(&path, &mut bytes)).raises(py)
}

/// Replaces the contents of a file by those of an open one, from its position on.
#[pyfunction]
pub(crate) fn put_from(py: Python<'_>, path: PathBuf, from: i32) -> PyResult<u64> {
    py.detach(|| offline::put(&path, &mut File::from(duplicate(from)?))).raises(py)
}
