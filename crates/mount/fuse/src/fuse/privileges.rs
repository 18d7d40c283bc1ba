//! Clears setuid and setgid bits and capabilities when a file is written, truncated, given away, or changed by
//! `fallocate`.
//!
//! The kernel says when the bits must go (`HANDLE_KILLPRIV_V2`), except for `fallocate`; without that, the first write
//! to each file would ask for `security.capability`. The kernel does not check whether the bits have gone: it has to be
//! told to forget its cached mode.

use crate::fuse::protocol::Header;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use untorn_tree::{Change, FileTree, Ino, Kind, Result};

const CAPABILITY: &str = "security.capability";
/// From `linux/capability.h`.
const CAP_FSETID: u64 = 1 << 4;

/// Knows which files have capabilities, and takes privileges away.
pub struct Privileges {
    tree: Arc<dyn FileTree>,
    /// Files that have capabilities, among those that were opened for writing or got capabilities since the start.
    capable: Mutex<HashSet<Ino>>,
    any_capable: AtomicBool,
}

impl Privileges {
    /// Creates the state, in which no file is known yet.
    pub fn new(tree: Arc<dyn FileTree>) -> Privileges {
        Privileges { tree, capable: Mutex::default(), any_capable: AtomicBool::new(false) }
    }

    /// Called when a file is opened for writing.
    pub fn opened(&self, ino: Ino) {
        if self.tree.xattr(ino, CAPABILITY.as_ref()).is_ok() {
            self.add(ino);
        }
    }

    /// Called when an extended attribute is set.
    pub fn attribute_set(&self, ino: Ino, name: &OsStr) {
        if name == CAPABILITY {
            self.add(ino);
        }
    }

    fn add(&self, ino: Ino) {
        self.capable.lock().insert(ino);
        self.any_capable.store(true, Ordering::Release);
    }

    fn drop_capabilities(&self, ino: Ino) -> Result<()> {
        if !self.any_capable.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.capable.lock().remove(&ino) {
            // An error is ignored: the attribute was removed meanwhile.
            true => self.tree.remove_xattr(ino, CAPABILITY.as_ref()).or(Ok(())),
            false => Ok(()),
        }
    }

    /// Called before a program's write; `kill` says that the setuid and setgid bits must go. Returns whether some were
    /// cleared.
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

    /// Does the work of [`before_write`](Self::before_write) for `fallocate`, for which the kernel sends no flag.
    pub fn before_allocation(&self, by: &Header, ino: Ino) -> Result<bool> {
        let has_bits = self.tree.attributes(ino)?.mode & (libc::S_ISUID | libc::S_ISGID) != 0;
        self.before_write(by, ino, has_bits && !Rights::of(by).keep_bits)
    }

    /// Extends a change of attributes by its effect on privileges; `kill` says that the setuid and setgid bits must go.
    ///
    /// A file that is given to another user or group loses its capabilities here; about its bits the kernel decides, by
    /// `kill`.
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

/// Returns a mode without setuid and setgid. Where the group cannot execute, setgid only marks mandatory locks, and may
/// stay.
fn without_bits(mode: u32, keeps_mark: bool) -> u32 {
    let setgid = if keeps_mark && mode & libc::S_IXGRP == 0 { 0 } else { libc::S_ISGID };
    mode & !(libc::S_ISUID | setgid)
}

/// Rights of a program that decide which bits stay. If its status cannot be read, it has none.
struct Rights {
    /// The program is root and has the capability `CAP_FSETID`.
    keep_bits: bool,
    groups: Vec<u32>,
}

impl Rights {
    fn of(program: &Header) -> Rights {
        // The kernel sends the number 0 for a thread that the daemon cannot see.
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
