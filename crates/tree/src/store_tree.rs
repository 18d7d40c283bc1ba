//! A tree in a store: how it is opened, what commits its files, and the timer.
//!
//! One lock, `core`, is over names, inodes and the order in which commits are submitted. Nobody holds it while a flush or a
//! pull is waited for. Under it come the locks of the store's engine, which never call back.

use crate::clock::{Clock, SystemClock};
use crate::core::{Core, errno};
use crate::file_tree::{Errno, Ino, Pull, Request, Result};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use untorn::Store;

/// When the timer commits what nobody has synced.
const TIMER: Duration = Duration::from_secs(5);
/// When the timer commits what was appended to a file that is held open.
const APPENDED: Duration = Duration::from_secs(30);
/// Files with uncommitted contents, before those without a writer are committed early.
const CHANGED_MAX: usize = 512;

/// What commits a file but a sync of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommitMode {
    /// The timer.
    #[default]
    Sync,
    /// The end of its last writer; nobody waits.
    Close,
    /// Every write and every change of a name, before it returns.
    Write,
}

/// How a tree is opened.
pub struct TreeOptions {
    /// What commits a file but a sync of it.
    pub commit: CommitMode,
    /// Owner of the root of a new tree.
    pub owner: Request,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

impl Default for TreeOptions {
    fn default() -> TreeOptions {
        let owner = Request { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() };
        TreeOptions { commit: CommitMode::default(), owner, clock: Arc::new(SystemClock::new()) }
    }
}

/// A tree of files in a store.
pub struct StoreTree {
    core: Mutex<Option<Core>>,
    pub(crate) mode: CommitMode,
    pub(crate) path: PathBuf,
}

impl StoreTree {
    /// The tree in a store; a new one if the store has none.
    ///
    /// # Errors
    /// Those of the store, and [`untorn::Error::Corrupt`] if its table is none.
    pub fn open(store: Store, options: TreeOptions) -> untorn::Result<StoreTree> {
        let path = store.path();
        let core = Core::open(store, options.clock, options.owner)?;
        Ok(StoreTree { core: Mutex::new(Some(core)), mode: options.commit, path })
    }

    pub(crate) fn core(&self) -> Result<MappedMutexGuard<'_, Core>> {
        MutexGuard::try_map(self.core.lock(), Option::as_mut).map_err(|_| Errno(libc::EIO))
    }

    /// The state, to be changed.
    pub(crate) fn changing(&self) -> Result<MappedMutexGuard<'_, Core>> {
        let core = self.core()?;
        core.check()?;
        Ok(core)
    }

    /// Pulls a file; a failure poisons it. Called without the lock.
    pub(crate) fn pull(&self, ino: Ino, pull: &dyn Pull) -> Result<()> {
        let Err(e) = pull.pull(ino) else { return Ok(()) };
        tracing::warn!(ino, errno = e.0, "a write failed: the file cannot be committed until it is truncated to 0");
        if let Some(inode) = self.core()?.inodes.get_mut(&ino) {
            inode.poisoned = true;
        }
        Err(Errno(libc::EIO))
    }

    /// Waits for all commits so far. An error of one is an error of all that are acknowledged later.
    pub(crate) fn wait(&self, core: MappedMutexGuard<'_, Core>) -> Result<()> {
        let tickets = core.pending.clone();
        drop(core);
        let mut done = Ok(());
        for ticket in &tickets {
            if let Err(e) = ticket.wait() {
                done = done.and(Err(errno(e)));
            }
        }
        let mut core = self.core()?;
        core.failed |= done.is_err();
        core.sweep();
        done.and(core.check())
    }

    /// After a change of names: `--commit=write` commits it before the reply.
    pub(crate) fn named<T>(&self, mut core: MappedMutexGuard<'_, Core>, answer: T) -> Result<T> {
        if self.mode == CommitMode::Write {
            core.commit(&[], None)?;
            self.wait(core)?;
        }
        Ok(answer)
    }

    /// Commits files, as one, with all names and attributes.
    pub(crate) fn commit_files(&self, inos: &[Ino], pull: &dyn Pull) -> Result<()> {
        for ino in inos {
            self.pull(*ino, pull)?;
        }
        let mut core = self.changing()?;
        for ino in inos {
            let inode = core.inode(*ino)?;
            if inode.poisoned {
                return Err(Errno(libc::EIO));
            }
        }
        for ino in inos {
            let inode = core.inode_mut(*ino)?;
            if inode.is_file() && !inode.row.synced {
                inode.row.synced = true;
                core.mark(crate::row::Key::Inode(*ino));
            }
        }
        core.commit(inos, None)?;
        self.wait(core)
    }

    pub(crate) fn commit_names(&self) -> Result<()> {
        let mut core = self.changing()?;
        core.commit(&[], None)?;
        self.wait(core)
    }

    /// Commits everything but what a program syncs itself and has open for writing, and what is poisoned.
    pub(crate) fn commit_all(&self, pull: &dyn Pull) -> Result<()> {
        let open: Vec<Ino> = {
            let core = self.core()?;
            let open = core.inodes.iter().filter(|(_, i)| i.is_file() && i.writers > 0 && !i.row.synced);
            open.map(|(ino, _)| *ino).collect()
        };
        for ino in open {
            // Those that fail are poisoned, and skipped below.
            let _ = self.pull(ino, pull);
        }
        let mut core = self.changing()?;
        let mut due = Vec::new();
        for ino in core.changed.clone() {
            let inode = core.inode(ino)?;
            if !inode.poisoned && (inode.writers == 0 || !inode.row.synced) {
                due.push(ino);
            }
        }
        core.commit(&due, None)?;
        self.wait(core)
    }

    /// What the timer commits.
    pub(crate) fn commit_due(&self, pull: &dyn Pull) -> Result<()> {
        let mut core = self.changing()?;
        let now = core.clock.elapsed();
        let (mut due, mut appended) = (Vec::new(), Vec::new());
        for ino in &core.changed {
            let Some(inode) = core.inodes.get(ino) else { continue };
            let Some(u) = inode.uncommitted else { continue };
            let age = now.saturating_sub(u.since);
            if inode.writers == 0 && !inode.poisoned && age >= TIMER {
                due.push(*ino);
            } else if is_appended(inode) && age >= APPENDED {
                appended.push(*ino);
            }
        }
        let names_are_due = core.dirty_since.is_some_and(|since| now.saturating_sub(since) >= TIMER);
        if names_are_due || !due.is_empty() {
            core.commit(&due, None)?;
        }
        if !appended.is_empty() {
            drop(core);
            appended.retain(|ino| self.pull(*ino, pull).is_ok());
            core = self.changing()?;
            // A write that came meanwhile may have made it another case.
            appended.retain(|ino| core.inodes.get(ino).is_some_and(is_appended));
            core.commit(&appended, None)?;
        }
        self.wait(core)
    }

    /// Commits files without a writer before the timer does, when there are many.
    pub(crate) fn relieve(core: &mut Core) -> Result<()> {
        if core.changed.len() < CHANGED_MAX {
            return Ok(());
        }
        let idle = |ino: &&Ino| core.inodes.get(ino).is_some_and(|i| i.writers == 0 && !i.poisoned && i.row.nlink > 0);
        let due: Vec<Ino> = core.changed.iter().filter(idle).copied().collect();
        if due.len() >= CHANGED_MAX / 2 {
            core.commit(&due, None)?;
        }
        Ok(())
    }

    pub(crate) fn close_store(&self, pull: &dyn Pull) -> Result<()> {
        let done = self.commit_all(pull);
        let Some(core) = self.core.lock().take() else { return Err(Errno(libc::EIO)) };
        let store = core.store.clone();
        // Its handles are closed, and what is uncommitted goes with them.
        drop(core);
        done.and(store.close().map_err(errno))
    }
}

/// Whether the uncommitted part of a file that is never synced, and held open, changes no committed byte.
fn is_appended(inode: &crate::inode::Inode) -> bool {
    let appends = inode.uncommitted.is_some_and(|u| u.kept >= inode.row.size && u.size >= inode.row.size);
    inode.writers > 0 && !inode.row.synced && !inode.poisoned && appends
}
