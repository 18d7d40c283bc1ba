//! Transactions of Untorn's.

use super::protocol::{Change, Protocol, Shape};
use crate::measuring::peers::fill;
use anyhow::Result;
use std::path::Path;
use untorn::__private::OpenStoreOn;
use untorn::{File, Store, StoreOptions};

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
        let store = options.open(dir)?;
        let files = (0..shape.files).map(|n| store.open_file(n.to_string())).collect::<untorn::Result<Vec<_>>>()?;
        Ok(Managed { store, files, order })
    }
}

impl Protocol for Managed {
    fn transact(&self, changes: &[Change<'_>]) -> Result<()> {
        let mut transaction = self.store.begin();
        for Change { file, at, bytes } in changes {
            transaction.add(&self.files[*file])?;
            self.files[*file].write_all_at(bytes, *at)?;
        }
        transaction.commit()?;
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
