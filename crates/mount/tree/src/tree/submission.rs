//! Commits: collects the changes of the tree for a commit of the store, and makes objects in the store.

use crate::interface::file_tree::{Errno, Ino, Result};
use crate::table::inode::Folded;
use crate::table::inode_table::Numbers;
use crate::table::row::Key;
use crate::tree::core::{Core, OBJECTS, errno, is_final, object_dir, object_path};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use untorn::__private::{StoreSteps, submit_unwritten};
use untorn::{File, Ticket};

/// Number of commits that nobody has waited for at which those that are done are swept.
const PENDING: usize = 64;

/// Something to make in the store.
enum New {
    /// The object of an inode.
    Object(Ino),
    /// A directory for objects, with numbers up to a limit.
    Directory { path: PathBuf, limit: Ino },
}

// Objects.
impl Core {
    /// Opens the object of a file.
    pub fn open_object(&mut self, ino: Ino) -> Result<Arc<File>> {
        let file = Arc::new(self.store.open_file(object_path(ino)).map_err(errno)?);
        self.inode_mut(ino)?.object = Some(file.clone());
        Ok(file)
    }

    /// Makes an object of a file.
    pub fn make_object(&mut self, ino: Ino) -> Result<Arc<File>> {
        let file = Arc::new(self.make(&New::Object(ino))?.ok_or(Errno(libc::EIO))?);
        let inode = self.inode_mut(ino)?;
        debug_assert!(!inode.row.object && inode.object.is_none(), "inode {ino} has an object, and gets another");
        inode.row.object = true;
        inode.object = Some(file.clone());
        self.mark(Key::Inode(ino));
        Ok(file)
    }

    /// Reserves numbers for more inodes, with a directory for their objects.
    pub fn reserve(&mut self) -> Result<()> {
        debug_assert!(
            self.table.numbers().limit <= self.numbers.limit,
            "the table has numbers {:?}, the tree {:?}",
            self.table.numbers(),
            self.numbers
        );
        let limit = self.numbers.limit + OBJECTS;
        self.make(&New::Directory { path: object_dir(self.numbers.limit), limit })?;
        self.numbers.limit = limit;
        Ok(())
    }

    /// Makes something in the store, in a commit of its own without names, attributes and contents. Nobody waits for
    /// it.
    ///
    /// If no commit of those follows, the next opening recognises the rest by its number, and removes it.
    fn make_in_store(&mut self, new: &New) -> untorn::Result<Option<File>> {
        debug_assert!(!self.table.is_staged(), "commit {} is built, and another begins", self.numbers.commit);
        let mut txn = self.store.begin();
        let made = match new {
            New::Object(ino) => {
                let made = txn.create(object_path(*ino), 0o600)?;
                // If the table has the row already, the row gets its object in the same commit.
                if self.table.set_object(*ino)? {
                    txn.add(self.table.file())?;
                }
                Some(made)
            }
            New::Directory { path, limit } => {
                txn.mkdir(path, 0o700)?;
                let numbers = Numbers { limit: *limit, ..self.table.numbers() };
                self.table.write_numbers(numbers);
                txn.add(self.table.file())?;
                None
            }
        };
        self.table.stage()?;
        // The next commit that is waited for flushes the log for both, at the latest the timer's.
        let ticket = submit_unwritten(txn)?;
        self.table.submitted();
        self.keep(ticket);
        Ok(made)
    }

    fn make(&mut self, new: &New) -> Result<Option<File>> {
        let made = self.make_in_store(new);
        if made.is_err() {
            // The table's changes for it must not be in another commit.
            self.undo();
        }
        self.outcome(made)
    }

    /// Undoes the changes of the table and the pack for a commit that the store refused.
    fn undo(&mut self) {
        let (table, pack) = (self.table.undo(), self.pack.undo());
        if let Some(e) = table.and(pack).err() {
            tracing::error!(
                id = "untorn.tree.stopped",
                error = %e, "nothing is committed until the tree is opened again"
            );
            self.failed = true;
        }
        debug_assert!(
            !self.table.is_staged() && self.pack.staged().is_none(),
            "changes of commit {} are left",
            self.numbers.commit
        );
    }
}

// Commits.
impl Core {
    /// Commits all names and attributes, and the uncommitted contents of these files, in one commit. Nobody waits: the
    /// ticket is among the pending ones.
    pub fn commit(&mut self, contents: &[Ino]) -> Result<()> {
        self.check()?;
        let number = self.numbers.commit;
        let done = match self.deferred.is_empty() {
            true => self.submit(contents),
            false => self.submit(&self.with_deferred(contents)),
        };
        if done.is_err() && self.numbers.commit != number {
            self.note_void();
        }
        self.outcome(done)
    }

    /// Commits like [`commit`](Self::commit), for a caller that waits for it next.
    pub fn commit_waited(&mut self, contents: &[Ino]) -> Result<()> {
        debug_assert!(!self.waits, "two callers wait for commit {}", self.numbers.commit);
        self.waits = true;
        let done = self.commit(contents);
        self.waits = false;
        done
    }

    /// Commits all names and attributes together with the contents of these files, because the names must not be
    /// durable without the contents.
    ///
    /// If the store refuses that, as on a full disk, the next commit includes them.
    pub fn commit_or_defer(&mut self, contents: &[Ino]) {
        if self.commit(contents).is_err() {
            self.defer(contents);
        }
    }

    /// Makes every commit include these files, until the store accepts one.
    pub fn defer(&mut self, contents: &[Ino]) {
        self.deferred.extend(contents);
        contents.iter().for_each(|ino| self.note_deferred(*ino));
    }

    /// These files, and those with deferred contents.
    pub fn with_deferred(&self, contents: &[Ino]) -> Vec<Ino> {
        let all: BTreeSet<Ino> = self.deferred.iter().chain(contents).copied().collect();
        all.into_iter().collect()
    }

    /// Files with deferred contents.
    pub fn deferred(&self) -> Vec<Ino> {
        self.deferred.iter().copied().collect()
    }

    /// Forgets the deferred contents, because the store has accepted a commit that includes them.
    pub fn clear_deferred(&mut self) {
        self.deferred.clear();
    }

    /// Whether the commit of the file is deferred.
    pub fn is_deferred(&self, ino: Ino) -> bool {
        self.deferred.contains(&ino)
    }

    fn outcome<T>(&mut self, done: untorn::Result<T>) -> Result<T> {
        done.map_err(|e| {
            if is_final(&e) {
                self.failed = true;
                tracing::error!(
                    id = "untorn.tree.commit_failed",
                    error = %e, "a commit of the tree failed: nothing is committed until it is opened again"
                );
            }
            errno(e)
        })
    }

    pub fn submit(&mut self, contents: &[Ino]) -> untorn::Result<()> {
        debug_assert!(
            !self.table.is_staged() && self.pack.staged().is_none(),
            "changes before commit {} are staged",
            self.numbers.commit
        );
        self.note_rows();
        let mut folded = Vec::new();
        for ino in contents {
            let Some(inode) = self.inodes.get_mut(ino) else { continue };
            if inode.row.nlink == 0 || !inode.is_committable_by(&self.committing) {
                continue;
            }
            if let Some(before) = inode.fold() {
                folded.push((*ino, before));
                self.changed.remove(ino);
                self.dirty.insert(Key::Inode(*ino));
            }
        }
        let dirty = std::mem::take(&mut self.dirty);
        match self.ask_for(&folded, &dirty) {
            Ok(None) => Ok(()),
            Ok(Some(ticket)) => {
                self.table.submitted();
                self.pack.submitted();
                self.keep(ticket);
                self.doomed.clear();
                self.clear_deferred();
                self.dirty_since = None;
                debug_assert_eq!(self.table.numbers(), self.numbers, "numbers of the commit that was submitted");
                debug_assert!(self.dirty.is_empty(), "rows changed while a commit was built: {:?}", self.dirty);
                folded.iter().for_each(|(ino, _)| self.close_object(*ino));
                Ok(())
            }
            Err(e) => {
                for (ino, before) in folded {
                    self.note_state(ino);
                    debug_assert!(self.inodes.contains_key(&ino), "inode {ino} went while its commit was built");
                    if let Some(inode) = self.inodes.get_mut(&ino) {
                        inode.unfold(before);
                    }
                    self.changed.insert(ino);
                }
                self.dirty.extend(dirty);
                self.undo();
                Err(e)
            }
        }
    }

    /// Stages the changes of a commit, and submits it; `None` if there are none.
    fn ask_for(&mut self, folded: &[(Ino, Folded)], dirty: &BTreeSet<Key>) -> untorn::Result<Option<Ticket>> {
        for (ino, of) in folded {
            let extent = match (&of.draft, of.in_object) {
                (Some(draft), _) => self.pack.put(of.extent, draft.bytes(), draft.changed())?,
                // The contents of a file that has grown leave the pack.
                (None, true) => {
                    of.extent.into_iter().for_each(|extent| self.pack.take_back(extent));
                    None
                }
                (None, false) => of.extent,
            };
            if let Some(inode) = self.inodes.get_mut(ino) {
                inode.row.extent = extent;
            }
        }
        self.pack.stage_holes()?;
        for key in dirty {
            match self.row(key) {
                Some(row) => self.table.put(&row),
                None => self.table.remove(key),
            }
        }
        if !self.table.is_staged() && self.doomed.is_empty() {
            return Ok(None);
        }
        self.numbers.commit = self.numbers.commit.wrapping_add(1);
        let inos: Vec<Ino> = folded.iter().map(|(ino, _)| *ino).collect();
        self.note_commit(&inos);
        if self.table.numbers() != self.numbers {
            self.table.write_numbers(self.numbers);
        }
        let in_objects = folded.iter().filter(|(_, of)| of.in_object);
        let objects: Vec<Arc<File>> = in_objects.filter_map(|(ino, _)| self.inodes.get(ino)?.object.clone()).collect();
        self.submit_files(&objects).map(Some)
    }

    fn submit_files(&self, objects: &[Arc<File>]) -> untorn::Result<Ticket> {
        self.table.stage()?;
        let shared = std::iter::once(self.table.file()).chain(self.pack.staged());
        let files: Vec<&File> = shared.chain(objects.iter().map(|o| &**o)).collect();
        if self.doomed.is_empty() {
            return if self.waits { self.store.submit_unwritten(&files) } else { self.store.syncv_async(&files) };
        }
        let mut txn = self.store.begin();
        for ino in &self.doomed {
            txn.unlink(object_path(*ino))?;
        }
        for file in files {
            txn.add(file)?;
        }
        if self.waits { submit_unwritten(txn) } else { txn.commit_async() }
    }

    fn keep(&mut self, ticket: Ticket) {
        if self.pending.len() >= PENDING {
            self.sweep();
        }
        self.pending.push(ticket);
    }

    /// Forgets the commits that are done.
    pub fn sweep(&mut self) {
        let mut failed = false;
        self.pending.retain(|ticket| match ticket.poll() {
            Some(Ok(())) => false,
            Some(Err(_)) => {
                failed = true;
                true
            }
            None => true,
        });
        self.failed |= failed;
    }

    /// Closes a file's handle that is not needed any more.
    pub fn close_object(&mut self, ino: Ino) {
        if let Some(inode) = self.inodes.get_mut(&ino)
            && inode.openings == 0
            && inode.uncommitted.is_none()
        {
            inode.object = None;
        }
    }
}
