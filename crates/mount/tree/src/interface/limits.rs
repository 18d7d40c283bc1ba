//! What a tree refuses as something below it would: it is asked before the change is made.

use crate::interface::file_tree::{Attributes, Change, Ino, Kind, Result};
use std::collections::BTreeMap;

/// Extended attributes of one inode, by name.
pub type Xattrs = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// What is below, such as the plain directory to which a tree goes back. It takes everything, but for what is said here.
pub trait Limits: Send + Sync {
    /// A file is to have so many bytes.
    fn size(&self, _bytes: u64) -> Result<()> {
        Ok(())
    }

    /// A file is to have so many names.
    fn links(&self, _links: u32) -> Result<()> {
        Ok(())
    }

    /// Something is to have this name.
    fn name(&self, _name: &[u8]) -> Result<()> {
        Ok(())
    }

    /// A symbolic link is to lead there.
    fn target(&self, _target: &[u8]) -> Result<()> {
        Ok(())
    }

    /// An inode is to have these attributes, and no others.
    fn xattrs(&self, _kind: Kind, _xattrs: &Xattrs) -> Result<()> {
        Ok(())
    }

    /// An inode is to be changed in another way than that a directory gets a name more; or its name is to go.
    fn change(&self, _ino: Ino) -> Result<()> {
        Ok(())
    }

    /// A directory is to get a name more.
    fn add_name(&self, _dir: Ino) -> Result<()> {
        Ok(())
    }

    /// How an inode is shown to programs.
    fn shown(&self, of: Attributes) -> Attributes {
        of
    }

    /// Attributes of an inode are to be changed so; what is allowed of that.
    fn attributes(&self, _of: &Attributes, change: &Change) -> Result<Change> {
        Ok(*change)
    }

    /// An inode is to lose a name in a directory.
    fn removal(&self, _dir: &Attributes, _of: &Attributes) -> Result<()> {
        Ok(())
    }
}

/// Nothing is refused.
pub(crate) struct Unlimited;

impl Limits for Unlimited {}
