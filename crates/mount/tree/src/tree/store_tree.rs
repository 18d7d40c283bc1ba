//! A tree in a store: opening it, the syncs and other triggers that commit its files, and the timer.
//!
//! One lock, `core`, protects names, inodes and the order in which commits are submitted. A thread that waits for a
//! flush or a write-back does not hold it, except for the flush before a new handover log. Below it in the order come
//! the locks of the store's engine, which never calls back.

use crate::handover::log::HandoverLog;
use crate::interface::clock::{Clock, SystemClock};
use crate::interface::file_tree::{Errno, Ino, KernelCache, Request, Result, SpaceUse, Transaction};
use crate::interface::limits::{Limits, Unlimited};
use crate::small_files::pack_room::EXTENT_MAX;
use crate::tree::core::{Core, errno, is_final};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use untorn::__private::abandon;
use untorn::{FailureClass, Store};

/// Age at which the timer commits changes that nobody has synced.
const TIMER: Duration = Duration::from_secs(5);
/// Age at which the timer commits data that was appended to a file that stays open.
const APPENDED: Duration = Duration::from_secs(30);
/// Number of files with uncommitted contents at which those without a writer are committed early.
const CHANGED_MAX: usize = 512;
/// Number of objects to be removed at which a commit does it early: a larger removal would delay other requests for
/// longer.
const DOOMED_MAX: usize = 512;

/// The trigger that commits a file, besides a sync of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommitMode {
    /// The timer.
    #[default]
    Sync,
    /// The close of its last writer; nobody waits.
    Close,
    /// Every write and every change of a name, before it returns.
    Write,
    /// Only syncs: each commits the changes of all programs so far, in one commit.
    Store,
}

/// Queries the room on a file system.
pub type Below = dyn Fn() -> Result<SpaceUse> + Send + Sync;

/// Options for opening a tree.
pub struct TreeOptions {
    /// The trigger that commits a file, besides a sync of it.
    pub commit: CommitMode,
    /// Owner of the root of a new tree.
    pub owner: Request,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The room on the file system below; without it, that of the store's path.
    pub below: Option<Arc<Below>>,
    /// The most bytes of a file that lies in the pack, with other small ones; at most 64 KiB, the default. A larger
    /// file has an object of its own.
    pub small_max: usize,
    /// Handover log, which outlives this process. If it is not empty, the tree continues where the process that wrote
    /// it was killed.
    pub kept: Option<Arc<dyn HandoverLog>>,
    /// Limits: changes that are refused because something below would refuse them.
    pub limits: Arc<dyn Limits>,
}

impl Default for TreeOptions {
    fn default() -> TreeOptions {
        let owner =
            Request { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw(), umask: 0 };
        TreeOptions {
            commit: CommitMode::default(),
            owner,
            clock: Arc::new(SystemClock::new()),
            below: None,
            small_max: EXTENT_MAX,
            kept: None,
            limits: Arc::new(Unlimited),
        }
    }
}

/// Commits of the whole tree. They run one at a time, because each needs all files completely written back.
#[derive(Default)]
struct Rounds {
    begun: AtomicU64,
    /// Error of the last round; locked during a round.
    last: Mutex<Option<Errno>>,
}

/// The lock of a tree, held for one operation; its release ends the operation.
pub(crate) struct Held<'a>(MappedMutexGuard<'a, Core>);

impl Deref for Held<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.0
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        &mut self.0
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.end_operation();
    }
}

/// A tree of files in a store.
pub struct StoreTree {
    core: Mutex<Option<Core>>,
    rounds: Rounds,
    /// Whether any file was ever poisoned.
    pub(crate) any_poisoned: AtomicBool,
    /// Locked while a poisoned file goes back to its last commit.
    pub(crate) restoring: Mutex<()>,
    pub(crate) mode: CommitMode,
    pub(crate) path: PathBuf,
    /// Whether the store names a slot that syncs wait for.
    is_remote: bool,
    below: Option<Arc<Below>>,
    pub(crate) limits: Arc<dyn Limits>,
    /// The store's directory, also if it is renamed.
    directory: Option<OwnedFd>,
}

impl StoreTree {
    /// Options of a tree's store: commits stay in order, because names and contents of one commit must not come apart.
    pub fn store_options() -> untorn::StoreOptions {
        untorn::StoreOptions::new().create(true).in_order(true)
    }

    /// Opens the tree in a store, or makes a new one if the store has none.
    ///
    /// # Errors
    /// Those of the store, and [`untorn::Error::Corrupt`] if its table is damaged.
    pub fn open(store: Store, options: TreeOptions) -> untorn::Result<StoreTree> {
        let (path, is_remote) = (store.path(), store.status().remote.is_some());
        let core = Core::open_kept(store, options.clock, options.owner, options.small_max, options.kept)?;
        let any_poisoned = AtomicBool::new(core.inodes.values().any(crate::table::inode::Inode::is_poisoned));
        let (core, rounds, restoring) = (Mutex::new(Some(core)), Rounds::default(), Mutex::default());
        let below = options.below;
        // A store with a substitute for the room below, as in tests, has no directory, either.
        let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = match below {
            Some(_) => None,
            None => Some(
                rustix::fs::open(&path, how, Mode::empty()).map_err(|e| untorn::Error::io("open", &path, e.into()))?,
            ),
        };
        let limits = options.limits;
        Ok(StoreTree {
            core,
            rounds,
            any_poisoned,
            restoring,
            mode: options.commit,
            path,
            is_remote,
            below,
            limits,
            directory,
        })
    }

    /// The room on the file system below.
    pub(crate) fn below(&self) -> Result<SpaceUse> {
        if let Some(below) = &self.below {
            return below();
        }
        let of = self.directory.as_ref().ok_or(Errno(libc::EIO))?;
        let below = rustix::fs::fstatvfs(of).map_err(|e| Errno(e.raw_os_error()))?;
        Ok(SpaceUse {
            block_size: below.f_frsize.max(1) as u32,
            blocks: below.f_blocks,
            free: below.f_bfree,
            available: below.f_bavail,
            files: below.f_files,
            files_free: below.f_ffree,
        })
    }

    pub(crate) fn core(&self) -> Result<Held<'_>> {
        MutexGuard::try_map(self.core.lock(), Option::as_mut).map(Held).map_err(|_| Errno(libc::EIO))
    }

    /// Locks the state for a change.
    pub(crate) fn changing(&self) -> Result<Held<'_>> {
        let core = self.core()?;
        core.check()?;
        Ok(core)
    }

    /// Writes back a file; a failure poisons it. Called without the lock.
    pub(crate) fn write_back_file(&self, ino: Ino, cache: &dyn KernelCache) -> Result<()> {
        let Err(e) = cache.write_back(ino) else { return Ok(()) };
        let mut core = self.core()?;
        // The kernel reports a write that this tree refused; the lost range of that write is known.
        if core.inode_mut(ino).is_ok_and(|inode| std::mem::take(&mut inode.is_untold)) {
            return Ok(());
        }
        tracing::warn!(
            id = "untorn.tree.write_poisoned",
            ino,
            errno = e.0,
            "a write failed: the file cannot be committed until it is truncated to 0"
        );
        self.any_poisoned.store(true, Ordering::Relaxed);
        core.poison(ino);
        Err(Errno(libc::EIO))
    }

    /// Writes back a file for a commit, and recovers its lost data. An error is that of either.
    pub(crate) fn write_back_and_restore(&self, ino: Ino, cache: &dyn KernelCache) -> Result<()> {
        self.write_back_file(ino, cache)?;
        match self.any_poisoned.load(Ordering::Relaxed) {
            true => self.bring_back(ino, cache),
            false => Ok(()),
        }
    }

    /// Recovers the lost data of all files, as far as possible.
    ///
    /// Returns the reason why data of a file with a name cannot be recovered: no room for now, or lost for good.
    fn bring_all_back(&self, cache: &dyn KernelCache) -> Result<Option<Errno>> {
        if !self.any_poisoned.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let poisoned: Vec<Ino> = {
            let core = self.changing()?;
            let is =
                |inode: &crate::table::inode::Inode| inode.is_poisoned() && inode.row.nlink > 0 && inode.txn.is_none();
            core.changed.iter().copied().filter(|ino| core.inodes.get(ino).is_some_and(is)).collect()
        };
        let mut why = None;
        for ino in poisoned {
            let done = self.bring_back(ino, cache);
            let is_poisoned = self.core()?.inodes.get(&ino).is_some_and(crate::table::inode::Inode::is_poisoned);
            let e = done.err().unwrap_or(Errno(libc::EIO));
            if is_poisoned && why.is_none_or(|before| before == Errno(libc::EIO)) {
                why = Some(e);
            }
        }
        Ok(why)
    }

    /// Waits for all commits so far. An error of one is an error of all that are acknowledged later.
    pub(crate) fn wait(&self, core: Held<'_>) -> Result<()> {
        self.wait_for(core).map(drop)
    }

    /// Waits like [`wait`](Self::wait), before a program is told of the commits, also those of an earlier daemon: until
    /// the slot that the store names, if any, has acknowledged them.
    pub(crate) fn wait_to_tell(&self, core: Held<'_>) -> Result<()> {
        let store = self.wait_for(core)?;
        // The tree closes the store, which ends this.
        if self.is_remote { store.wait_for(FailureClass::Remote).map_err(errno) } else { Ok(()) }
    }

    fn wait_for(&self, core: Held<'_>) -> Result<Store> {
        let tickets = core.pending.clone();
        drop(core);
        // A commit that fails, as on a full disk, also blocks those after it, until it can be written.
        let done = tickets.iter().try_for_each(untorn::Ticket::wait);
        let mut core = self.core()?;
        core.failed |= done.as_ref().is_err_and(is_final);
        core.sweep();
        done.map_err(errno).and(core.check())?;
        Ok(core.store.clone())
    }

    /// Ends a change of names: `--commit=write` commits it before the reply.
    pub(crate) fn named<T>(&self, mut core: Held<'_>, answer: T) -> Result<T> {
        if self.mode == CommitMode::Write {
            core.commit_waited(&[])?;
            self.wait_to_tell(core)?;
        }
        Ok(answer)
    }

    /// Commits all changes that programs made before the call, in one commit, and waits. Callers share a round.
    pub(crate) fn commit_round(&self, cache: &dyn KernelCache) -> Result<()> {
        // A round that is under way may have written back files before the caller's last changes, so the caller needs
        // the next one.
        let wanted = self.rounds.begun.load(Ordering::SeqCst) + 1;
        let mut last = self.rounds.last.lock();
        if self.rounds.begun.load(Ordering::SeqCst) < wanted {
            self.rounds.begun.fetch_add(1, Ordering::SeqCst);
            *last = self.submit_round(None, cache).err();
        }
        let failed = *last;
        drop(last);
        match failed {
            Some(e) => Err(e),
            None => self.wait(self.core()?),
        }
    }

    /// Commits a round like [`commit_round`](Self::commit_round), with transactions, which continue if that fails, or
    /// with `chains`.
    pub(crate) fn commit_round_with(&self, txns: &[Transaction], chains: bool, cache: &dyn KernelCache) -> Result<()> {
        // This round is not shared: a caller that waits meanwhile may have made changes after the write-backs.
        let last = self.rounds.last.lock();
        self.submit_round(Some((txns, chains)), cache)?;
        drop(last);
        self.wait_to_tell(self.core()?)
    }

    fn submit_round(&self, with: Option<(&[Transaction], bool)>, cache: &dyn KernelCache) -> Result<()> {
        let open = self.changing()?.open_for_writing.clone();
        for ino in open {
            // A failed write-back poisons the file.
            let _ = self.write_back_file(ino, cache);
        }
        let lost = self.bring_all_back(cache)?;
        let mut core = self.changing()?;
        let free = |ino: &Ino| core.inodes.get(ino).is_some_and(|inode| inode.txn.is_none());
        let changed: Vec<Ino> = core.changed.iter().copied().filter(free).collect();
        if let Some((txns, chains)) = with {
            return Self::submit_transactions(&mut core, txns, chains, &changed);
        }
        if changed.iter().any(|ino| core.inodes.get(ino).is_some_and(crate::table::inode::Inode::is_poisoned)) {
            return Err(lost.unwrap_or(Errno(libc::EIO)));
        }
        core.commit(&changed)
    }

    /// Commits files, with all names and attributes, in one commit.
    pub(crate) fn commit_files(&self, inos: &[Ino], cache: &dyn KernelCache) -> Result<()> {
        self.changing()?.check_free(inos)?;
        if self.mode == CommitMode::Store {
            Self::mark_synced(&mut *self.changing()?, inos)?;
            self.commit_round(cache)?;
            return self.wait_to_tell(self.core()?);
        }
        for ino in inos {
            self.write_back_and_restore(*ino, cache)?;
        }
        let mut core = self.changing()?;
        for ino in inos {
            let inode = core.inode(*ino)?;
            if inode.is_poisoned() {
                return Err(Errno(libc::EIO));
            }
        }
        core.check_free(inos)?;
        Self::mark_synced(&mut core, inos)?;
        core.commit_waited(inos)?;
        self.wait_to_tell(core)
    }

    pub(crate) fn mark_synced(core: &mut Core, inos: &[Ino]) -> Result<()> {
        for ino in inos {
            let inode = core.inode_mut(*ino)?;
            // A commit leaves out a file without a name. When the file gets a name, its contents are committed with
            // that.
            if inode.is_file() && !inode.row.synced && inode.row.nlink > 0 {
                inode.row.synced = true;
                core.mark(crate::table::row::Key::Inode(*ino));
            }
        }
        Ok(())
    }

    pub(crate) fn commit_names(&self, cache: &dyn KernelCache) -> Result<()> {
        if self.mode == CommitMode::Store {
            self.commit_round(cache)?;
            return self.wait_to_tell(self.core()?);
        }
        let mut core = self.changing()?;
        core.commit_waited(&[])?;
        self.wait_to_tell(core)
    }

    /// Commits everything except files that a program syncs itself and has open for writing. Poisoned files are an
    /// error.
    pub(crate) fn commit_all(&self, cache: &dyn KernelCache) -> Result<()> {
        let lost = self.commit_all_but_lost(cache)?;
        self.wait_to_tell(self.core()?)?;
        lost.map_or(Ok(()), Err)
    }

    /// Commits like [`commit_all`](Self::commit_all); returns the reason why poisoned files are not committed.
    fn commit_all_but_lost(&self, cache: &dyn KernelCache) -> Result<Option<Errno>> {
        if self.mode == CommitMode::Store {
            return self.commit_round(cache).map(|()| None);
        }
        let open: Vec<Ino> = {
            let core = self.core()?;
            let synced = |ino: &Ino| core.inodes.get(ino).is_some_and(|inode| inode.row.synced);
            core.open_for_writing.iter().copied().filter(|ino| !synced(ino)).collect()
        };
        for ino in open {
            // A failed write-back poisons the file, which is skipped below.
            let _ = self.write_back_file(ino, cache);
        }
        let lost = self.bring_all_back(cache)?;
        let mut core = self.changing()?;
        let mut due = Vec::new();
        for ino in core.changed.clone() {
            let inode = core.inode(ino)?;
            if inode.is_committable() && (inode.writers == 0 || !inode.row.synced) {
                due.push(ino);
            }
        }
        core.commit_waited(&due)?;
        self.wait(core)?;
        Ok(lost)
    }

    /// Commits before the end like [`commit_all`](Self::commit_all), but no changes that a program may be in the middle
    /// of.
    pub(crate) fn commit_finished(&self, cache: &dyn KernelCache) -> Result<()> {
        self.commit_finished_but_lost(cache)?.map_or(Ok(()), Err)
    }

    fn commit_finished_but_lost(&self, cache: &dyn KernelCache) -> Result<Option<Errno>> {
        if self.mode == CommitMode::Store && !self.core()?.open_for_writing.is_empty() {
            return Ok(None);
        }
        self.commit_all_but_lost(cache)
    }

    /// Commits the changes that are due by time.
    pub(crate) fn commit_due(&self, cache: &dyn KernelCache) -> Result<()> {
        if self.mode == CommitMode::Store {
            return Ok(());
        }
        let mut core = self.changing()?;
        let now = core.clock.elapsed();
        let (mut due, mut appended) = (Vec::new(), Vec::new());
        for ino in &core.changed {
            let Some(inode) = core.inodes.get(ino) else { continue };
            let Some(u) = inode.uncommitted else { continue };
            let age = now.saturating_sub(u.since);
            if inode.writers == 0 && inode.is_committable() && age >= TIMER {
                due.push(*ino);
            } else if is_appended(inode) && age >= APPENDED {
                appended.push(*ino);
            }
        }
        let names_are_due = core.dirty_since.is_some_and(|since| now.saturating_sub(since) >= TIMER);
        if names_are_due || !due.is_empty() {
            core.commit(&due)?;
        }
        if !appended.is_empty() {
            drop(core);
            appended.retain(|ino| self.write_back_and_restore(*ino, cache).is_ok());
            core = self.changing()?;
            // A write that came meanwhile may have changed committed bytes.
            appended.retain(|ino| core.inodes.get(ino).is_some_and(is_appended));
            core.commit(&appended)?;
        }
        self.wait(core)
    }

    /// Writes back files that programs have had open for writing for `after` since their last write-back of this kind.
    pub(crate) fn write_back_due(&self, after: Duration, cache: &dyn KernelCache) {
        let mut due = Vec::new();
        {
            let Ok(mut core) = self.changing() else { return };
            let core = &mut *core;
            let now = core.clock.elapsed();
            for ino in &core.open_for_writing {
                let Some(inode) = core.inodes.get_mut(ino) else { continue };
                if now.saturating_sub(inode.written_back) >= after {
                    inode.written_back = now;
                    due.push(*ino);
                }
            }
        }
        for ino in due {
            // A failed write-back poisons the file.
            let _ = self.write_back_file(ino, cache);
        }
    }

    /// Commits files without a writer, and removals, before the timer does, when there are many.
    pub(crate) fn relieve(&self, core: &mut Core) -> Result<()> {
        if self.mode == CommitMode::Store {
            return Ok(());
        }
        let due = Self::due_early(core);
        if core.doomed.len() < DOOMED_MAX {
            core.early.doomed = 0;
        }
        if due.is_empty() && core.doomed.len() < DOOMED_MAX.max(core.early.doomed) {
            return Ok(());
        }
        let done = core.commit(&due);
        if done.is_err() {
            // On a full disk, not every request tries it again.
            (core.early.changed, core.early.doomed) = (2 * core.changed.len(), 2 * core.doomed.len());
        }
        done
    }

    /// The files with uncommitted contents and without a writer, if there are many of them.
    ///
    /// If they are few, all files are inspected again only when their number has doubled.
    fn due_early(core: &mut Core) -> Vec<Ino> {
        if core.changed.len() < CHANGED_MAX {
            core.early.changed = 0;
        }
        if core.changed.len() < CHANGED_MAX.max(core.early.changed) {
            return Vec::new();
        }
        let idle =
            |ino: &&Ino| core.inodes.get(ino).is_some_and(|i| i.writers == 0 && i.is_committable() && i.row.nlink > 0);
        let due: Vec<Ino> = core.changed.iter().filter(idle).copied().collect();
        core.early.looked_at += core.changed.len() as u64;
        let are_many = due.len() >= CHANGED_MAX / 2;
        core.early.changed = if are_many { 0 } else { 2 * core.changed.len() };
        if are_many { due } else { Vec::new() }
    }

    /// Number of files that searches through all files with uncommitted contents have inspected so far: for tests.
    #[doc(hidden)]
    pub fn files_looked_at(&self) -> Result<u64> {
        Ok(self.core()?.early.looked_at)
    }

    /// Whether exactly the rows' extents are allocated in the pack: for tests.
    #[doc(hidden)]
    pub fn pack_is_as_rows_say(&self) -> Result<bool> {
        let core = self.core()?;
        Ok(core.pack.is_as(core.inodes.values().filter_map(|inode| inode.row.extent).collect()))
    }

    /// Rolls poisoned files back: nothing commits them, and they take room that the last commit may need.
    fn give_up_poisoned(&self) {
        let Ok(mut core) = self.core() else { return };
        if self.mode == CommitMode::Store {
            // Without the poisoned files, the commit would be a state that no sync has asked for.
            return;
        }
        let is = |ino: &Ino| core.inodes.get(ino).is_some_and(crate::table::inode::Inode::is_poisoned);
        for ino in core.changed.iter().copied().filter(is).collect::<Vec<_>>() {
            if let Err(e) = core.roll_back(ino) {
                tracing::error!(
                    id = "untorn.tree.discard_failed",
                    ino,
                    errno = e.0,
                    "the uncommitted changes of a file cannot be discarded"
                );
            }
        }
    }

    pub(crate) fn close_store(&self, cache: &dyn KernelCache) -> Result<()> {
        self.give_up_poisoned();
        let done = self.commit_finished_but_lost(cache).map(drop);
        let Some(core) = self.core.lock().take() else { return Err(Errno(libc::EIO)) };
        let store = core.store.clone();
        // Closes its handles, and thereby discards uncommitted changes.
        drop(core);
        done.and(store.close().map_err(errno))
    }

    pub(crate) fn abandon_store(&self) {
        if let Some(core) = &*self.core.lock() {
            abandon(&core.store);
        }
    }
}

/// Whether the uncommitted part of a file that is never synced, and stays open, changes no committed byte.
fn is_appended(inode: &crate::table::inode::Inode) -> bool {
    let appends = inode.uncommitted.is_some_and(|u| u.kept >= inode.row.size && u.size >= inode.row.size);
    inode.writers > 0 && !inode.row.synced && inode.is_committable() && appends
}
