//! Answers `ioctl`: commands of this program to the daemon, and calls of programs about transactions.

use super::{Handlers, errno};
use crate::fuse::protocol::{Answer, Fields, Header};
use crate::mounts::mount_control;
use crate::mounts::mount_status;
use crate::processes::supervised;
use std::sync::Arc;
use untorn_os::mount_calls;
use untorn_tree::{CommitMode, Errno, Ino, Result, Transaction};

impl Handlers {
    pub(super) fn control(&self, header: &Header, mut fields: Fields<'_>) -> Result<Answer> {
        let handle = fields.u64()?;
        fields.skip(4)?;
        let command = fields.u32()?;
        fields.skip(16)?;
        let done = Answer::default().u32(0).u32(0).u32(0).u32(0);
        let of_daemon = header.uid == 0 || header.uid == rustix::process::geteuid().as_raw();
        match command {
            mount_control::PREPARE_UNMOUNT if !of_daemon => errno(libc::EPERM),
            mount_control::PREPARE_UNMOUNT => {
                if let Err(e) = self.tree.prepare_end(&*self.cache) {
                    let status = self.tree.status()?;
                    // Writes that are lost for good do not delay the unmount. With `--commit=store` a lost write keeps
                    // everything else uncommitted, so the unmount is refused.
                    let is_lost =
                        e == Errno(libc::EIO) && !status.poisoned.is_empty() && self.commit != CommitMode::Store;
                    // After a failed flush of the log only a new mount can commit again.
                    if !status.failed && !is_lost {
                        return Err(e);
                    }
                }
                Ok(done.u32(supervised::last_to_end()))
            }
            mount_calls::STATUS if !of_daemon => errno(libc::EPERM),
            mount_calls::STATUS => Ok(done.raw(&mount_status::answer(&self.tree.status()?, self.commit))),
            mount_control::SYNC_ALL => {
                self.tree.sync_all(&*self.cache)?;
                Ok(done)
            }
            mount_control::SYNC_FILES => {
                let count = usize::try_from(fields.u64()?).ok().filter(|count| *count <= mount_control::MOST_FILES);
                let files = (0..count.ok_or(Errno(libc::EINVAL))?).map(|_| fields.u64()).collect::<Result<Vec<_>>>()?;
                for file in &files {
                    let owner = self.tree.attributes(*file)?.uid;
                    if !of_daemon && header.uid != owner {
                        return errno(libc::EPERM);
                    }
                }
                self.tree.sync_files(&files, &*self.cache)?;
                Ok(done)
            }
            mount_calls::COMMIT_TOGETHER => {
                let count =
                    usize::try_from(fields.u64()?).ok().filter(|n| (1..=mount_calls::TOGETHER_MOST).contains(n));
                let txns = (0..count.ok_or(Errno(libc::EINVAL))?).map(|_| fields.u64()).collect::<Result<Vec<_>>>()?;
                self.tree.commit_together(&txns, &*self.cache)?;
                Ok(done)
            }
            mount_calls::BEGIN
            | mount_calls::ADD
            | mount_calls::COMMIT
            | mount_calls::ABORT
            | mount_calls::COMMIT_AND_CHAIN
            | mount_calls::ABORT_AND_CHAIN
            | mount_calls::DISSOLVE => self.transaction(header.ino, handle, command, fields.u64()?),
            _ => errno(libc::ENOTTY),
        }
    }

    /// Handles a program's calls about transactions.
    fn transaction(&self, ino: Ino, handle: u64, command: u32, given: u64) -> Result<Answer> {
        let writes = handle & 1 != 0;
        match command {
            mount_calls::BEGIN | mount_calls::ADD if !writes => return errno(libc::EBADF),
            mount_calls::BEGIN => {
                let txn = self.tree.begin(handle, given != 0)?;
                if let Err(e) = self.tree.add(txn, ino) {
                    self.tree.dissolve(txn);
                    return Err(e);
                }
                return Ok(Answer::default().u32(0).u32(0).u32(0).u32(0).u64(txn));
            }
            mount_calls::ADD => self.tree.add(given, ino)?,
            mount_calls::COMMIT | mount_calls::COMMIT_AND_CHAIN => {
                self.tree.commit(given, command == mount_calls::COMMIT_AND_CHAIN, &*self.cache)?;
            }
            mount_calls::ABORT | mount_calls::ABORT_AND_CHAIN => {
                let had_changes = self.tree.abort(given, command == mount_calls::ABORT_AND_CHAIN, &*self.cache)?;
                return Ok(Answer::default().u32(had_changes.into()).u32(0).u32(0).u32(0));
            }
            _ => self.tree.dissolve(given),
        }
        Ok(Answer::default().u32(0).u32(0).u32(0).u32(0))
    }

    /// Ends the transactions of an opening that has ended. Nobody waits for that.
    pub(super) fn leave_transactions(&self, handle: u64) {
        if handle & 1 == 0 {
            return;
        }
        self.leave(self.tree.end_opening(handle));
    }

    /// Ends the transactions that a killed process was ending, because their openings had ended.
    pub fn leave_left(&self) {
        self.leave(self.tree.left());
    }

    fn leave(&self, transactions: Vec<Transaction>) {
        for txn in transactions {
            let (tree, cache) = (Arc::clone(&self.tree), Arc::clone(&self.cache));
            // If no thread can be had, nothing of the transaction is committed, and it is given up when the mount ends.
            let _ = std::thread::Builder::new().spawn(move || tree.leave(txn, &*cache));
        }
    }
}
