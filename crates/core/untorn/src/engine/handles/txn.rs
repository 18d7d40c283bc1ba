//! Transactions over files and names.

use crate::engine::commit::TxnPart;
use crate::engine::commit::names::{NameChanges, Names};
use crate::engine::commit::ticket::Ticket;
use crate::engine::files::file_state::{FileState, Life, SharedFile, is_a_heap};
use crate::engine::files::name_op::NameOp;
use crate::engine::handles::file::File;
use crate::engine::lifecycle::open_store::OpenStore;
use crate::engine::waiting::completion::Completion;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_journal::{Error, Result};

/// A transaction: changes of many files and names that happen completely or not at all.
///
/// Names change on disk when the transaction commits, not before. Dropping it aborts it. A failed commit also aborts
/// it, unless the error says that its outcome is unknown.
#[must_use = "a dropped transaction is aborted"]
pub struct Txn {
    store: Arc<OpenStore>,
    id: u64,
    files: Vec<Arc<SharedFile>>,
    /// Ids of files that the transaction creates. Files of an earlier commit on its way are not among them.
    made: HashSet<u64>,
    names: Vec<NameOp>,
    changes: NameChanges,
    /// Names whose files the transaction may have loaded into the store's table.
    loaded: Vec<PathBuf>,
    ended: bool,
}

impl Txn {
    pub(crate) fn new(store: Arc<OpenStore>) -> Txn {
        let id = store.commits.new_txn_id();
        Txn {
            store,
            id,
            files: Vec::new(),
            made: HashSet::new(),
            names: Vec::new(),
            changes: NameChanges::default(),
            loaded: Vec::new(),
            ended: false,
        }
    }

    /// Adds a file: its uncommitted changes, past and future, belong to this transaction until it ends.
    pub fn add(&mut self, file: &File) -> Result<()> {
        self.store.life.check_usable()?;
        if !Arc::ptr_eq(&file.store, &self.store) {
            return Err(Error::invalid("the file belongs to another store"));
        }
        let mut state = file.shared.write();
        if file.shared.is_heap() {
            return Err(is_a_heap(state.path()));
        }
        if state.txn == Some(self.id) {
            return Ok(());
        }
        if state.quarantine.is_some() {
            // The cause may be gone, for example if a full disk has space again. Otherwise the file is refused below.
            drop(state);
            let _ = self.store.checkpoint();
            state = file.shared.write();
        }
        state.check_commit(None)?;
        state.txn = Some(self.id);
        self.files.push(file.shared.clone());
        Ok(())
    }

    fn change(&mut self, op: NameOp) -> Result<()> {
        self.store.life.check_usable()?;
        let mut names = Names::resume(&self.store, std::mem::take(&mut self.changes));
        let mut added = names.add(&op);
        if added.is_err() {
            // A commit on its way may change the names.
            self.store.drain();
            added = names.add(&op);
        }
        self.changes = names.changes();
        if added.is_err() || !matches!(op, NameOp::Create { .. }) {
            self.loaded.extend(op.paths().map(Path::to_owned));
        }
        added?;
        self.names.push(op);
        Ok(())
    }

    /// Creates a file, with this mode less the umask. Its name appears when the transaction commits; the handle can be
    /// used at once and belongs to the transaction.
    pub fn create(&mut self, path: impl AsRef<Path>, mode: u32) -> Result<File> {
        let shared = self.create_shared(path.as_ref(), checked_mode(mode)? & !untorn_os::umask())?;
        Ok(File::new(self.store.clone(), shared, false))
    }

    /// Adds a new file with exactly this mode and no handle.
    pub(crate) fn create_shared(&mut self, path: &Path, mode: u32) -> Result<Arc<SharedFile>> {
        self.store.life.check_usable()?;
        let path = path.to_owned();
        let mut state = FileState::new(path.clone(), Life::Uncommitted);
        state.txn = Some(self.id);
        let shared = SharedFile::new(self.store.new_file_id()?, state);
        self.change(NameOp::Create { file: shared.clone(), path, mode })?;
        let is_new = self.made.insert(shared.id);
        debug_assert!(is_new, "two files of transaction {} have the identity {}", self.id, shared.id);
        self.files.push(shared.clone());
        Ok(shared)
    }

    /// Renames a file in the store; a file with the new name is replaced.
    pub fn rename(&mut self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.change(NameOp::Rename { from: from.as_ref().to_owned(), to: to.as_ref().to_owned() })
    }

    /// Removes a file. Its handles are useless after the commit.
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

    /// Sets the permission bits of a file or directory to exactly these.
    pub fn chmod(&mut self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        self.change(NameOp::Chmod { path: path.as_ref().to_owned(), mode: checked_mode(mode)? })
    }

    /// Commits the transaction: after a crash at any point, all of it is there, or nothing.
    ///
    /// # Errors
    /// Those of [`File::commit`], and [`Error::Io`] or [`Error::Conflict`] if names that the transaction uses have
    /// changed.
    pub fn commit(mut self) -> Result<()> {
        let completion = self.end(false)?;
        self.store.finish(&completion)
    }

    /// Commits without waiting.
    pub fn commit_async(mut self) -> Result<Ticket> {
        let completion = self.end(true)?;
        Ok(self.store.ticket(completion))
    }

    /// Commits like [`Txn::commit_async`], but wakes no thread: the commit is written with the next one that a thread
    /// waits for.
    pub(crate) fn submit_unwritten(mut self) -> Result<Ticket> {
        self.store.shorten_queue()?;
        let completion = self.end(false)?;
        Ok(self.store.ticket(completion))
    }

    fn end(&mut self, in_background: bool) -> Result<Arc<Completion>> {
        debug_assert!(!self.ended, "transaction {} ends twice", self.id);
        self.store.life.check_usable()?;
        let names = std::mem::take(&mut self.names);
        let txn = Some(TxnPart { id: self.id, names });
        let completion = match in_background {
            true => self.store.submit_async(&self.files, txn)?,
            false => self.store.submit(&self.files, txn)?,
        };
        // From here on, the transaction must not roll the files back.
        self.ended = true;
        Ok(completion)
    }

    /// Drops all changes.
    ///
    /// # Errors
    /// The memory of a mapped file still shows changes: roll that file back.
    pub fn abort(mut self) -> Result<()> {
        self.store.life.check_fork()?;
        self.forget()
    }

    /// Makes changes of files that the transaction did not create ordinary uncommitted changes, like those of a failed
    /// commit.
    fn release(&mut self) {
        for file in &self.files {
            let mut state = file.write();
            if !self.ended && state.txn == Some(self.id) && !self.made.contains(&file.id) {
                state.txn = None;
            }
        }
    }

    fn forget(&mut self) -> Result<()> {
        let mut done = Ok(());
        if std::mem::replace(&mut self.ended, true) {
            return done;
        }
        for file in &self.files {
            let mut state = file.write();
            if state.txn == Some(self.id) {
                done = state.discard_changes().and(done);
                state.txn = None;
                if self.made.contains(&file.id) {
                    state.be_gone();
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
        if self.store.options.in_order {
            self.release();
        }
        if let Err(e) = self.forget() {
            tracing::error!(id = "untorn.map.keeps_aborted", error = %e, "memory keeps changes that were aborted");
        }
        self.names.clear();
        self.changes = NameChanges::default();
        if self.store.life.check_fork().is_ok() {
            self.files.drain(..).for_each(|file| self.store.forget_if_idle(&file));
            self.store.forget_names(self.loaded.iter().map(PathBuf::as_path));
        }
    }
}

impl std::fmt::Debug for Txn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let changes = (self.files.len(), self.names.len());
        f.debug_struct("Txn").field("id", &self.id).field("files_and_names", &changes).finish_non_exhaustive()
    }
}
