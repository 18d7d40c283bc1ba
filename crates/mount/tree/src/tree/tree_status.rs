//! The status of a tree that is being served.

use crate::interface::file_tree::{Ino, ROOT, TreeStatus};
use crate::tree::core::Core;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

impl Core {
    /// The present condition of the tree.
    pub fn status(&mut self) -> TreeStatus {
        self.sweep();
        let has = |of: &dyn Fn(&crate::table::inode::Inode) -> bool| {
            self.changed.iter().filter(|ino| self.inodes.get(ino).is_some_and(of)).copied().collect::<BTreeSet<Ino>>()
        };
        let uncommitted = has(&|inode| inode.uncommitted.is_some() && inode.row.nlink > 0);
        let poisoned = has(&|inode| inode.is_poisoned() && inode.row.nlink > 0);
        let firsts = uncommitted.iter().filter_map(|ino| self.inodes.get(ino)?.uncommitted).map(|u| u.first);
        let oldest = firsts.chain(self.dirty_since).min().map(|first| self.clock.elapsed().saturating_sub(first));
        TreeStatus {
            inodes: self.inodes.len(),
            open_for_writing: self.open_for_writing.len(),
            uncommitted: uncommitted.len(),
            oldest,
            names_uncommitted: !self.dirty.is_empty(),
            on_their_way: self.pending.len(),
            deferred: self.deferred().len(),
            transactions: self.txns.len(),
            poisoned: self.paths(&poisoned),
            failed: self.failed,
        }
    }

    /// A path of each of these inodes, below the root.
    fn paths(&self, of: &BTreeSet<Ino>) -> Vec<PathBuf> {
        let mut paths = Vec::new();
        let mut left = of.clone();
        for (dir, names) in &self.dirs {
            if left.is_empty() {
                break;
            }
            for (name, (ino, _)) in &names.names {
                if left.remove(ino) {
                    paths.push(self.path_of_dir(*dir).join(OsStr::from_bytes(name)));
                }
            }
        }
        paths.extend(left.into_iter().map(|ino| PathBuf::from(format!("(inode {ino}, without a name)"))));
        paths.sort_unstable();
        paths
    }

    fn path_of_dir(&self, mut dir: Ino) -> PathBuf {
        let mut parts = Vec::new();
        while dir != ROOT {
            let Some(parent) = self.inodes.get(&dir).map(|inode| inode.parent) else { break };
            let names = self.dirs.get(&parent).map(|names| &names.names);
            let name = names.and_then(|names| names.iter().find(|(_, (ino, _))| *ino == dir));
            let Some((name, _)) = name else { break };
            parts.push(OsStr::from_bytes(name));
            dir = parent;
        }
        parts.iter().rev().collect()
    }
}
