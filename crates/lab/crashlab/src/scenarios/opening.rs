//! Opens the stores of scenarios.

use crate::simulation::SimDisk;
use std::path::PathBuf;
use untorn::__private::OpenStoreOn;
use untorn::{Error, FailureClass, Store, StoreOptions};
use untorn_journal::directories::store_dir::StoreDir;

pub(crate) fn open(disk: &SimDisk, class: FailureClass) -> Result<Store, Error> {
    let options = StoreOptions::new().create(true).background(false).sizes(64 << 10, 16 << 10, 32 << 10).class(class);
    options.open_on(disk.process(), StoreDir::of_directory(), PathBuf::new())
}

/// The text for an unexpected error.
pub(crate) fn failed(e: Error) -> String {
    format!("an error that nothing explains: {e}")
}
