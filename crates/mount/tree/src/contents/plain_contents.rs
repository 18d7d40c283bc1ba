//! Contents of files as plain files below the store, so that a plain tree can be imported and exported without writing
//! large files to the log.
//!
//! Export requires a store that nobody has mounted; import requires a new store that is not in its place yet: see
//! `crates/mount/fuse/src/import_export/import.rs`.

use crate::interface::file_tree::{Errno, FileTree, Ino, Result};
use crate::table::inode::Place;
use crate::table::row::Key;
use crate::tree::core::{errno, object_path, refused};
use crate::tree::store_tree::StoreTree;
use std::path::PathBuf;

/// Committed contents of a file. The file may be longer: the rest is a hole.
pub enum Contents {
    /// No bytes: all of the file is a hole.
    Hole,
    /// The bytes themselves.
    Small(Vec<u8>),
    /// Path of a plain file with the bytes. [`write_back`](StoreTree::write_back) brings it up to date.
    Object(PathBuf),
}

impl StoreTree {
    /// Path at which the caller makes the object of a file that was never written to, by copying or by sharing blocks.
    ///
    /// `None` if the file is small: then [`adopt_bytes`](StoreTree::adopt_bytes) sets its contents.
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

    /// Gives a file the object that was made at its place, and a size; without an object the file is a hole.
    ///
    /// The file counts as synced by a program: a copy is complete, not in the middle of a program's changes.
    ///
    /// # Errors
    /// Those of the tree; after them the store must not be used.
    pub fn adopt_contents(&self, ino: Ino, size: u64) -> Result<()> {
        let has_object = self.path.join(object_path(ino)).exists();
        let mut core = self.changing()?;
        let row = &mut core.inode_mut(ino)?.row;
        (row.object, row.size, row.synced) = (has_object, size, true);
        core.mark(Key::Inode(ino));
        Ok(())
    }

    /// Gives a small file its bytes; the file counts as synced by a program.
    ///
    /// # Errors
    /// Those of the tree; after them the store must not be used.
    pub fn adopt_bytes(&self, ino: Ino, bytes: &[u8]) -> Result<()> {
        Self::mark_synced(&mut *self.changing()?, &[ino])?;
        self.write(ino, 0, bytes)
    }

    /// The committed contents of a file.
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
