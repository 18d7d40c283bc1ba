//! Named files on Untorn mounts, each in a transaction of this process.
//!
//! A mount itself has the features that this library gives to other files. So the kernel reads, writes and maps these
//! files. A sync commits the transaction, which continues with the next changes. When the file is closed, the
//! transaction ends, and changes that were not synced are discarded.

use std::collections::{BTreeSet, HashMap};
use std::ffi::c_int;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use untorn::on_mount::Transaction;
use untorn_os::Fd;
use untorn_os::mount_calls::is_on_mount;

use super::patience::MOMENT;
use crate::boundary::error::untorn_error::{UNTORN_E_BUSY, UNTORN_E_IN_TRANSACTION};
use crate::boundary::error::{Failure, Result};
use crate::posix::state::address_ranges::{overlap, subtract};
use crate::posix::state::call_section::{Held, enter, lock};
use crate::posix::state::descriptor_table::{COMMITS_WRITES, ON_MOUNT};
use crate::posix::state::file_owner::is_borrower;
use crate::posix::state::posix_descriptor::{
    Key, check_writable, failure, flags, identity, is_regular, key_of, open_descriptors, path_of, refusal, reopen,
    stat, system,
};
use crate::posix::state::report::{about, reported, tell};
use crate::posix::state::settings::commits_writes;
use crate::posix::state::settings::patience;

/// How long the opening of a file in another process's transaction is tried again. That process may have been killed
/// just now, and its changes are discarded only after its end.
const PATIENCE: Duration = Duration::from_secs(1);

/// A file in a transaction.
pub(crate) struct MountFile {
    key: Key,
    /// This process's own opening of the file, by which the transaction began: the transaction ends with this
    /// process, even if another process has inherited the program's descriptors. It is closed after all others,
    /// because closing it drops the program's record locks.
    own: Fd,
    /// The process that has the transaction, as a count of forks.
    process: u64,
    /// The transaction. None: it has ended.
    txn: Mutex<Option<Transaction>>,
    /// Descriptors of the file. None: the transaction has ended.
    descriptors: Mutex<Option<BTreeSet<c_int>>>,
    /// The program wants uncommitted changes to be committed when the last writer ends.
    pub commit_on_close: AtomicBool,
    /// The file is in a transaction of the program, which alone commits it. Changes while `txn` and the table are
    /// locked.
    is_joined: AtomicBool,
}

#[derive(Default)]
pub(crate) struct Table {
    files: HashMap<Key, Arc<MountFile>>,
    /// Addresses of the program's maps.
    windows: Vec<(Range<usize>, Arc<MountFile>)>,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);
/// The number of files in the table, including those of a parent process.
static FILES: AtomicUsize = AtomicUsize::new(0);

pub(crate) type TableGuard = Held<MutexGuard<'static, Table>>;

pub(crate) fn table() -> TableGuard {
    lock(&TABLE)
}

/// Whether the table has any file.
pub(crate) fn is_any() -> bool {
    FILES.load(Acquire) > 0
}

fn is_of(key: Key, fd: c_int) -> bool {
    identity(fd) == Some(key)
}

impl MountFile {
    /// The transaction is the parent process's.
    pub fn is_parents(&self) -> bool {
        self.process != untorn_os::process_generation() || is_borrower()
    }

    fn check_own(&self) -> Result<()> {
        if self.is_parents() { Err(Failure::forked()) } else { Ok(()) }
    }

    /// Refuses commits and roll-backs of a file that is in a transaction of the program.
    pub fn check_not_joined(&self) -> Result<()> {
        match self.is_joined() {
            false => Ok(()),
            true => Err(Failure {
                kind: UNTORN_E_IN_TRANSACTION,
                ..failure(libc::EBUSY, "the file is in a transaction, which alone commits it, or discards its changes")
            }),
        }
    }

    fn with<T>(&self, call: impl FnOnce(&mut Transaction) -> untorn::Result<T>) -> Result<T> {
        self.check_own()?;
        let mut txn = lock(&self.txn);
        self.check_not_joined()?;
        Ok(call(txn.as_mut().ok_or_else(|| Failure::bad_handle("file"))?)?)
    }

    /// Whether the file is in a transaction of the program.
    pub fn is_joined(&self) -> bool {
        self.is_joined.load(Acquire)
    }

    /// The device number of the file's mount.
    pub fn mount(&self) -> libc::dev_t {
        self.key.0
    }

    /// Puts the file into a transaction of the program: until the file leaves it, only [`commit_together`] commits it.
    pub fn join(&self) -> Result<()> {
        self.check_own()?;
        let _no_commit = lock(&self.txn);
        let table = table();
        // The last descriptor may just have been closed.
        if lock(&self.descriptors).is_none() {
            return Err(Failure::bad_handle("file"));
        }
        self.check_not_joined()?;
        self.is_joined.store(true, Release);
        drop(table);
        Ok(())
    }

    /// Takes the file out of its transaction, which has ended, and releases it if the program has closed it meanwhile.
    pub fn leave(self: &Arc<Self>) -> Result<()> {
        {
            let _no_commit = lock(&self.txn);
            let _table = table();
            self.is_joined.store(false, Release);
        }
        release_if_unused(self)
    }

    /// Discards the changes of a file in a transaction.
    pub fn roll_back_joined(&self) -> Result<()> {
        self.check_own()?;
        let mut txn = lock(&self.txn);
        txn.as_mut().ok_or_else(|| Failure::bad_handle("file"))?.abort_and_chain()?;
        Ok(())
    }

    /// Commits all changes of the file, durable on return.
    pub fn commit(&self) -> Result<()> {
        self.with(Transaction::commit_and_chain)
    }

    /// Commits a change that is to be a commit of its own. Changes in a transaction are committed by its end.
    pub fn commit_change(&self) -> Result<()> {
        match self.commit() {
            Err(_) if self.is_joined() => Ok(()),
            done => done,
        }
    }

    /// Discards all changes since the last commit.
    pub fn roll_back(&self) -> Result<()> {
        self.with(Transaction::abort_and_chain).map(drop)
    }

    /// Notes that a descriptor is of this file, which stays in its transaction until that descriptor is closed, too.
    fn note(&self, fd: c_int) -> Result<()> {
        if self.is_parents() {
            return Ok(());
        }
        let mut descriptors = lock(&self.descriptors);
        let descriptors = descriptors.as_mut().ok_or_else(|| Failure::bad_handle("file"))?;
        // If the mark of a known number is gone, a call that is not renamed has closed the descriptor.
        let is_new = !ON_MOUNT.has(fd);
        if !ON_MOUNT.set(fd) {
            return Err(failure(libc::EMFILE, format!("descriptor {fd}: managed files need smaller numbers")));
        }
        if descriptors.insert(fd) || is_new {
            match commits_writes() && check_writable(fd).is_ok() {
                true => drop(COMMITS_WRITES.set(fd)),
                false => COMMITS_WRITES.clear(fd),
            }
        }
        Ok(())
    }

    /// Notes that a descriptor no longer belongs to this file.
    pub fn forget(&self, fd: c_int) {
        ON_MOUNT.clear(fd);
        COMMITS_WRITES.clear(fd);
        if let Some(descriptors) = lock(&self.descriptors).as_mut() {
            descriptors.remove(&fd);
        }
    }

    /// Discards changes that were not synced, or commits them if the program asked for that. The transaction
    /// continues.
    fn settle(&self, call: &str) -> Result<()> {
        if self.commit_on_close.load(Acquire) {
            return self.commit();
        }
        let path = self.own.get().ok().and_then(|own| path_of(own.as_raw_fd()).ok());
        let given_up = self.with(Transaction::abort_and_chain)?;
        // The changes of a file without a name cannot be missed.
        if let Some(path) = path.filter(|_| given_up) {
            tell_discarded(call, &path);
        }
        Ok(())
    }
}

/// Reports that the end of a file discards changes.
pub(crate) fn tell_discarded(call: &str, path: &Path) {
    let path = path.display();
    tell(&format!(
        "{call}: {path}: changes that were not synced are discarded. To keep them, call fsync or msync before, or \
         untorn_fd_commit_on_close(), or set UNTORN_COMMIT=close"
    ));
}

/// Commits the changes of several files as one: files in the program's transaction, or files that are in none.
pub(crate) fn commit_together(files: &[Arc<MountFile>], are_joined: bool) -> Result<()> {
    let mut files: Vec<&Arc<MountFile>> = files.iter().collect();
    // Locked in one order, so that two calls do not wait for each other.
    files.sort_unstable_by_key(|file| file.key);
    files.dedup_by_key(|file| file.key);
    files.iter().try_for_each(|file| file.check_own())?;
    let mut locked: Vec<_> = files.iter().map(|file| lock(&file.txn)).collect();
    if !are_joined {
        files.iter().try_for_each(|file| file.check_not_joined())?;
    }
    let txns = locked.iter_mut().map(|txn| txn.as_mut().ok_or_else(|| Failure::bad_handle("file")));
    Ok(untorn::on_mount::commit_together(&mut txns.collect::<Result<Vec<_>>>()?)?)
}

/// Refuses a file with a descriptor by which each write asks the kernel for a sync: only the transaction can commit
/// its changes. A descriptor that another thread closes in the meantime is ignored.
fn check_no_sync(key: Key, fds: &[c_int]) -> Result<()> {
    // `O_SYNC` has this bit, too.
    let syncs = |fd: &&c_int| flags(**fd).is_ok_and(|flags| flags & libc::O_DSYNC != 0) && is_of(key, **fd);
    match fds.iter().find(syncs) {
        None => Ok(()),
        Some(fd) => Err(refusal(
            libc::EINVAL,
            format!(
                "descriptor {fd} was opened with O_SYNC or O_DSYNC before the file was named: name it before it is opened"
            ),
        )),
    }
}

/// Makes an opening that belongs to this process alone. If the file's mode forbids that, copies the program's
/// descriptor.
fn own_opening(fd: c_int) -> Result<Fd> {
    let copy = || {
        // SAFETY: open during the call, or an error.
        let copy = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
        copy.map_err(|_| system("copy the descriptor"))
    };
    Fd::new(reopen(fd, libc::O_WRONLY | libc::O_CLOEXEC | libc::O_NONBLOCK).or_else(|_| copy())?)
        .map_err(|_| system("keep a descriptor of the file"))
}

/// Begins a transaction. None: the file is not on an Untorn mount.
fn begin(file: BorrowedFd<'_>) -> Result<Option<Transaction>> {
    let started = Instant::now();
    loop {
        // Earlier changes, by any process, are committed first: they must not be discarded together with later ones.
        match Transaction::begin_committed(file) {
            Err(untorn::Error::InTransaction { .. }) if started.elapsed() < PATIENCE.max(patience()) => {
                std::thread::sleep(MOMENT)
            }
            Err(untorn::Error::InTransaction { path }) => {
                let message = format!(
                    "{} is in a transaction of another process, or of another call in this process: only one call at a \
                     time can open a named file for writing",
                    path.display()
                );
                return Err(Failure { kind: UNTORN_E_BUSY, ..failure(libc::EBUSY, message) });
            }
            // Another file system may know the same call, and answer it with an error.
            Err(untorn::Error::Invalid { .. }) => return Ok(None),
            begun => return Ok(Some(begun?)),
        }
    }
}

/// Puts a file that is open for writing into a transaction, if it is on an Untorn mount and not yet in a transaction
/// of this process. False: it is not on a mount. `commits_on_close`: the initial setting.
pub(crate) fn keep(fd: c_int, commits_on_close: bool) -> Result<bool> {
    if learn(fd).is_some_and(|file| !file.is_parents()) {
        return Ok(true);
    }
    let Some(stat) = stat(fd).filter(is_regular) else { return Ok(false) };
    // SAFETY: open, as it has a status; during the call.
    let is_on_mount = is_on_mount(unsafe { BorrowedFd::borrow_raw(fd) });
    if !is_on_mount.map_err(|e| failure(e.raw_os_error(), format!("cannot ask what file system it is on: {e}")))? {
        return Ok(false);
    }
    check_writable(fd)?;
    let key = key_of(&stat);
    // Includes descriptors that were opened for reading, or by calls that are not renamed.
    let mut all = open_descriptors(key, &untorn_os::is_own_descriptor);
    all.retain(|other| *other != fd);
    all.push(fd);
    check_no_sync(key, &all)?;
    let own = own_opening(fd)?;
    let Some(txn) = begin(own.get().map_err(|_| Failure::forked())?)? else { return Ok(false) };
    let file = Arc::new(MountFile {
        key,
        own,
        process: untorn_os::process_generation(),
        txn: Mutex::new(Some(txn)),
        descriptors: Mutex::new(Some(BTreeSet::new())),
        commit_on_close: AtomicBool::new(commits_on_close),
        is_joined: AtomicBool::new(false),
    });
    // Noted before another thread can find the file without descriptors.
    file.note(fd)?;
    {
        let mut table = table();
        // A forked child has the maps of its parent's file.
        let before = table.files.insert(key, Arc::clone(&file));
        if let Some(before) = before {
            let of_it = table.windows.iter_mut().filter(|(_, shown)| Arc::ptr_eq(shown, &before));
            of_it.for_each(|(_, shown)| *shown = Arc::clone(&file));
        }
        FILES.store(table.files.len(), Release);
    }
    ON_MOUNT.set(fd);
    for other in all.into_iter().filter(|fd| is_of(key, *fd)) {
        // A number that is too large for a mark is an error, because syncs by it would not commit.
        file.note(other)?;
    }
    Ok(true)
}

/// The file of a descriptor of any origin. The descriptor is marked from now on.
pub(crate) fn learn(fd: c_int) -> Option<Arc<MountFile>> {
    if !is_any() {
        return None;
    }
    let file = find_by_identity(identity(fd)?)?;
    file.note(fd).ok()?;
    Some(file)
}

/// The file of this identity.
pub(crate) fn find_by_key(stat: &libc::stat) -> Option<Arc<MountFile>> {
    if is_regular(stat) { find_by_identity(key_of(stat)) } else { None }
}

fn find_by_identity(key: Key) -> Option<Arc<MountFile>> {
    if is_any() { table().files.get(&key).cloned() } else { None }
}

/// Whether the file of this identity is in a transaction of this process.
pub(crate) fn knows(stat: &libc::stat) -> bool {
    find_by_key(stat).is_some()
}

/// The file of a descriptor that is marked.
pub(crate) fn find(fd: c_int) -> Option<Arc<MountFile>> {
    if !ON_MOUNT.has(fd) {
        return None;
    }
    let found = identity(fd).and_then(find_by_identity);
    if found.is_none() && !is_borrower() {
        // The descriptor was closed by a call that is not renamed, and its number may have another file by now.
        ON_MOUNT.clear(fd);
    }
    found
}

/// Makes a call on the file of a descriptor. None: the descriptor is not of such a file.
pub(crate) fn on_mount<T>(
    call: &str,
    fd: c_int,
    failed: T,
    body: impl FnOnce(&Arc<MountFile>) -> Result<T>,
) -> Option<T> {
    if !ON_MOUNT.has(fd) {
        return None;
    }
    let Some(_section) = enter(call) else { return Some(failed) };
    let file = find(fd)?;
    Some(reported(call, failed, || body(&file).map_err(|failure| about(failure, || path_of(fd).ok()))))
}

/// Commits after the kernel wrote `n` bytes with O_SYNC or O_DSYNC. Returns `n`, or -1 if the commit fails.
pub(crate) fn written(call: &str, fd: c_int, n: isize) -> isize {
    match n > 0 && COMMITS_WRITES.has(fd) {
        true => commit_written(call, fd, n),
        false => n,
    }
}

/// Commits the write that was just made, and returns `n`; -1 if the commit fails.
pub(crate) fn commit_written(call: &str, fd: c_int, n: isize) -> isize {
    // A write by a forked child belongs to its parent's transaction.
    let commit = |file: &Arc<MountFile>| if file.is_parents() { Ok(n) } else { file.commit_change().map(|()| n) };
    on_mount(call, fd, -1, commit).unwrap_or(n)
}

/// Notes that a copy of a descriptor was made.
pub(crate) fn copied(fd: c_int, copy: c_int) -> Result<()> {
    let Some(file) = find(fd) else { return Ok(()) };
    file.note(copy)?;
    if COMMITS_WRITES.has(fd) {
        COMMITS_WRITES.set(copy);
    }
    Ok(())
}

/// Ends the transaction of a file whose last descriptor and map are gone.
pub(crate) fn release_if_unused(file: &Arc<MountFile>) -> Result<()> {
    if file.is_parents() {
        return Ok(());
    }
    {
        let mut table = table();
        let mut descriptors = lock(&file.descriptors);
        let Some(left) = descriptors.as_mut() else { return Ok(()) };
        left.retain(|fd| is_of(file.key, *fd));
        let is_mapped = table.windows.iter().any(|(_, of)| Arc::ptr_eq(of, file));
        if is_mapped || !left.is_empty() || file.is_joined() {
            let has_writer = is_mapped || left.iter().any(|fd| check_writable(*fd).is_ok());
            drop((descriptors, table));
            let commits = !has_writer && file.commit_on_close.load(Acquire);
            return if commits { file.commit_change() } else { Ok(()) };
        }
        *descriptors = None;
        table.files.remove(&file.key);
        FILES.store(table.files.len(), Release);
    }
    let settled = file.settle("close");
    // Changes that were not synced are discarded, as at the end of a process.
    drop(lock(&file.txn).take());
    settled
}

/// The effect of a call on the maps of this process.
#[derive(Default)]
pub(crate) struct Change {
    /// Addresses that no longer show the files that they showed.
    pub gone: Vec<Range<usize>>,
    /// Addresses that show a file from now on.
    pub new: Option<(Range<usize>, Shown)>,
}

pub(crate) enum Shown {
    File(Arc<MountFile>),
    /// The file that this address showed before the call.
    AsAt(usize),
}

/// Makes a system call that changes maps, and notes its effect before another thread can map anything there. Releases
/// files that have neither descriptors nor maps any more; also returns whether that succeeded.
pub(crate) fn change_maps<T>(call: &str, change: impl FnOnce() -> (T, Change)) -> (T, bool) {
    if !is_any() || is_borrower() {
        return (change().0, true);
    }
    let mut touched = Vec::new();
    let done = {
        let mut table = table();
        let (done, Change { gone, new }) = change();
        let new = new.and_then(|(range, shown)| match shown {
            Shown::File(file) => Some((range, file)),
            Shown::AsAt(at) => {
                let shown = table.windows.iter().rev().find(|(window, _)| window.contains(&at));
                shown.map(|(_, file)| (range, Arc::clone(file)))
            }
        });
        for (range, file) in std::mem::take(&mut table.windows) {
            let left = gone.iter().fold(vec![range.clone()], subtract);
            if left != [range] {
                touched.push(Arc::clone(&file));
            }
            table.windows.extend(left.into_iter().map(|left| (left, Arc::clone(&file))));
        }
        table.windows.extend(new);
        done
    };
    let release = |file: &Arc<MountFile>| reported(call, false, || release_if_unused(file).map(|()| true));
    let failed = touched.iter().filter(|file| !release(file)).count();
    (done, failed == 0)
}

/// The files that are mapped in a range of addresses.
pub(crate) fn mapped_in(addresses: &Range<usize>) -> Vec<Arc<MountFile>> {
    let mut files: Vec<Arc<MountFile>> = Vec::new();
    if is_any() {
        for (_, file) in table().windows.iter().filter(|(range, _)| overlap(range, addresses).is_some()) {
            if !files.iter().any(|known| Arc::ptr_eq(known, file)) {
                files.push(Arc::clone(file));
            }
        }
    }
    files
}

/// Whether this process has a file in a transaction.
pub(crate) fn is_any_own() -> bool {
    is_any() && table().files.values().any(|file| !file.is_parents())
}

/// Discards or commits the changes of all files at the end of the process. The transactions last until the process
/// has ended: bytes that other threads write until then, and bytes that the C library writes when it empties its
/// streams, are discarded, too.
pub(crate) fn end_all() {
    if !is_any() {
        return;
    }
    let files: Vec<Arc<MountFile>> = table().files.values().filter(|file| !file.is_parents()).cloned().collect();
    for file in files {
        reported("exit", (), || file.settle("exit"));
    }
}
