//! The extension module of the Python package `untorn`.
//!
//! It has the parts that need Rust: handles, buffers, waits without the interpreter's lock. The objects that Python programs
//! see (`io` classes, arrays, tables) are built on it in `python/untorn`.

mod boundary;
mod memory;
mod readers;
mod stores;

use memory::map::PyMap;
use memory::read_map::PyReadMap;
use memory::table::PyTable;
use pyo3::prelude::*;
use readers::follow::{PyChange, PyCommit, PyFollow, PyMissed};
use readers::reader::{PyReader, PySnapshot, PySnapshotFile};
use stores::file::PyFile;
use stores::gate::{PyGate, PyOutput};
use stores::store::PyStore;
use stores::ticket::PyTicket;
use stores::txn::PyTxn;

#[pymodule(gil_used = false)]
fn _untorn(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyStore>()?;
    module.add_class::<PyFile>()?;
    module.add_class::<PyTxn>()?;
    module.add_class::<PyTicket>()?;
    module.add_class::<PyGate>()?;
    module.add_class::<PyOutput>()?;
    module.add_class::<PyMap>()?;
    module.add_class::<PyReadMap>()?;
    module.add_class::<PyTable>()?;
    module.add_class::<PyReader>()?;
    module.add_class::<PySnapshot>()?;
    module.add_class::<PySnapshotFile>()?;
    module.add_class::<PyFollow>()?;
    module.add_class::<PyCommit>()?;
    module.add_class::<PyChange>()?;
    module.add_class::<PyMissed>()?;
    module.add_function(wrap_pyfunction!(stores::store::sync, module)?)?;
    module.add_function(wrap_pyfunction!(stores::replace::put, module)?)?;
    module.add_function(wrap_pyfunction!(stores::replace::put_from, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
