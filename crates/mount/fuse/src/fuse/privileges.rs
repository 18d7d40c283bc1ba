//! Setuid and setgid bits and capabilities end when a file is written, truncated or given away, or `fallocate` changes it.
//!
//! The kernel says when the bits go (`HANDLE_KILLPRIV_V2`), but for `fallocate`; else the first write to each file would ask
//! for `security.capability`. It does not look whether they have gone: it has to be told to forget the mode that it has.

use crate::fuse::protocol::Header;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use untorn_tree::{Change, FileTree, Ino, Kind, Result};

const CAPABILITY: &str = "security.capability";
/// `linux/capability.h`.
const CAP_FSETID: u64 = 1 << 4;

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

    /// A file is about to be written by a program; `kill` says whether its bits go. Returns whether it had some that went.
    pub fn before_write(&self, by: &Header, ino: Ino, kill: bool) -> Result<bool> {
        self.drop_capabilities(ino)?;
        if kill {
            let change = self.with_change(by, ino, Change::default(), true)?;
            if change != Change::default() {
                self.tree.set_attributes(ino, &change)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// As [`before_write`](Self::before_write), for `fallocate`, of which the kernel says nothing.
    pub fn before_allocation(&self, by: &Header, ino: Ino) -> Result<bool> {
        let has_bits = self.tree.attributes(ino)?.mode & (libc::S_ISUID | libc::S_ISGID) != 0;
        self.before_write(by, ino, has_bits && !Rights::of(by).keep_bits)
    }

    /// A change of attributes, with what it does to privileges; `kill` says that the bits go.
    ///
    /// A file that is given to another user or group loses its capabilities; of its bits the kernel says so itself.
    pub fn with_change(&self, by: &Header, ino: Ino, mut change: Change, kill: bool) -> Result<Change> {
        let given_away = change.uid.is_some() || change.gid.is_some();
        if change.size.is_some() || given_away {
            if given_away && self.tree.xattr(ino, CAPABILITY.as_ref()).is_ok() {
                self.add(ino);
            }
            self.drop_capabilities(ino)?;
        }
        if kill && change.mode.is_none() {
            let now = self.tree.attributes(ino)?;
            let is_mark = now.mode & libc::S_ISGID != 0 && now.mode & libc::S_IXGRP == 0;
            let without = without_bits(now.mode, is_mark && Rights::of(by).keep_mark(now.gid));
            if now.kind == Kind::File && without != now.mode {
                change.mode = Some(without);
            }
        }
        Ok(change)
    }
}

/// A mode without setuid and setgid; setgid is but a mark of mandatory locks where the group cannot execute, and may stay.
fn without_bits(mode: u32, keeps_mark: bool) -> u32 {
    let setgid = if keeps_mark && mode & libc::S_IXGRP == 0 { 0 } else { libc::S_ISGID };
    mode & !(libc::S_ISUID | setgid)
}

/// What a program may keep: nothing, where that cannot be seen.
struct Rights {
    /// It is root, and has the capability `CAP_FSETID`.
    keep_bits: bool,
    groups: Vec<u32>,
}

impl Rights {
    fn of(program: &Header) -> Rights {
        // A thread that the daemon cannot see has the number 0.
        let status = std::fs::read_to_string(format!("/proc/{}/status", program.thread)).unwrap_or_default();
        let mut rights = Rights { keep_bits: false, groups: vec![program.gid] };
        for (key, value) in status.lines().filter_map(|line| line.split_once(':')) {
            match key {
                "CapEff" => {
                    let set = u64::from_str_radix(value.trim(), 16).unwrap_or(0);
                    rights.keep_bits = program.uid == 0 && set & CAP_FSETID != 0;
                }
                "Groups" => rights.groups.extend(value.split_whitespace().filter_map(|gid| gid.parse::<u32>().ok())),
                _ => {}
            }
        }
        rights
    }

    fn keep_mark(&self, group_of_file: u32) -> bool {
        self.keep_bits || self.groups.contains(&group_of_file)
    }
}

#[cfg(test)]
mod tests {
    use super::without_bits;

    #[test]
    fn setgid_stays_where_the_group_cannot_execute_for_who_is_in_it() {
        assert_eq!(without_bits(0o6755, true), 0o755);
        assert_eq!(without_bits(0o6745, true), 0o2745);
        assert_eq!(without_bits(0o6745, false), 0o745);
        assert_eq!(without_bits(0o644, true), 0o644);
    }
}
