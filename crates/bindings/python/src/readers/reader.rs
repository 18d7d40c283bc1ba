//! Readers, and snapshots of one commit.

use super::follow::PyFollow;
use crate::boundary::buffers::Buffer;
use crate::boundary::errors::Raises;
use crate::boundary::slot::Slot;
use crate::boundary::waits::{Deadline, repeat};
use crate::memory::read_map::PyReadMap;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ffi::OsString;
use std::path::PathBuf;
use untorn::Reader;
use untorn::reader::{Snapshot, SnapshotFile};

/// A store opened for reading only, in any process.
#[pyclass(frozen, subclass, name = "Reader", module = "untorn._untorn")]
pub(crate) struct PyReader {
    reader: Reader,
}

/// The files of a store as of one commit.
#[pyclass(frozen, name = "Snapshot", module = "untorn._untorn")]
pub(crate) struct PySnapshot {
    snapshot: Slot<Snapshot>,
}

/// A file of a snapshot.
#[pyclass(frozen, name = "SnapshotFile", module = "untorn._untorn")]
pub(crate) struct PySnapshotFile {
    file: Slot<SnapshotFile>,
}

#[pymethods]
impl PyReader {
    #[new]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<PyReader> {
        Ok(PyReader { reader: py.detach(|| Reader::open(&path)).raises(py)? })
    }

    /// The name in the store of a file or directory below `path`, if there is a store above it.
    #[staticmethod]
    fn _containing(py: Python<'_>, path: PathBuf) -> PyResult<(PyReader, OsString)> {
        let (reader, name) = py.detach(|| Reader::open_containing(&path)).raises(py)?;
        Ok((PyReader { reader }, name.into()))
    }

    /// The path with which the store was opened.
    #[getter]
    fn path(&self) -> OsString {
        self.reader.path().into()
    }

    /// The contents of a file, as of the last durable commit.
    fn read<'py>(&self, py: Python<'py>, name: PathBuf) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = py.detach(|| self.reader.read(&name)).raises(py)?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn _snapshot(&self, py: Python<'_>) -> PyResult<PySnapshot> {
        let snapshot = py.detach(|| self.reader.snapshot()).raises(py)?;
        Ok(PySnapshot { snapshot: Slot::new(snapshot) })
    }

    /// Waits until a commit is durable, for at most `timeout` seconds. Returns whether it is.
    #[pyo3(signature = (lsn, timeout = None))]
    fn wait_for(&self, py: Python<'_>, lsn: u64, timeout: Option<f64>) -> PyResult<bool> {
        let durable = repeat(py, Deadline::after(timeout), |slice| match self.reader.wait_for(lsn, slice) {
            Ok(false) => None,
            result => Some(result),
        })?;
        durable.unwrap_or(Ok(false)).raises(py)
    }

    /// Follows the commits after the last durable one, or after `from_lsn`.
    #[pyo3(signature = (from_lsn = None))]
    fn follow(&self, py: Python<'_>, from_lsn: Option<u64>) -> PyResult<PyFollow> {
        let follow = py.detach(|| from_lsn.map_or_else(|| self.reader.follow(), |lsn| self.reader.follow_from(lsn)));
        Ok(PyFollow::new(follow.raises(py)?))
    }

    fn _map(&self, py: Python<'_>, name: PathBuf) -> PyResult<PyReadMap> {
        Ok(PyReadMap::new(py.detach(|| self.reader.map(&name)).raises(py)?))
    }
}

#[pymethods]
impl PySnapshot {
    /// LSN of the commit that it shows.
    #[getter]
    fn lsn(&self, py: Python<'_>) -> PyResult<u64> {
        self.snapshot.with(py, |snapshot| Ok(snapshot.lsn()))
    }

    /// Names in a directory, sorted; "" is the store itself.
    #[pyo3(signature = (directory = PathBuf::new()), text_signature = "($self, directory='')")]
    fn list(&self, py: Python<'_>, directory: PathBuf) -> PyResult<Vec<OsString>> {
        self.snapshot.with(py, |snapshot| snapshot.list(&directory))
    }

    fn _open(&self, py: Python<'_>, name: PathBuf) -> PyResult<PySnapshotFile> {
        let file = self.snapshot.with(py, |snapshot| snapshot.open(&name))?;
        Ok(PySnapshotFile { file: Slot::new(file) })
    }

    /// Whether the name is a directory, the length in bytes, and the permission bits.
    fn _metadata(&self, py: Python<'_>, name: PathBuf) -> PyResult<(bool, u64, u32)> {
        self.snapshot.with(py, |snapshot| snapshot.metadata(&name).map(|m| (m.is_directory, m.len, m.mode)))
    }

    /// Checks that everything read so far is of this one commit, and that more can be read.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.snapshot.with(py, Snapshot::check)
    }

    /// Advances to the last durable commit. Files that were opened before stay at theirs.
    fn refresh(&self, py: Python<'_>) -> PyResult<()> {
        self.snapshot.with_mut(py, Snapshot::refresh)
    }

    /// Lets the owner drop the snapshot's data.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.snapshot.end(py, |snapshot| {
            drop(snapshot);
            Ok(())
        })?;
        Ok(())
    }
}

#[pymethods]
impl PySnapshotFile {
    /// The length in bytes.
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.file.with(py, SnapshotFile::len)
    }

    /// Reads bytes from an offset into a buffer; returns their number.
    fn pread_into(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let mut buffer = Buffer::writable(buffer)?;
        let bytes = buffer.bytes_mut();
        self.file.with(py, |file| file.read_at(bytes, offset))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.file.end(py, |file| {
            drop(file);
            Ok(())
        })?;
        Ok(())
    }
}
