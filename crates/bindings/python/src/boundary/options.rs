//! Options of stores, as Python gives them.

use super::errors::Raises;
use super::waits::{Deadline, repeat};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::time::Duration;
use untorn::{Error, FailureClass, Readers, Result, StoreOptions};

/// Options of a store that is opened.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Options {
    failure_class: String,
    wait: f64,
    readers: String,
    journal_bytes: Option<u64>,
    readers_space: Option<u64>,
    accept_unknown: bool,
}

impl Options {
    fn store(&self) -> PyResult<StoreOptions> {
        let class = match &*self.failure_class {
            "power" => FailureClass::Power,
            "process" => FailureClass::Process,
            other => {
                return Err(PyValueError::new_err(format!("failure_class is 'power' or 'process', not {other:?}")));
            }
        };
        let readers = match &*self.readers {
            "owner" => Readers::Owner,
            "group" => Readers::Group,
            "all" => Readers::All,
            other => return Err(PyValueError::new_err(format!("readers is 'owner', 'group' or 'all', not {other:?}"))),
        };
        let mut options = StoreOptions::new().class(class).readers(readers).accept_unknown(self.accept_unknown);
        if let Some(bytes) = self.journal_bytes {
            options = options.journal_bytes(bytes);
        }
        if let Some(bytes) = self.readers_space {
            options = options.readers_space(bytes);
        }
        Ok(options)
    }

    /// Opens something in a store; waits for another owner in steps, so that Ctrl-C ends the wait.
    pub(crate) fn open<T: Send>(
        &self,
        py: Python<'_>,
        open: impl Fn(StoreOptions) -> Result<T> + Send + Sync,
    ) -> PyResult<T> {
        let options = self.store()?;
        let mut busy = Error::Closed;
        let opened = repeat(py, Deadline::after(Some(self.wait)), |slice: Duration| {
            match open(options.clone().wait_for(slice)) {
                Err(e @ Error::Busy { .. }) => {
                    busy = e;
                    None
                }
                opened => Some(opened),
            }
        })?;
        opened.unwrap_or(Err(busy)).raises(py)
    }
}
