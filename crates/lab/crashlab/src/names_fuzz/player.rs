//! Makes the changes of the model in an open store.

use crate::names_fuzz::tree::{Alphabet, Entry, NameChange, NameTree, stamped};
use std::collections::BTreeMap;
use std::path::Path;
use untorn::{Error, File, Store, Ticket, Txn};

/// An open store, and the handles of its files, by the model's number of the file.
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

    /// Makes those of the changes that are possible in a transaction; `tree` is what is committed, and becomes what
    /// the transaction leaves. None: nothing was possible.
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
                    // Its number is known only now.
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

    /// A handle of the file that has this name now, opened under the name that is committed.
    fn handle(&mut self, txn: &mut Txn, before: &NameTree, now: &NameTree, path: &Path) -> Result<&File, Error> {
        let Some(Entry::File { id, .. }) = now.get(path) else { unreachable!("a file that is there") };
        if !self.open.contains_key(id) {
            // Commits that are on their way have happened when names are listed.
            self.store.list("")?;
            let name = before.path_of(*id).expect("a new file has a handle");
            self.open.insert(*id, self.store.open_file(name)?);
        }
        let file = &self.open[id];
        txn.add(file)?;
        Ok(file)
    }

    /// Closes handles: all, or those of files that are gone.
    pub fn forget(&mut self, tree: &NameTree, all: bool) {
        self.open.retain(|id, _| !all && tree.path_of(*id).is_some());
    }

    /// A transaction in one call, waited for.
    pub fn commit(&mut self, tree: &mut NameTree, changes: &[NameChange], alphabet: Alphabet) -> Result<(), Error> {
        self.transaction(tree, changes, alphabet)?.map_or(Ok(()), Txn::commit)
    }

    /// A transaction in one call, not waited for.
    pub fn commit_async(
        &mut self,
        tree: &mut NameTree,
        changes: &[NameChange],
        alphabet: Alphabet,
    ) -> Result<Option<Ticket>, Error> {
        self.transaction(tree, changes, alphabet)?.map(Txn::commit_async).transpose()
    }
}

/// The number of a file that is just being made.
const NEW: u64 = 0;
