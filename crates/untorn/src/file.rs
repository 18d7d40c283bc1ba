//! Handles of files.

use crate::options::{FileOptions, StoreOptions};
use crate::store::{Owned, Store};
use crate::sync::AtomicBool;
use crate::ticket::Ticket;
use crate::view::FileShared;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use untorn_journal::{Error, Result};

/// One handle of a file.
///
/// All handles of one file in one store share one view, uncommitted changes included: what one
/// writes the others read, and a commit through any of them commits it all.
///
/// **Closing the last handle without a commit discards the uncommitted changes**, unless
/// [`File::set_commit_on_close`] was called. Dropping a handle closes it and tells no error.
pub struct File {
    pub(crate) inner: Arc<Owned>,
    pub(crate) shared: Arc<FileShared>,
    read_only: bool,
    commit_on_close: AtomicBool,
    closed: bool,
}

impl File {
    pub(crate) fn new(inner: Arc<Owned>, shared: Arc<FileShared>, read_only: bool) -> File {
        shared.write().handles += 1;
        File::counted(inner, shared, read_only)
    }

    /// For a shared file that counts this handle already.
    pub(crate) fn counted(inner: Arc<Owned>, shared: Arc<FileShared>, read_only: bool) -> File {
        File { inner, shared, read_only, commit_on_close: AtomicBool::new(false), closed: false }
    }

    /// Opens an existing file that has a store of its own beside it, `<path>.untorn/`.
    pub fn open(path: impl AsRef<Path>) -> Result<File> {
        StoreOptions::default().open_file_with(path, &FileOptions::default())
    }

    /// The same; makes the file if there is none, with mode 0666 less the umask.
    pub fn create(path: impl AsRef<Path>) -> Result<File> {
        StoreOptions::default().open_file(path)
    }

    /// Another handle of the same file.
    pub fn duplicate(&self) -> Result<File> {
        self.inner.check_usable()?;
        Ok(File::new(self.inner.clone(), self.shared.clone(), self.read_only))
    }

    /// Reads committed and uncommitted bytes alike. Fewer than asked only at the end of the file.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.inner.check_usable()?;
        self.shared.read_at(&self.inner, buf, offset)
    }

    pub(crate) fn check_write(&self) -> Result<()> {
        self.inner.check_usable()?;
        if self.read_only { Err(Error::invalid("the handle is for reading only")) } else { Ok(()) }
    }

    /// Changes bytes, extending the file if need be. Nothing reaches the file before a commit.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.check_write()?;
        self.shared.write_at(&self.inner, buf, Some(offset)).map(|_| ())
    }

    /// Writes behind the last byte; returns the offset where the bytes went.
    pub fn append(&self, buf: &[u8]) -> Result<u64> {
        self.check_write()?;
        self.shared.write_at(&self.inner, buf, None)
    }

    /// Sets the size; new bytes are zero.
    pub fn truncate(&self, size: u64) -> Result<()> {
        self.check_write()?;
        self.shared.truncate(size)
    }

    /// Like writing zeros, without the bytes.
    pub fn zero(&self, offset: u64, len: u64) -> Result<()> {
        self.check_write()?;
        self.shared.zero(offset, len)
    }

    /// Size in bytes, uncommitted changes included.
    pub fn size(&self) -> Result<u64> {
        self.inner.check_usable()?;
        let view = self.shared.read();
        view.check_alive()?;
        Ok(view.size())
    }

    /// Commits all changes of the file. After any crash the file holds all of them; before, none.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::SyncFailed`], [`Error::InTransaction`], [`Error::Conflict`].
    pub fn commit(&self) -> Result<()> {
        self.check_write()?;
        let slot = self.inner.submit(std::slice::from_ref(&self.shared), None)?;
        self.inner.finish(&slot)
    }

    /// The same without waiting: the changes made so far are the commit.
    pub fn commit_async(&self) -> Result<Ticket> {
        self.check_write()?;
        let slot = self.inner.submit_async(std::slice::from_ref(&self.shared), None)?;
        Ok(Ticket { slot, inner: self.inner.clone() })
    }

    /// Forgets all uncommitted changes.
    pub fn rollback(&self) -> Result<()> {
        self.check_write()?;
        self.shared.rollback()
    }

    /// Commit what is uncommitted when this handle is closed. Default: off.
    pub fn set_commit_on_close(&self, on: bool) {
        self.commit_on_close.store(on, Relaxed);
    }

    /// Random bytes, from where the file's storage has them.
    pub(crate) fn random(&self, bytes: &mut [u8]) -> Result<()> {
        self.inner.storage.random(bytes).map_err(|e| Error::io("draw random bytes for", self.path(), e))
    }

    /// The store that the file lives in.
    pub fn store(&self) -> Store {
        Store { inner: self.inner.clone() }
    }

    /// The file's name, relative to the store.
    pub fn path(&self) -> PathBuf {
        self.shared.read().path.clone()
    }

    /// Closes the handle. **Uncommitted changes are discarded when the last handle closes.** The last
    /// handle of a lone file closes its store, too.
    pub fn close(mut self) -> Result<()> {
        self.inner.check_fork()?;
        self.close_now()
    }

    fn close_now(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.closed, true) {
            return Ok(());
        }
        let committed = match self.commit_on_close.load(Relaxed) && !self.read_only {
            true => self.commit(),
            false => Ok(()),
        };
        {
            let mut view = self.shared.write();
            view.handles -= 1;
            if view.handles == 0 && view.txn.is_none() {
                // No handle, no map: nothing that could fail.
                let _ = view.forget_changes();
            }
        }
        self.inner.forget_if_idle(&self.shared);
        let closed =
            if self.inner.home.lone.is_some() && self.shared.read().handles == 0 { self.inner.close() } else { Ok(()) };
        committed.and(closed)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if self.inner.check_fork().is_ok() {
            let _ = self.close_now();
        }
    }
}
