//! Transactions over files and names.

use crate::file::File;
use crate::names::{Kept, NameOp, Names};
use crate::store::{Owned, lock};
use crate::ticket::{Slot, Ticket};
use crate::view::{FileShared, Life, View};
use std::path::Path;
use std::sync::Arc;
use untorn_journal::{Error, Result};

/// A transaction: changes of many files and of names that happen all or not at all.
///
/// Names change on disk when the transaction commits, not before. Dropping it aborts. A commit that
/// fails aborts, too, unless the error says that its outcome is unknown.
pub struct Txn {
    inner: Arc<Owned>,
    id: u64,
    files: Vec<Arc<FileShared>>,
    names: Vec<NameOp>,
    kept: Kept,
    ended: bool,
}

impl Txn {
    pub(crate) fn new(inner: Arc<Owned>) -> Txn {
        let id = inner.new_txn_id();
        Txn { inner, id, files: Vec::new(), names: Vec::new(), kept: Kept::default(), ended: false }
    }

    /// The file's uncommitted changes, past and future, belong to this transaction until it ends.
    pub fn add(&mut self, file: &File) -> Result<()> {
        self.inner.check_usable()?;
        if !Arc::ptr_eq(&file.inner, &self.inner) {
            return Err(Error::invalid("the file belongs to another store"));
        }
        // A commit that has checked the file takes its changes before it becomes ours.
        let _queue = lock(&self.inner.queue);
        let mut view = file.shared.write();
        if view.txn == Some(self.id) {
            return Ok(());
        }
        view.check_commit(None)?;
        view.txn = Some(self.id);
        self.files.push(file.shared.clone());
        Ok(())
    }

    fn change(&mut self, op: NameOp) -> Result<()> {
        self.inner.check_usable()?;
        let mut names = Names::resume(&self.inner, std::mem::take(&mut self.kept));
        let mut judged = names.add(&op);
        if judged.is_err() {
            // A commit that is on its way may change the names.
            self.inner.drain();
            judged = names.add(&op);
        }
        self.kept = names.keep();
        judged?;
        self.names.push(op);
        Ok(())
    }

    /// A new file, with this mode less the umask. Its name appears when the transaction commits; the
    /// handle can be used at once and belongs to the transaction.
    pub fn create(&mut self, path: impl AsRef<Path>, mode: u32) -> Result<File> {
        let shared = self.create_shared(path.as_ref(), checked_mode(mode)? & !untorn_os::umask())?;
        Ok(File::new(self.inner.clone(), shared, false))
    }

    /// The same with exactly this mode, and without a handle.
    pub(crate) fn create_shared(&mut self, path: &Path, mode: u32) -> Result<Arc<FileShared>> {
        self.inner.check_usable()?;
        let path = path.to_owned();
        let mut view = View::new(path.clone(), Life::Unborn, 0);
        view.txn = Some(self.id);
        let shared = FileShared::new(self.inner.new_file_id()?, view);
        self.change(NameOp::Create { file: shared.clone(), path, mode })?;
        self.files.push(shared.clone());
        Ok(shared)
    }

    /// Gives a file another name in the store; a file of that name is replaced.
    pub fn rename(&mut self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.change(NameOp::Rename { from: from.as_ref().to_owned(), to: to.as_ref().to_owned() })
    }

    /// Removes a file. Handles of it are of no use after the commit.
    pub fn unlink(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.change(NameOp::Unlink { path: path.as_ref().to_owned() })
    }

    /// Makes a directory, with this mode less the umask.
    pub fn mkdir(&mut self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        let mode = checked_mode(mode)? & !untorn_os::umask();
        self.change(NameOp::Mkdir { path: path.as_ref().to_owned(), mode })
    }

    /// Removes an empty directory.
    pub fn rmdir(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.change(NameOp::Rmdir { path: path.as_ref().to_owned() })
    }

    /// Sets the permission bits of a file or directory, exactly these.
    pub fn chmod(&mut self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        self.change(NameOp::Mode { path: path.as_ref().to_owned(), mode: checked_mode(mode)? })
    }

    /// Commits: after any crash all of it is there, or nothing.
    ///
    /// # Errors
    /// Those of [`File::commit`], and [`Error::Io`] or [`Error::Conflict`] if names have changed under
    /// the transaction.
    pub fn commit(mut self) -> Result<()> {
        let slot = self.end(false)?;
        self.inner.finish(&slot)
    }

    /// The same without waiting.
    pub fn commit_async(mut self) -> Result<Ticket> {
        let slot = self.end(true)?;
        Ok(Ticket { slot, inner: self.inner.clone() })
    }

    fn end(&mut self, in_background: bool) -> Result<Arc<Slot>> {
        self.inner.check_usable()?;
        let names = std::mem::take(&mut self.names);
        let txn = Some((self.id, names));
        let slot = match in_background {
            true => self.inner.submit_async(&self.files, txn)?,
            false => self.inner.submit(&self.files, txn)?,
        };
        // From here on the files are no longer ours to roll back.
        self.ended = true;
        Ok(slot)
    }

    /// Forgets all changes.
    ///
    /// # Errors
    /// The memory of a mapped file still shows changes: roll that file back.
    pub fn abort(mut self) -> Result<()> {
        self.inner.check_fork()?;
        self.forget()
    }

    fn forget(&mut self) -> Result<()> {
        let mut done = Ok(());
        if std::mem::replace(&mut self.ended, true) {
            return done;
        }
        for file in &self.files {
            let mut view = file.write();
            if view.txn == Some(self.id) {
                done = view.forget_changes().and(done);
                view.txn = None;
                if view.life == Life::Unborn {
                    view.be_gone();
                }
            }
        }
        done
    }
}

fn checked_mode(mode: u32) -> Result<u32> {
    if mode > 0o7777 { Err(Error::invalid(format!("{mode:o} is not a mode"))) } else { Ok(mode) }
}

impl Drop for Txn {
    fn drop(&mut self) {
        if let Err(e) = self.forget() {
            tracing::error!(error = %e, "memory keeps changes that were aborted");
        }
    }
}
