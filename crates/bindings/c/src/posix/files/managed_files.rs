//! The managed files of this process, and their maps.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ffi::c_int;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use untorn::{File, Map, MapOptions};

use super::managed_stores::{ManagedStore, StoreUse};
use super::mount_files::{self, MountFile, tell_discarded};
use crate::boundary::error::{Failure, Result};
use crate::boundary::log::told;
use crate::posix::state::call_section::{self, Held, enter, lock};
use crate::posix::state::descriptor_table::{MANAGED, SHOWN};
use crate::posix::state::file_owner::{become_owner, is_borrower};
use crate::posix::state::posix_descriptor::{
    Key, check_writable, failure, identity, is_regular, key_of, path_of, system,
};
use crate::posix::state::record_locks::RecordLocks;
use crate::posix::state::report::{about, reported};
use crate::posix::state::settings::commits_on_close;

/// A managed file.
pub(crate) struct Managed {
    device: libc::dev_t,
    /// The file's inode. A file that a transaction creates has that of a stand-in until the commit.
    inode: AtomicU64,
    /// The process that manages it, as a count of forks.
    process: u64,
    /// None: no longer managed.
    pub file: RwLock<Option<File>>,
    /// The store that the program has named for the file. None: the file has a private store.
    store: Mutex<Option<StoreUse>>,
    /// The number of transactions that have changes of the file: it stays managed until these end.
    pub transactions: AtomicUsize,
    /// Descriptors of the file.
    descriptors: Mutex<BTreeSet<c_int>>,
    /// The file's mapping, kept from the first map on: a program that maps the file again whenever it grows gets
    /// the same address.
    pub place: Mutex<Option<Place>>,
    /// Held by calls that use a descriptor's offset.
    pub position: Mutex<()>,
    /// Held by changes that are commits of their own: shared, or alone to undo them.
    pub changing: RwLock<()>,
    /// The program wants uncommitted changes to be committed when the last writer ends.
    pub commit_on_close: AtomicBool,
    /// The program's locks by `fcntl`.
    pub record_locks: RecordLocks,
}

/// The mapping of a file in memory.
pub(crate) struct Place {
    /// All addresses that the mapping may grow to.
    pub reserved: Range<usize>,
    /// Keeps the mapping alive.
    pub map: Map,
}

/// A part of the address space that a map of the program occupies.
pub(crate) struct Window {
    pub addresses: Range<usize>,
    pub file: Arc<Managed>,
    /// The map of which the window shows a part. Windows that were split share one map.
    pub map: Arc<Map>,
}

#[derive(Default)]
pub(crate) struct Table {
    pub files: HashMap<Key, Arc<Managed>>,
    /// The newest last.
    pub windows: Vec<Window>,
    /// Addresses that the program has mapped once more than the kernel knows: several maps of one range of a file had
    /// the same addresses, and the file is no longer managed.
    pub doubled: Vec<Range<usize>>,
    /// Locks that the program has taken by `flock` on files that are not managed, by descriptor.
    pub locks: HashMap<c_int, c_int>,
}

static TABLE: LazyLock<RwLock<Table>> = LazyLock::new(RwLock::default);
/// The number of files in the table, including those of a parent process.
static FILES: AtomicUsize = AtomicUsize::new(0);
/// Held while a file starts or stops being managed. Taken before the table's lock.
static MANAGING: Mutex<()> = Mutex::new(());

/// Held while a file starts or stops being managed, or changes its name.
pub(crate) type Managing = Held<MutexGuard<'static, ()>>;

pub(crate) fn begin_managing() -> Managing {
    lock(&MANAGING)
}

pub(crate) fn read() -> Held<RwLockReadGuard<'static, Table>> {
    Held::take(|| TABLE.read().unwrap_or_else(PoisonError::into_inner))
}

pub(crate) fn write() -> Held<RwLockWriteGuard<'static, Table>> {
    Held::take(|| TABLE.write().unwrap_or_else(PoisonError::into_inner))
}

type ForkLocks = (Managing, Held<RwLockWriteGuard<'static, Table>>, mount_files::TableGuard);

thread_local! {
    static FORK_LOCKS: RefCell<Option<ForkLocks>> = const { RefCell::new(None) };
}

/// Takes all locks before a fork: in the child, no lock is held by a thread that the child does not have.
extern "C" fn before_fork() {
    let locks = (lock(&MANAGING), write(), mount_files::table());
    let _ = FORK_LOCKS.try_with(|slot| *slot.borrow_mut() = Some(locks));
}

extern "C" fn after_fork() {
    let _ = FORK_LOCKS.try_with(|slot| slot.borrow_mut().take());
}

extern "C" fn after_fork_in_child() {
    become_owner();
    after_fork();
}

pub(crate) fn watch_forks() {
    static ONCE: Once = Once::new();
    // SAFETY: no thread calls `fork` while it holds the locks that the handlers take and release.
    ONCE.call_once(|| unsafe {
        call_section::prepare();
        become_owner();
        libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork_in_child));
    });
}

impl Managed {
    /// A file that this process manages from now on.
    pub fn new(key: Key, file: File, store: Option<StoreUse>) -> Managed {
        Managed {
            device: key.0,
            inode: AtomicU64::new(key.1),
            process: untorn_os::process_generation(),
            file: RwLock::new(Some(file)),
            store: Mutex::new(store),
            transactions: AtomicUsize::new(0),
            descriptors: Mutex::default(),
            place: Mutex::new(None),
            position: Mutex::new(()),
            changing: RwLock::new(()),
            commit_on_close: AtomicBool::new(commits_on_close()),
            record_locks: RecordLocks::default(),
        }
    }

    /// Makes one call on the file.
    pub fn with<R>(&self, call: impl FnOnce(&File) -> Result<R>) -> Result<R> {
        if self.is_parents() {
            return Err(Failure::forked());
        }
        let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
        call(file.as_ref().ok_or_else(|| Failure::bad_handle("file"))?)
    }

    /// The file is managed by the parent process; the child cannot use the file.
    pub fn is_parents(&self) -> bool {
        self.process != untorn_os::process_generation() || is_borrower()
    }

    /// Maps a part of the file.
    pub fn map(&self, options: &MapOptions) -> Result<Map> {
        let unused = !read().windows.iter().any(|window| std::ptr::eq(&*window.file, self));
        self.with(|file| {
            let mut place = lock(&self.place);
            let mut map = file.map_with(options);
            if map.is_err() && unused && place.is_some() {
                // The program has no map of the file, so the mapping may move or get a larger place.
                *place = None;
                map = file.map_with(options);
            }
            let map = map?;
            if place.is_none() {
                let (whole, bytes) = (file.map()?, map.address_space()?);
                let start = whole.as_ptr().addr();
                *place = Some(Place { reserved: start..start + bytes as usize, map: whole });
            }
            // A mapping opens the file once more, and closes it: the kernel drops all record locks.
            self.retake_locks()?;
            Ok(map)
        })
    }

    /// Closes the file's store at the end of the process. Maps stay accessible, as other threads may still run.
    pub fn end(&self) -> Result<()> {
        let mut file = self.file.write().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = file.take() else { return Ok(()) };
        let committed = if self.commit_on_close.load(Acquire) {
            file.commit()
        } else {
            tell_if_discarded("exit", &file);
            Ok(())
        };
        match lock(&self.store).take() {
            Some(shared) => {
                // Closes the store if this is its last file.
                drop(file);
                committed?;
                shared.end()
            }
            None => Ok(committed.and(told(|| file.store().close()))?),
        }
    }

    pub fn key(&self) -> Key {
        (self.device, self.inode.load(Acquire))
    }

    /// The named store of the file.
    pub fn shared_store(&self) -> Option<Arc<ManagedStore>> {
        lock(&self.store).as_ref().map(|shared| shared.of().clone())
    }

    /// Ends the use of the named store, after the file was closed or has lost its name.
    pub fn leave_store(&self) -> Result<()> {
        lock(&self.store).take().map_or(Ok(()), StoreUse::end)
    }

    /// The descriptors of the file that are open.
    pub fn open_descriptors(&self) -> Vec<c_int> {
        lock(&self.descriptors).iter().copied().filter(|fd| self.is_of(*fd)).collect()
    }

    /// Takes the program's record locks again, after a descriptor of the file was closed.
    pub fn retake_locks(&self) -> Result<()> {
        if self.record_locks.is_empty() {
            return Ok(());
        }
        let fd = lock(&self.descriptors).iter().copied().find(|fd| self.is_of(*fd));
        fd.map_or(Ok(()), |fd| self.record_locks.retake(fd))
    }

    pub fn reserved(&self) -> Range<usize> {
        lock(&self.place).as_ref().map_or(0..0, |place| place.reserved.clone())
    }

    fn is_of(&self, fd: c_int) -> bool {
        identity(fd) == Some(self.key())
    }
}

/// Whether the table has any file.
pub(crate) fn has_files() -> bool {
    FILES.load(Acquire) > 0
}

/// Whether this process manages any file, or has one on a mount.
pub(crate) fn is_any_managed() -> bool {
    has_files() || mount_files::is_any()
}

/// Whether a descriptor belongs to Untorn itself, and was never opened by the program. If the program closed it,
/// commits would go elsewhere. Takes no lock.
pub(crate) fn is_own(fd: c_int) -> bool {
    (is_any_managed() || SHOWN.is_used()) && untorn_os::is_own_descriptor(fd) && !is_borrower()
}

/// The managed file of a descriptor that is marked.
pub(crate) fn find(fd: c_int) -> Option<Arc<Managed>> {
    if MANAGED.has(fd) { find_marked(fd) } else { None }
}

fn find_marked(fd: c_int) -> Option<Arc<Managed>> {
    let file = identity(fd).and_then(find_by_identity);
    match &file {
        Some(file) => drop(lock(&file.descriptors).insert(fd)),
        // The descriptor was closed by a call that is not renamed, and its number may have another file by now.
        None if !is_borrower() => MANAGED.clear(fd),
        None => {}
    }
    file
}

/// The managed file of this identity.
pub(crate) fn find_by_key(stat: &libc::stat) -> Option<Arc<Managed>> {
    if is_regular(stat) { find_by_identity(key_of(stat)) } else { None }
}

fn find_by_identity(key: Key) -> Option<Arc<Managed>> {
    if has_files() { read().files.get(&key).cloned() } else { None }
}

/// The managed file of a descriptor of any origin. The descriptor is marked from now on.
pub(crate) fn learn(fd: c_int) -> Option<Arc<Managed>> {
    if !has_files() {
        return None;
    }
    let file = identity(fd).and_then(find_by_identity)?;
    note_descriptor(&file, fd).ok()?;
    Some(file)
}

/// Lets `exec` close a descriptor of a managed file, also one of a child: the next program would write to the plain
/// file.
pub(crate) fn close_by_exec(fd: c_int) {
    // SAFETY: takes numbers.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFD);
        if flags >= 0 && flags & libc::FD_CLOEXEC == 0 {
            libc::fcntl(fd, libc::F_SETFD, flags | libc::FD_CLOEXEC);
        }
    }
}

/// Gives a new descriptor of a managed file another number if it got that of a standard stream, which the program had
/// closed: the streams of the C library would write past this library.
pub(crate) fn above_standard(file: &Managed, fd: c_int) -> Result<c_int> {
    if fd > libc::STDERR_FILENO {
        return Ok(fd);
    }
    // SAFETY: takes numbers.
    let moved = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, libc::STDERR_FILENO + 1) };
    if moved < 0 {
        return Err(system("give the managed file a number above those of the standard streams"));
    }
    note_descriptor(file, moved)?;
    MANAGED.clear(fd);
    lock(&file.descriptors).remove(&fd);
    // SAFETY: the caller has just got this descriptor, and nobody else knows it yet.
    unsafe { libc::close(fd) };
    // Closing a descriptor made the kernel drop all record locks.
    file.retake_locks()?;
    Ok(moved)
}

/// Notes that a descriptor is of a managed file. The file stays managed until that descriptor is closed, too.
pub(crate) fn note_descriptor(file: &Managed, fd: c_int) -> Result<()> {
    close_by_exec(fd);
    if file.is_parents() {
        return Ok(());
    }
    if !MANAGED.set(fd) {
        return Err(failure(libc::EMFILE, format!("descriptor {fd}: managed files need smaller numbers")));
    }
    lock(&file.descriptors).insert(fd);
    Ok(())
}

/// Makes a call on the managed file of a descriptor. None: the descriptor is not of a managed file.
pub(crate) fn on_managed<T>(
    call: &str,
    fd: c_int,
    failed: T,
    body: impl FnOnce(&Arc<Managed>) -> Result<T>,
) -> Option<T> {
    if !MANAGED.has(fd) {
        return None;
    }
    let Some(_section) = enter(call) else { return Some(failed) };
    let file = find_marked(fd)?;
    Some(reported(call, failed, || body(&file).map_err(|failure| about(failure, || path_of(fd).ok()))))
}

/// All managed files of this process.
pub(crate) fn all() -> Vec<Arc<Managed>> {
    read().files.values().filter(|file| !file.is_parents()).cloned().collect()
}

/// Whether a file of a named store below a directory is open.
pub(crate) fn is_in_use(dir: &Path) -> bool {
    let is_below = |file: &Arc<Managed>| {
        let store = file.shared_store();
        let path = file.with(|file| Ok(file.path())).ok();
        store.zip(path).is_some_and(|(store, path)| store.dir().join(path).starts_with(dir))
    };
    all().iter().any(is_below)
}

/// Records that the program took or released a lock on a file that is not managed.
pub(crate) fn note_lock(fd: c_int, operation: c_int) {
    match operation & !libc::LOCK_NB {
        libc::LOCK_UN => drop(write().locks.remove(&fd)),
        lock => drop(write().locks.insert(fd, lock)),
    }
}

/// Stops managing a file if its last descriptor and map are gone. **Discards uncommitted changes**, unless the
/// program asked for a commit on close.
pub(crate) fn release_if_unused(managed: &Arc<Managed>, managing: &Managing) -> Result<()> {
    {
        let mut descriptors = lock(&managed.descriptors);
        descriptors.retain(|fd| managed.is_of(*fd));
        if managed.transactions.load(Acquire) > 0 {
            return Ok(());
        }
        let has_writer = is_mapped(managed) || descriptors.iter().any(|fd| check_writable(*fd).is_ok());
        if has_writer || !descriptors.is_empty() {
            drop(descriptors);
            let commits = !has_writer && !managed.is_parents() && managed.commit_on_close.load(Acquire);
            return if commits { managed.with(|file| Ok(file.commit()?)) } else { Ok(()) };
        }
    }
    close_file(managed, managing)
}

/// The file of a descriptor that is about to be closed: managed, on a mount, or neither.
#[derive(Default)]
pub(crate) struct Leaving {
    managed: Option<Arc<Managed>>,
    on_mount: Option<Arc<MountFile>>,
}

impl Leaving {
    /// The file of a descriptor; neither kind if a parent process manages it.
    pub fn of(fd: c_int) -> Leaving {
        Leaving {
            managed: find(fd).filter(|file| !file.is_parents()),
            on_mount: mount_files::find(fd).filter(|file| !file.is_parents()),
        }
    }

    /// Notes that the descriptor no longer belongs to that file.
    pub fn forget(&self, fd: c_int) {
        if self.managed.is_some() {
            MANAGED.clear(fd);
        }
        if let Some(file) = &self.on_mount {
            file.forget(fd);
        }
    }

    /// Releases the file after the descriptor was closed.
    pub fn release(self) -> Result<()> {
        self.managed.map_or(Ok(()), |file| release_if_unused(&file, &begin_managing()))?;
        self.on_mount.map_or(Ok(()), |file| mount_files::release_if_unused(&file))
    }
}

/// Reports that closing a file discards changes, if there are any.
fn tell_if_discarded(call: &str, file: &File) {
    if file.has_changes().unwrap_or(false) {
        tell_discarded(call, &file.path());
    }
}

/// Closes a file's store. Uncommitted changes are discarded, unless the program asked for a commit.
pub(crate) fn close_file(managed: &Arc<Managed>, managing: &Managing) -> Result<()> {
    forget(managed, managing);
    *lock(&managed.place) = None;
    let file = managed.file.write().unwrap_or_else(PoisonError::into_inner).take();
    match file {
        Some(file) if !managed.is_parents() => {
            let commits = managed.commit_on_close.load(Acquire);
            if !commits {
                tell_if_discarded("close", &file);
            }
            file.set_commit_on_close(commits);
            let closed = told(|| file.close());
            let left = managed.leave_store();
            closed?;
            left
        }
        _ => Ok(()),
    }
}

/// Adds a file to the table.
pub(crate) fn insert(file: Arc<Managed>, _managing: &Managing) {
    let mut table = write();
    table.files.insert(file.key(), file);
    FILES.store(table.files.len(), Release);
}

/// Gives a file another inode, because a transaction that created it was committed. `replace` makes its descriptors
/// descriptors of that inode; at each moment, both are known.
pub(crate) fn identify(managed: &Arc<Managed>, inode: libc::ino_t, _managing: &Managing, replace: impl FnOnce()) {
    write().files.insert((managed.device, inode), managed.clone());
    replace();
    let mut table = write();
    table.files.remove(&managed.key());
    managed.inode.store(inode, Release);
}

/// Whether the program has a map of a file.
pub(crate) fn is_mapped(file: &Arc<Managed>) -> bool {
    read().windows.iter().any(|window| Arc::ptr_eq(&window.file, file))
}

/// Takes a file out of the table: its descriptors are ordinary descriptors from now on.
pub(crate) fn forget(managed: &Arc<Managed>, _managing: &Managing) {
    let mut table = write();
    let key = managed.key();
    if table.files.get(&key).is_some_and(|known| Arc::ptr_eq(known, managed)) {
        table.files.remove(&key);
        FILES.store(table.files.len(), Release);
    }
    lock(&managed.descriptors).iter().for_each(|fd| MANAGED.clear(*fd));
}
