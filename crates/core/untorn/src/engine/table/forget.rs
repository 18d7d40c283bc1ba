//! Forgetting files: an unused, plain file leaves the table, and gives up its memory and descriptor.
//!
//! ```text
//! no handle, no transaction, no commit on its way; everything in the data file, durably; the log truncated behind it
//!     clear_unused      the file is not pending any more, and nobody can begin to use it meanwhile
//!     flush             that survives a power cut: the file may be moved anywhere
//!     forget            out of the table, unless somebody opened it meanwhile
//! ```
//!
//! If the file is opened again, it is like any other file, and gets a new identity with its first commit.

use crate::engine::Engine;
use crate::engine::files::file_state::{FileState, Life, SharedFile};
use crate::engine::files::open_files::FileTable;
use crate::sync_point;
use std::path::Path;
use std::sync::{Arc, Weak};
use untorn_journal::format::{Attribute, AttributeFound};
use untorn_journal::recovery::{clear_pending, flush_one_by_one};
use untorn_journal::{Context, Error, Result};
use untorn_os::File;

/// The result of trying to forget a file.
enum Cleared {
    /// Its attribute is not pending any more; the caller flushes it.
    Now(Arc<dyn File>),
    /// Its attribute was not set.
    Before,
    /// It is in use, or not plain; it is tried again later.
    No,
}

impl Engine {
    /// Removes a file from the table that has no handles and no state to keep. A file that may qualify after the next
    /// checkpoint is noted.
    pub(crate) fn forget_if_idle(&self, shared: &Arc<SharedFile>) {
        self.forget(shared, |_, _| true);
    }

    /// Removes the files of these names from the table that are unused and have no state to keep.
    pub(crate) fn forget_names<'p>(&self, names: impl IntoIterator<Item = &'p Path>) {
        for name in names {
            let known = self.files.lock().get(name).cloned();
            if let Some(file) = known {
                self.forget(&file, |files, state| files.is_unused(state.path(), &file));
            }
        }
    }

    fn forget(&self, shared: &Arc<SharedFile>, may: impl Fn(&FileTable, &FileState) -> bool) {
        let mut files = self.files.lock();
        let mut state = shared.write();
        if state.handles > 0 || !files.has(state.path(), shared) {
            return;
        }
        let content = &state.content;
        let is_plain = !state.attribute_set && !content.is_pending() && content.write_set.is_empty();
        // A clone of the descriptor keeps the claim on the file: a thread that flushes through it is not done yet.
        let is_cloned = content.data.as_ref().is_some_and(|data| Arc::strong_count(data) > 1);
        if !is_plain || is_cloned || state.txn.is_some() || !may(&files, &state) {
            files.note_idle(shared);
            return;
        }
        debug_assert!(
            !state.names_changed && !state.attribute_due,
            "{:?} is forgotten, and waits for a checkpoint",
            state.path()
        );
        files.remove(state.path(), shared);
        // The claim on the file must not prevent reopening it.
        state.content.data = None;
    }

    /// Makes a file plain that was just closed, and forgets it, with a checkpoint if the log has commits of it.
    pub(crate) fn leave_plain(&self, file: &Weak<SharedFile>) -> Result<()> {
        self.wait_for_all()?;
        let Some((id, path)) = file.upgrade().map(|file| (file.id, file.read().path().to_owned())) else {
            return Ok(());
        };
        let done = self.checkpoint();
        if self.files.lock().get(&path).is_none_or(|known| known.id != id) {
            // Another file may wait.
            return Ok(());
        }
        let detail = " by other handles, maps or transactions of this process: close them first".to_owned();
        done.and(Err(Error::Busy { path, pid: None, detail }))
    }

    /// Forgets the files that are unused and plain, after a checkpoint. The caller holds the checkpoint lock.
    pub(crate) fn forget_unused(&self) -> Result<()> {
        let checkpoint_lsn = self.journal.lock().journal.header().checkpoint_lsn;
        let idle = self.files.lock().take_idle();
        let one_by_one = flush_one_by_one(&*self.storage, idle.len());
        let (mut unused, mut flushed, mut cleared) = (Vec::new(), Ok(()), false);
        for file in idle {
            let Some(file) = file.upgrade() else { continue };
            match self.clear_unused(&file, checkpoint_lsn) {
                // With many files, none is kept open for the flush.
                Cleared::Now(data) if one_by_one && self.is_durable() => {
                    let done = data.sync_all(sync_point::FORGOTTEN);
                    flushed = flushed.and(done.context("flush the attribute of", file.read().path()));
                }
                Cleared::Now(_) => cleared = true,
                Cleared::Before => {}
                Cleared::No => continue,
            }
            unused.push(file);
        }
        if cleared && self.is_durable() {
            flushed = self.sync_file_system(sync_point::FORGOTTEN);
        }
        if let Err(e) = flushed {
            // A power cut may make some of the files pending again, so the next owner must know this epoch, too.
            self.journal.lock().journal.keep_epoch();
            return Err(e);
        }
        for file in &unused {
            self.forget(file, |files, state| files.is_unused(state.path(), file));
        }
        Ok(())
    }

    /// Clears the pending flag of an unused, plain file.
    fn clear_unused(&self, file: &Arc<SharedFile>, checkpoint_lsn: u64) -> Cleared {
        loop {
            let mut files = self.files.lock();
            let Some(mut state) = file.try_write() else {
                files.note_idle(file);
                return Cleared::No;
            };
            if state.handles > 0 || state.life != Life::Named {
                return Cleared::No;
            }
            let unused = files.is_unused(state.path(), file) && state.txn.is_none();
            if !unused || !state.is_plain(checkpoint_lsn) {
                files.note_idle(file);
                return Cleared::No;
            }
            if !state.attribute_set {
                return Cleared::Before;
            }
            // From here on, a thread that opens the file waits for its state, and finds a file without commits in this
            // epoch.
            drop(files);
            if let Some(data) = state.content.data.clone() {
                clear_pending(&*data, self.store_id, file.id);
                if is_pending(&*data, file.id) {
                    break;
                }
                (state.attribute_set, state.attribute_due) = (false, false);
                return Cleared::Now(data);
            }
            drop(state);
            if self.reopen(file).is_err() {
                break;
            }
        }
        // The file was moved away, or cannot be changed; closing tries again.
        self.files.lock().note_idle(file);
        Cleared::No
    }
}

/// Whether a data file's attribute says that it waits for commits of this identity.
fn is_pending(data: &dyn File, id: u64) -> bool {
    match data.attribute() {
        Ok(value) => {
            matches!(Attribute::decode(value.as_deref()), AttributeFound::Valid(a) if a.file == id && a.pending)
        }
        Err(_) => true,
    }
}
