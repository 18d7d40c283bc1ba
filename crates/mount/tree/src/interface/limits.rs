//! Limits of a tree: changes that it refuses because something below it would, checked before each change.

use crate::interface::file_tree::{Attributes, Change, Ino, Kind, Result};
use std::collections::BTreeMap;

/// Extended attributes of one inode, by name.
pub type Xattrs = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// Limits of something below, such as the plain directory to which a tree is put back. By default everything is
/// allowed.
pub trait Limits: Send + Sync {
    /// Checks the size of a file, in bytes.
    fn size(&self, _bytes: u64) -> Result<()> {
        Ok(())
    }

    /// Checks the number of a file's names.
    fn links(&self, _links: u32) -> Result<()> {
        Ok(())
    }

    /// Checks a new name.
    fn name(&self, _name: &[u8]) -> Result<()> {
        Ok(())
    }

    /// Checks the target of a symbolic link.
    fn target(&self, _target: &[u8]) -> Result<()> {
        Ok(())
    }

    /// Checks the extended attributes that an inode is to have, all of them.
    fn xattrs(&self, _kind: Kind, _xattrs: &Xattrs) -> Result<()> {
        Ok(())
    }

    /// Checks whether an inode may be changed, or lose a name; not called for a new name in a directory.
    fn change(&self, _ino: Ino) -> Result<()> {
        Ok(())
    }

    /// Checks whether a directory may get a new name.
    fn add_name(&self, _dir: Ino) -> Result<()> {
        Ok(())
    }

    /// The attributes as programs see them.
    fn shown(&self, of: Attributes) -> Attributes {
        of
    }

    /// Checks a change of an inode's attributes; returns the part that is allowed.
    fn attributes(&self, _of: &Attributes, change: &Change) -> Result<Change> {
        Ok(*change)
    }

    /// Checks whether an inode may lose a name in a directory.
    fn removal(&self, _dir: &Attributes, _of: &Attributes) -> Result<()> {
        Ok(())
    }
}

/// Refuses nothing.
pub(crate) struct Unlimited;

impl Limits for Unlimited {}
