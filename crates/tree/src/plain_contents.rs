//! Contents of files as plain files below the store: how a plain tree is brought in and taken out, without the log.
//!
//! For a store that nobody has mounted, and, to bring contents in, that does not count yet: see `crates/mount/src/import.rs`.

use crate::core::{errno, object_path};
use crate::file_tree::{Errno, Ino, Result};
use crate::row::Key;
use crate::store_tree::StoreTree;
use std::path::PathBuf;

impl StoreTree {
    /// Where the object of a file that was never written to is to be made, by copying or by sharing blocks.
    ///
    /// # Errors
    /// `EEXIST` if the file has contents.
    pub fn place_for_contents(&self, ino: Ino) -> Result<PathBuf> {
        if self.contents(ino)?.is_some() {
            return Err(Errno(libc::EEXIST));
        }
        let place = self.path.join(object_path(ino));
        // A commit on its way makes the directory.
        if !place.parent().is_some_and(std::path::Path::exists) {
            self.wait(self.changing()?)?;
        }
        Ok(place)
    }

    /// The file has the object that was made at its place, and this size; without one it is a hole.
    ///
    /// It counts as synced by a program: what it is a copy of may be in the middle of nothing.
    ///
    /// # Errors
    /// Those of the tree; after them the store is not to be used.
    pub fn adopt_contents(&self, ino: Ino, size: u64) -> Result<()> {
        let has_object = self.path.join(object_path(ino)).exists();
        let mut core = self.changing()?;
        let row = &mut core.inode_mut(ino)?.row;
        (row.object, row.size, row.synced) = (has_object, size, true);
        core.mark(Key::Inode(ino));
        Ok(())
    }

    /// The object of a file; none if it was never written to. [`write_back`](StoreTree::write_back) brings it up to date. It
    /// may be shorter than the file: the rest is a hole.
    ///
    /// # Errors
    /// `ESTALE` if there is no such inode.
    pub fn contents(&self, ino: Ino) -> Result<Option<PathBuf>> {
        let core = self.core()?;
        Ok(core.inode(ino)?.row.object.then(|| self.path.join(object_path(ino))))
    }

    /// Brings all objects up to date with the log.
    ///
    /// # Errors
    /// Those of a checkpoint.
    pub fn write_back(&self) -> Result<()> {
        self.core()?.store.checkpoint().map_err(errno)
    }
}
