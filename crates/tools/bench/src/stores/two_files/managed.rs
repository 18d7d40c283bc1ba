//! Transactions of Untorn's.

use super::protocol::{Change, Protocol, Shape};
use crate::measuring::peers::fill;
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn::__private::OpenStoreOn;
use untorn::{File, Store, StoreOptions};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_os::Storage;

/// When and how data files are brought up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// In the background, several at a time.
    SideBySide,
    /// In the background, by one thread.
    OneByOne,
    /// In each transaction.
    Synchronous,
}

/// A store with the files.
pub struct Managed {
    store: Store,
    files: Vec<File>,
    order: Order,
}

impl Managed {
    pub fn open(dir: &Path, shape: Shape, journal_bytes: u64, order: Order) -> Result<Managed> {
        (0..shape.files).try_for_each(|n| fill(&dir.join(n.to_string()), shape.file_bytes))?;
        let threads = if order == Order::OneByOne { 1 } else { usize::MAX };
        let options = StoreOptions::new().create(true).journal_bytes(journal_bytes).checkpoint_threads(threads);
        Managed::of(options.open(dir)?, shape, order)
    }

    /// A store of the usual size, on this storage of the directory.
    pub fn open_on(dir: &Path, shape: Shape, storage: Arc<dyn Storage>) -> Result<Managed> {
        (0..shape.files).try_for_each(|n| fill(&dir.join(n.to_string()), shape.file_bytes))?;
        let store = StoreOptions::new().create(true).open_on(storage, StoreDir::of_directory(), PathBuf::new())?;
        Managed::of(store, shape, Order::SideBySide)
    }

    fn of(store: Store, shape: Shape, order: Order) -> Result<Managed> {
        let files = (0..shape.files).map(|n| store.open_file(n.to_string())).collect::<untorn::Result<Vec<_>>>()?;
        Ok(Managed { store, files, order })
    }
}

impl Protocol for Managed {
    fn transact(&self, changes: &[Change<'_>]) -> Result<()> {
        if let [Change { file, at, bytes }] = changes {
            self.files[*file].write_all_at(bytes, *at)?;
            self.files[*file].commit()?;
        } else {
            let mut transaction = self.store.begin();
            for Change { file, at, bytes } in changes {
                transaction.add(&self.files[*file])?;
                self.files[*file].write_all_at(bytes, *at)?;
            }
            transaction.commit()?;
        }
        if self.order == Order::Synchronous { self.settle() } else { Ok(()) }
    }

    fn settle(&self) -> Result<()> {
        Ok(self.store.checkpoint()?)
    }

    #[cfg(test)]
    fn read(&self, file: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.files[file].len()? as usize];
        self.files[file].read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }
}
