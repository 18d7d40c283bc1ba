//! Contents of files as plain files below the store: how a plain tree is brought in and taken out, large files without the
//! log.
//!
//! For a store that nobody has mounted, and, to bring contents in, that does not count yet: see `crates/mount/fuse/src/import_export/import.rs`.

use crate::interface::file_tree::{Errno, FileTree, Ino, Result};
use crate::table::inode::Place;
use crate::table::row::Key;
use crate::tree::core::{errno, object_path, refused};
use crate::tree::store_tree::StoreTree;
use std::path::PathBuf;

/// What a file has. The file may be longer: the rest is a hole.
pub enum Contents {
    /// Nothing: all of it is a hole.
    Hole,
    /// Bytes.
    Small(Vec<u8>),
    /// What is in a plain file. [`write_back`](StoreTree::write_back) brings that up to date.
    Object(PathBuf),
}

impl StoreTree {
    /// Where the object of a file that was never written to is to be made, by copying or by sharing blocks; `None` if it is
    /// small: then [`adopt_bytes`](StoreTree::adopt_bytes) brings its contents in.
    ///
    /// # Errors
    /// `EEXIST` if the file has contents.
    pub fn place_for_contents(&self, ino: Ino, size: u64) -> Result<Option<PathBuf>> {
        if !matches!(self.contents(ino)?, Contents::Hole) {
            return Err(Errno(libc::EEXIST));
        }
        if size <= self.core()?.small_max as u64 {
            return Ok(None);
        }
        let place = self.path.join(object_path(ino));
        // A commit on its way makes the directory.
        if !place.parent().is_some_and(std::path::Path::exists) {
            self.wait(self.changing()?)?;
        }
        Ok(Some(place))
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

    /// A small file has these bytes, and counts as synced by a program.
    ///
    /// # Errors
    /// Those of the tree; after them the store is not to be used.
    pub fn adopt_bytes(&self, ino: Ino, bytes: &[u8]) -> Result<()> {
        Self::mark_synced(&mut *self.changing()?, &[ino])?;
        self.write(ino, 0, bytes)
    }

    /// What was committed of a file.
    ///
    /// # Errors
    /// `ESTALE` if there is no such inode, and those of the store.
    pub fn contents(&self, ino: Ino) -> Result<Contents> {
        let core = self.core()?;
        Ok(match core.inode(ino)?.place() {
            Place::Nowhere => Contents::Hole,
            Place::Pack(extent) => Contents::Small(refused(core.pack.read(extent))?),
            Place::Draft => return Err(Errno(libc::EBUSY)),
            Place::Object => Contents::Object(self.path.join(object_path(ino))),
        })
    }

    /// Brings all objects up to date with the log.
    ///
    /// # Errors
    /// Those of a checkpoint.
    pub fn write_back(&self) -> Result<()> {
        self.core()?.store.checkpoint().map_err(errno)
    }
}
