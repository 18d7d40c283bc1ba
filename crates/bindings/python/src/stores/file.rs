//! Files, by position; the `io` classes of the package stand on this.

use super::ticket::{Events, PyTicket};
use crate::boundary::buffers::Buffer;
use crate::boundary::options::Options;
use crate::boundary::slot::Slot;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use untorn::{Error, File, FileOptions, Result};

/// A handle of a file, with a position for `readinto` and `write`.
#[pyclass(frozen, name = "File", module = "untorn._untorn")]
pub(crate) struct PyFile {
    pub(crate) file: Slot<File>,
    pub(crate) events: Arc<Events>,
    /// Held during a read or write, which moves it. Only taken with the file's slot, which knows a forked child.
    position: Mutex<u64>,
    pid: u32,
}

/// How a file is opened.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct FileArgs {
    create: bool,
    create_new: bool,
    read_only: bool,
    truncate: bool,
    permissions: u32,
}

impl FileArgs {
    pub(crate) fn options(&self) -> FileOptions {
        FileOptions::new()
            .create(self.create)
            .create_new(self.create_new)
            .read_only(self.read_only)
            .truncate(self.truncate)
            .mode(self.permissions)
    }
}

impl PyFile {
    pub(crate) fn new(file: File, events: Arc<Events>) -> PyFile {
        PyFile { file: Slot::new(file), events, position: Mutex::new(0), pid: std::process::id() }
    }

    /// Calls `act` with the file and the position, alone.
    fn at_position<R: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&File, &mut u64) -> Result<R> + Send,
    ) -> PyResult<R> {
        self.file.with(py, |file| {
            let mut position = match self.position.try_lock() {
                Some(position) => position,
                None if std::process::id() != self.pid => return Err(Error::Forked),
                None => self.position.lock(),
            };
            act(file, &mut position)
        })
    }
}

#[pymethods]
impl PyFile {
    /// Opens a standalone file: its own store is beside it, `<path>.untorn/`.
    #[new]
    fn open(py: Python<'_>, path: PathBuf, args: FileArgs, store: Options) -> PyResult<PyFile> {
        let file = store.open(py, |store| args.options().store(store).open(&path))?;
        Ok(PyFile::new(file, Arc::default()))
    }

    /// Reads bytes from an offset into a buffer; returns their number, less than the buffer only at the end.
    fn pread_into(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let mut buffer = Buffer::writable(buffer)?;
        let bytes = buffer.bytes_mut();
        self.file.with(py, |file| file.read_at(bytes, offset))
    }

    /// Reads at most `size` bytes from an offset.
    fn pread<'py>(&self, py: Python<'py>, size: usize, offset: u64) -> PyResult<Bound<'py, PyBytes>> {
        let len = self.file.with(py, |file| file.len())?;
        let size = size.min(usize::try_from(len.saturating_sub(offset)).unwrap_or(usize::MAX));
        let mut n = 0;
        let bytes = PyBytes::new_with(py, size, |bytes| {
            n = self.file.with(py, |file| file.read_at(bytes, offset))?;
            Ok(())
        })?;
        if n == size { Ok(bytes) } else { Ok(PyBytes::new(py, &bytes.as_bytes()[..n])) }
    }

    /// Writes bytes at an offset, as an uncommitted change; extends the file if necessary.
    fn pwrite(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let buffer = Buffer::readable(data)?;
        let bytes = buffer.bytes();
        self.file.with(py, |file| file.write_at(bytes, offset))
    }

    /// Writes bytes at the end; returns the offset of the first.
    fn append(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<u64> {
        let buffer = Buffer::readable(data)?;
        let bytes = buffer.bytes();
        self.file.with(py, |file| file.append(bytes))
    }

    /// Reads at the position, which moves.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let mut buffer = Buffer::writable(buffer)?;
        let bytes = buffer.bytes_mut();
        self.at_position(py, |file, position| {
            let n = file.read_at(bytes, *position)?;
            *position += n as u64;
            Ok(n)
        })
    }

    /// Writes at the position, or at the end, and moves the position behind the bytes.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>, at_end: bool) -> PyResult<usize> {
        let buffer = Buffer::readable(data)?;
        let bytes = buffer.bytes();
        self.at_position(py, |file, position| {
            let at = match at_end {
                true => file.append(bytes)?,
                false => file.write_at(bytes, *position).map(|_| *position)?,
            };
            *position = at + bytes.len() as u64;
            Ok(bytes.len())
        })
    }

    /// Moves the position: from the start (0), from itself (1), or from the end (2). Returns the new one.
    fn seek(&self, py: Python<'_>, offset: i64, whence: u8) -> PyResult<u64> {
        self.at_position(py, |file, position| {
            let from = match whence {
                0 => 0,
                1 => *position,
                2 => file.len()?,
                _ => return Err(Error::invalid(format!("whence is 0, 1 or 2, not {whence}"))),
            };
            let to = from.checked_add_signed(offset).filter(|to| *to <= i64::MAX as u64);
            *position = to.ok_or_else(|| Error::invalid(format!("there is no position {offset} from {from}")))?;
            Ok(*position)
        })
    }

    /// The position.
    fn tell(&self, py: Python<'_>) -> PyResult<u64> {
        self.at_position(py, |_, position| Ok(*position))
    }

    /// Sets the size, as an uncommitted change; new bytes are zero.
    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.file.with(py, |file| file.set_len(size))
    }

    /// Makes a range zero, as an uncommitted change.
    fn zero(&self, py: Python<'_>, offset: u64, size: u64) -> PyResult<()> {
        self.file.with(py, |file| file.zero(offset, size))
    }

    /// The size in bytes, uncommitted changes included.
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.file.with(py, |file| file.len())
    }

    /// Whether there are uncommitted changes.
    fn has_changes(&self, py: Python<'_>) -> PyResult<bool> {
        self.file.with(py, |file| file.has_changes())
    }

    /// Commits all changes of the file: durable on return, all or nothing.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        self.file.with(py, |file| file.commit())
    }

    /// Starts a commit of all changes made so far.
    fn commit_async(&self, py: Python<'_>) -> PyResult<PyTicket> {
        self.file.with(py, |file| self.events.ticket(&file.store(), || file.commit_async()))
    }

    /// Forgets all uncommitted changes.
    fn rollback(&self, py: Python<'_>) -> PyResult<()> {
        self.file.with(py, |file| file.rollback())
    }

    /// The name, relative to the store.
    #[getter]
    fn path(&self, py: Python<'_>) -> PyResult<OsString> {
        self.file.with(py, |file| Ok(file.path().into()))
    }

    /// Closes the handle; discards uncommitted changes if it is the last one.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.file.end(py, |file| file.close()).map(drop)
    }

    /// Whether the handle was closed.
    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        self.file.is_closed(py)
    }
}

/// Another handle of each file, so that no lock of ours is held during a commit.
pub(crate) fn clones(py: Python<'_>, files: &[Bound<'_, PyFile>]) -> PyResult<Vec<File>> {
    files.iter().map(|file| file.get().file.with(py, |file| file.try_clone())).collect()
}
