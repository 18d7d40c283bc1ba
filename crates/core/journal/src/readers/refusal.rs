//! Why a store cannot be read now, and what to do about it.

use crate::directories::store_dir::StoreDir;
use crate::error::Error;

/// The owner has no page yet, or none at all.
pub(crate) fn opening(store_dir: &StoreDir, pid: Option<u32>) -> Error {
    let detail = format!(
        "{} is opening it: try again. If this stays, that program had no room on the disk for the file `readers`, is of \
         an older version, or was built without readers; let it open the store again",
        if pid.is_some() { ", which" } else { " by a program that" }
    );
    Error::Busy { path: store_dir.dir.clone(), pid, detail }
}

/// The owner flushes nothing.
pub(crate) fn class_process(store_dir: &StoreDir, pid: Option<u32>) -> Error {
    let owner = pid.map_or_else(|| "its owner".into(), |pid| format!("process {pid}, its owner,"));
    let detail = format!(
        "{owner} works in class `process`: nothing in it is durable yet, so there is nothing to read. Read it after it \
         was closed, or open it in class `power` there"
    );
    Error::Unsupported { path: store_dir.dir.clone(), detail }
}

/// A killed owner of class `process` left data that may be in memory only.
pub(crate) fn class_process_left(store_dir: &StoreDir) -> Error {
    let detail = "a program that worked in class `process` did not close it, so its data may not be durable; `untorn \
                  recover` flushes them";
    Error::Unsupported { path: store_dir.dir.clone(), detail: detail.into() }
}

/// A store of class `process` after a crash of the machine.
pub(crate) fn unknown_state(store_dir: &StoreDir) -> Error {
    Error::UnknownState { path: store_dir.dir.clone() }
}

/// The last commit is older than one that was shown before.
pub(crate) fn went_back(store_dir: &StoreDir, at_least: u64, lsn: u64) -> Error {
    let detail =
        format!("its last commit is {lsn}, but commit {at_least} was read before; an older copy has replaced it");
    Error::Conflict { path: store_dir.dir.clone(), detail }
}

/// The log lacks commits that the page calls durable.
pub(crate) fn log_is_older(store_dir: &StoreDir, lsn: u64) -> Error {
    let detail = format!("its journal lacks commit {lsn}, which was durable; an older copy of the journal replaced it");
    Error::Conflict { path: store_dir.dir.clone(), detail }
}

/// Locks do not reach the file system of the store.
pub(crate) fn unseen_owner(store_dir: &StoreDir) -> Error {
    let detail = "this file system (overlay, FUSE) shows files of another file system, but not their locks: a process \
                  that has the store open there cannot be detected here. Read the store on its own file system, for \
                  example through a bind mount, which may be read-only. After the store is closed, it can be read \
                  here, too";
    Error::Unsupported { path: store_dir.dir.clone(), detail: detail.into() }
}

/// Locks do not work.
pub(crate) fn no_locks(store_dir: &StoreDir) -> Error {
    let detail = "its page for readers cannot be locked on this file system; close the store to read it";
    Error::Unsupported { path: store_dir.dir.clone(), detail: detail.into() }
}
