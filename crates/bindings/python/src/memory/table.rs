//! A table from bytes to bytes, in key order: a B-tree in a heap.

use crate::boundary::buffers::Buffer;
use crate::boundary::errors::Raises;
use crate::boundary::options::Options;
use crate::boundary::slot::Slot;
use crate::stores::file::PyFile;
use crate::stores::store::PyStore;
use crate::stores::ticket::{Events, PyTicket};
use parking_lot::Mutex;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::alloc::Layout;
use std::borrow::Borrow;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use untorn::heap::{Heap, HeapBTreeMap, HeapOptions, HeapVec, InHeap, RootShape};
use untorn::{Error, File, Result};

type Map = HeapBTreeMap<'static, Key, HeapVec<'static, u8>>;

/// A key: bytes in the heap, ordered like a slice, which finds it.
#[repr(transparent)]
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key(HeapVec<'static, u8>);

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

const ROOT: &str = "untorn.dbm";
/// The name of the type in the heap: not the compiler's, which another one may spell differently.
const SHAPE: RootShape<'static> =
    RootShape { type_name: "untorn.dbm: bytes to bytes", layout: Layout::new::<Map>(), version: 1 };
/// Bytes that the nodes of one insertion may take.
const NODES_BYTES: usize = 64 << 10;
/// With so much address space left, no allocation of the usual size can fail.
const AMPLE_BYTES: usize = 16 << 20;

/// An open table.
struct Table {
    heap: Heap,
    map: NonNull<Map>,
    address_space: usize,
    /// Whether something changed since the last commit.
    changed: bool,
    events: Arc<Events>,
}

// SAFETY: the map is in the heap, whose handles any thread may use. The mutex around the table makes one thread at a time
// use the map.
unsafe impl Send for Table {}

/// A table. Its calls exclude each other; commits of other threads go on beside them.
#[pyclass(frozen, name = "Table", module = "untorn._untorn")]
pub(crate) struct PyTable {
    table: Slot<Mutex<Table>>,
}

impl Table {
    fn of(heap: Heap, read_only: bool, events: Arc<Events>) -> Result<Table> {
        let map = match heap.find_root(ROOT, &SHAPE)? {
            Some(found) => found.cast(),
            None if read_only => return Err(Error::invalid("this heap has no table")),
            None => {
                let map: NonNull<Map> = heap.allocate(Layout::new::<Map>())?.cast();
                // SAFETY: the table keeps the heap open longer than it uses the map; the memory is fresh.
                unsafe { map.write(Map::new_in(heap.allocator().unbound())) };
                heap.put_root(ROOT, Some(map.cast()), &SHAPE)?;
                heap.commit()?;
                map
            }
        };
        let address_space = heap.stats()?.address_space_bytes as usize;
        Ok(Table { heap, map, address_space, changed: false, events })
    }

    fn map(&self) -> &Map {
        // SAFETY: the root is a map, by its shape, and the mutex keeps changes away.
        unsafe { self.map.as_ref() }
    }

    fn map_mut(&mut self) -> &mut Map {
        // SAFETY: as above, and this thread alone has the table.
        unsafe { self.map.as_mut() }
    }

    fn alloc(&self) -> InHeap<'static> {
        // SAFETY: vectors with this allocator stay in the map, which is used only while the heap is open.
        unsafe { self.heap.allocator().unbound() }
    }

    /// Makes sure that an insertion finds memory: a collection that finds none ends the process.
    fn reserve(&self, bytes: usize) -> Result<()> {
        let (_, used) = self.heap.memory();
        if self.address_space.saturating_sub(used) > AMPLE_BYTES + 2 * bytes {
            return Ok(());
        }
        let allocate = |bytes: usize| {
            let layout = Layout::from_size_align(bytes.max(1), 8).map_err(|e| Error::invalid(e.to_string()))?;
            self.heap.allocate(layout)
        };
        let contents = allocate(bytes)?;
        let nodes = allocate(NODES_BYTES);
        // SAFETY: allocated above, and used by nobody.
        unsafe {
            self.heap.free(contents)?;
            self.heap.free(nodes?)
        }
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.reserve(key.len() + value.len())?;
        let heap = self.heap.clone();
        let _whole = heap.mutate();
        let alloc = self.alloc();
        let copy = |bytes: &[u8]| {
            let mut copy = HeapVec::with_capacity_in(bytes.len(), alloc);
            copy.extend_from_slice(bytes);
            copy
        };
        self.changed = true;
        match self.map_mut().get_mut(key) {
            Some(old) if old.len() == value.len() => old.copy_from_slice(value),
            Some(old) => *old = copy(value),
            None => drop(self.map_mut().insert(Key(copy(key)), copy(value))),
        }
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> bool {
        let heap = self.heap.clone();
        let _whole = heap.mutate();
        let removed = self.map_mut().remove(key).is_some();
        self.changed |= removed;
        removed
    }
}

impl PyTable {
    fn with<R: Send>(&self, py: Python<'_>, act: impl FnOnce(&mut Table) -> Result<R> + Send) -> PyResult<R> {
        self.table.with(py, |table| {
            // Memory of a heap is there in a forked child, too; the handle is not.
            self.table.check_fork()?;
            act(&mut table.lock())
        })
    }
}

#[pymethods]
impl PyTable {
    /// Opens a table: a heap file with a store beside it.
    #[new]
    fn open(py: Python<'_>, path: PathBuf, create: bool, options: Options) -> PyResult<PyTable> {
        let heap = options.open(py, |store| HeapOptions::new().create(create).store(store).open(&path))?;
        let table = py.detach(|| Table::of(heap, !create, Arc::default()));
        Ok(PyTable { table: Slot::new(Mutex::new(table.raises(py)?)) })
    }

    /// Opens a table in a store.
    #[staticmethod]
    fn open_in(py: Python<'_>, store: &Bound<'_, PyStore>, name: PathBuf, create: bool) -> PyResult<PyTable> {
        let store = store.get();
        let table = store.store.with(py, |open| {
            let heap = HeapOptions::new().create(create).open_in(open, &name)?;
            Table::of(heap, !create, store.events.clone())
        })?;
        Ok(PyTable { table: Slot::new(Mutex::new(table)) })
    }

    fn get<'py>(&self, py: Python<'py>, key: &Bound<'_, PyAny>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let buffer = Buffer::readable(key)?;
        let bytes = buffer.bytes();
        let found = self.with(py, |table| Ok(table.map().get(bytes).map(|value| value.to_vec())))?;
        Ok(found.map(|value| PyBytes::new(py, &value)))
    }

    fn contains(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let buffer = Buffer::readable(key)?;
        let bytes = buffer.bytes();
        self.with(py, |table| Ok(table.map().contains_key(bytes)))
    }

    fn set(&self, py: Python<'_>, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let (key, value) = (Buffer::readable(key)?, Buffer::readable(value)?);
        let (key, value) = (key.bytes(), value.bytes());
        self.with(py, |table| table.insert(key, value))
    }

    fn remove(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let buffer = Buffer::readable(key)?;
        let bytes = buffer.bytes();
        match self.with(py, |table| Ok(table.remove(bytes)))? {
            true => Ok(()),
            false => Err(PyKeyError::new_err(key.clone().unbind())),
        }
    }

    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |table| {
            let heap = table.heap.clone();
            let _whole = heap.mutate();
            table.changed |= !table.map().is_empty();
            table.map_mut().clear();
            Ok(())
        })
    }

    fn len(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |table| Ok(table.map().len()))
    }

    /// At most `count` keys in order, from `start` on, or behind it.
    fn keys<'py>(
        &self,
        py: Python<'py>,
        start: &Bound<'_, PyAny>,
        behind: bool,
        count: usize,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let buffer = Buffer::readable(start)?;
        let start = buffer.bytes();
        let keys = self.with(py, |table| {
            let from = table.map().iter_from(start).map(|(key, _)| &*key.0);
            Ok(from.filter(|key| !behind || *key != start).take(count).map(<[u8]>::to_vec).collect::<Vec<_>>())
        })?;
        Ok(keys.iter().map(|key| PyBytes::new(py, key)).collect())
    }

    /// Whether something changed since the last commit.
    fn has_changes(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |table| Ok(table.changed))
    }

    /// Commits all changes.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        let heap = self.begin_commit(py)?;
        self.end_commit(py, py.detach(|| heap.commit()))
    }

    /// Starts a commit.
    fn commit_async(&self, py: Python<'_>) -> PyResult<PyTicket> {
        self.with(py, |table| {
            let store = table.heap.file().store();
            let ticket = table.events.ticket(&store, || table.heap.commit_async())?;
            table.changed = false;
            Ok(ticket)
        })
    }

    /// Commits the table together with files of its store.
    fn sync(&self, py: Python<'_>, files: Vec<Bound<'_, PyFile>>) -> PyResult<()> {
        let handles = crate::stores::file::clones(py, &files)?;
        let heap = self.begin_commit(py)?;
        let synced = py.detach(|| {
            let synced = heap.syncv(&handles.iter().collect::<Vec<&File>>());
            drop(handles);
            synced
        });
        self.end_commit(py, synced)
    }

    /// Returns to the last commit.
    fn rollback(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |table| {
            // SAFETY: no reference into the heap exists outside of calls, which the mutex excludes.
            unsafe { table.heap.rollback() }?;
            table.changed = false;
            Ok(())
        })
    }

    /// Closes the table; discards uncommitted changes.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.table.end(py, |table| table.into_inner().heap.close()).map(drop)
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        self.table.is_closed(py)
    }
}

impl PyTable {
    /// The heap, whose commit has every change made so far. The flag is cleared first, so that a change during the
    /// commit sets it again.
    fn begin_commit(&self, py: Python<'_>) -> PyResult<Heap> {
        self.with(py, |table| {
            table.changed = false;
            Ok(table.heap.clone())
        })
    }

    fn end_commit(&self, py: Python<'_>, committed: Result<()>) -> PyResult<()> {
        if committed.is_err() {
            self.with(py, |table| {
                table.changed = true;
                Ok(())
            })?;
        }
        committed.raises(py)
    }
}
