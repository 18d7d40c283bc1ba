//! Setuid and setgid bits and capabilities end when a file is written, truncated or given away.
//!
//! The kernel says when the bits go (`HANDLE_KILLPRIV_V2`); else the first write to each file would ask for
//! `security.capability`.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use untorn_tree::{Change, FileTree, Ino, Kind, Result};

const CAPABILITY: &str = "security.capability";

/// Which files have capabilities, and what takes privileges away.
pub struct Privileges {
    tree: Arc<dyn FileTree>,
    /// Files that have capabilities, among those that were opened for writing or given some since.
    capable: Mutex<HashSet<Ino>>,
    any_capable: AtomicBool,
}

impl Privileges {
    /// Nothing is known of any file yet.
    pub fn new(tree: Arc<dyn FileTree>) -> Privileges {
        Privileges { tree, capable: Mutex::default(), any_capable: AtomicBool::new(false) }
    }

    /// A file is opened for writing.
    pub fn opened(&self, ino: Ino) {
        if self.tree.xattr(ino, CAPABILITY.as_ref()).is_ok() {
            self.add(ino);
        }
    }

    /// An extended attribute is set.
    pub fn attribute_set(&self, ino: Ino, name: &OsStr) {
        if name == CAPABILITY {
            self.add(ino);
        }
    }

    fn add(&self, ino: Ino) {
        self.capable.lock().unwrap_or_else(PoisonError::into_inner).insert(ino);
        self.any_capable.store(true, Ordering::Release);
    }

    fn drop_capabilities(&self, ino: Ino) -> Result<()> {
        if !self.any_capable.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.capable.lock().unwrap_or_else(PoisonError::into_inner).remove(&ino) {
            // Removed meanwhile: that is well.
            true => self.tree.remove_xattr(ino, CAPABILITY.as_ref()).or(Ok(())),
            false => Ok(()),
        }
    }

    /// A file is about to be written; `kill` says whether its bits go.
    pub fn before_write(&self, ino: Ino, kill: bool) -> Result<()> {
        self.drop_capabilities(ino)?;
        if kill {
            let change = self.with_change(ino, Change::default(), true)?;
            if change != Change::default() {
                self.tree.set_attributes(ino, &change)?;
            }
        }
        Ok(())
    }

    /// A change of attributes, with what it does to privileges; `kill` says that the bits go.
    ///
    /// A file that is given to another user or group loses its capabilities; of its bits the kernel says so itself.
    pub fn with_change(&self, ino: Ino, mut change: Change, kill: bool) -> Result<Change> {
        let given_away = change.uid.is_some() || change.gid.is_some();
        if change.size.is_some() || given_away {
            if given_away && self.tree.xattr(ino, CAPABILITY.as_ref()).is_ok() {
                self.add(ino);
            }
            self.drop_capabilities(ino)?;
        }
        if kill && change.mode.is_none() {
            let now = self.tree.attributes(ino)?;
            let without = without_bits(now.mode);
            if now.kind == Kind::File && without != now.mode {
                change.mode = Some(without);
            }
        }
        Ok(change)
    }
}

/// A mode without setuid; and without setgid where it is one, and not the mark of mandatory locks.
fn without_bits(mode: u32) -> u32 {
    let setgid = if mode & libc::S_IXGRP != 0 { libc::S_ISGID } else { 0 };
    mode & !(libc::S_ISUID | setgid)
}

#[cfg(test)]
mod tests {
    use super::without_bits;

    #[test]
    fn setgid_stays_where_the_group_cannot_execute() {
        assert_eq!(without_bits(0o6755), 0o755);
        assert_eq!(without_bits(0o6745), 0o2745);
        assert_eq!(without_bits(0o644), 0o644);
    }
}
