//! Makes the changes of the model in an open store.

use crate::names_fuzz::tree::{Alphabet, Entry, NameChange, NameTree, stamped};
use std::collections::BTreeMap;
use std::path::Path;
use untorn::{Error, File, Store, Ticket, Txn};

/// An open store with the handles of its files, by the model's number of the file.
pub struct NamePlayer {
    /// The store.
    pub store: Store,
    open: BTreeMap<u64, File>,
}

impl NamePlayer {
    /// A store that was just opened.
    pub fn new(store: Store) -> NamePlayer {
        NamePlayer { store, open: BTreeMap::new() }
    }

    /// Makes the possible ones of these changes in a transaction. `tree` has the committed state, and gets the state
    /// after the transaction. None: no change was possible.
    pub fn transaction(
        &mut self,
        tree: &mut NameTree,
        changes: &[NameChange],
        alphabet: Alphabet,
    ) -> Result<Option<Txn>, Error> {
        let before = tree.clone();
        let mut txn = self.store.begin();
        let mut any = false;
        for change in changes {
            if tree.allows(change, alphabet) {
                self.change(&mut txn, &before, tree, change)?;
                tree.apply(change);
                if let NameChange::Create(path, _) = change {
                    // The file's number is known only now.
                    self.rekey(tree, path);
                }
                any = true;
            }
        }
        Ok(any.then_some(txn))
    }

    fn rekey(&mut self, tree: &NameTree, path: &Path) {
        if let (Some(Entry::File { id, .. }), Some(file)) = (tree.get(path), self.open.remove(&NEW)) {
            self.open.insert(*id, file);
        }
    }

    fn change(&mut self, txn: &mut Txn, before: &NameTree, now: &NameTree, change: &NameChange) -> Result<(), Error> {
        match change {
            NameChange::Create(path, mode) => {
                let file = txn.create(path, *mode)?;
                self.open.insert(NEW, file);
                Ok(())
            }
            NameChange::Write(path, offset, len, stamp) => {
                let file = self.handle(txn, before, now, path)?;
                file.write_all_at(&stamped(*stamp, *len), *offset)
            }
            NameChange::Truncate(path, size) => self.handle(txn, before, now, path)?.set_len(*size),
            NameChange::Rename(from, to) => txn.rename(from, to),
            NameChange::Unlink(path) => txn.unlink(path),
            NameChange::Mkdir(path, mode) => txn.mkdir(path, *mode),
            NameChange::Rmdir(path) => txn.rmdir(path),
            NameChange::Chmod(path, mode) => txn.chmod(path, *mode),
        }
    }

    /// The handle of the file that has this name now, opened under its committed name.
    fn handle(&mut self, txn: &mut Txn, before: &NameTree, now: &NameTree, path: &Path) -> Result<&File, Error> {
        let Some(Entry::File { id, .. }) = now.get(path) else { unreachable!("a file that is there") };
        if !self.open.contains_key(id) {
            // Listing names waits for pending commits.
            self.store.list("")?;
            let name = before.path_of(*id).expect("a new file has a handle");
            self.open.insert(*id, self.store.open_file(name)?);
        }
        let file = &self.open[id];
        txn.add(file)?;
        Ok(file)
    }

    /// Closes all handles, or those of files that are gone.
    pub fn forget(&mut self, tree: &NameTree, all: bool) {
        self.open.retain(|id, _| !all && tree.path_of(*id).is_some());
    }

    /// Makes a transaction in one call, and waits for it.
    pub fn commit(&mut self, tree: &mut NameTree, changes: &[NameChange], alphabet: Alphabet) -> Result<(), Error> {
        self.transaction(tree, changes, alphabet)?.map_or(Ok(()), Txn::commit)
    }

    /// Makes a transaction in one call, without waiting for it.
    pub fn commit_async(
        &mut self,
        tree: &mut NameTree,
        changes: &[NameChange],
        alphabet: Alphabet,
    ) -> Result<Option<Ticket>, Error> {
        self.transaction(tree, changes, alphabet)?.map(Txn::commit_async).transpose()
    }
}

/// The number of a file that is being created.
const NEW: u64 = 0;
