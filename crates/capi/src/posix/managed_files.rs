//! The managed files of this process, and their maps.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ffi::c_int;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use untorn::{File, Map, MapOptions};

use super::posix_descriptor::{Key, failure, is_regular, stat};
use crate::error::{Failure, Result, guard};

/// A managed file.
pub(super) struct Managed {
    key: Key,
    /// Which process manages it, as forks are counted.
    process: u64,
    /// None: no longer managed.
    file: RwLock<Option<File>>,
    /// Descriptors of the file that calls were made on.
    descriptors: Mutex<BTreeSet<c_int>>,
    /// The file's mapping, kept from the first map on: a program that maps the file again whenever it grows gets
    /// the same address.
    place: Mutex<Option<Place>>,
    /// Held by calls that use a descriptor's offset.
    pub position: Mutex<()>,
}

/// The mapping of a file in memory.
struct Place {
    /// All addresses that the mapping may grow to.
    reserved: Range<usize>,
    /// Keeps the mapping alive.
    _map: Map,
}

/// A part of the address space that the program has mapped.
pub(super) struct Window {
    pub addresses: Range<usize>,
    pub file: Arc<Managed>,
    /// The map that the window shows a part of. Windows that were split share one map.
    pub map: Arc<Map>,
}

#[derive(Default)]
pub(super) struct Table {
    files: HashMap<Key, Arc<Managed>>,
    /// The newest last.
    pub windows: Vec<Window>,
    /// Locks that the program has taken by `flock` on files that are not managed, by descriptor.
    locks: HashMap<c_int, c_int>,
}

static TABLE: LazyLock<RwLock<Table>> = LazyLock::new(RwLock::default);
/// The number of files in the table, including those of a parent process.
static FILES: AtomicUsize = AtomicUsize::new(0);
/// Held while a file starts or stops being managed. Taken before the table's lock.
static MANAGING: Mutex<()> = Mutex::new(());

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn read() -> RwLockReadGuard<'static, Table> {
    TABLE.read().unwrap_or_else(PoisonError::into_inner)
}

fn write() -> RwLockWriteGuard<'static, Table> {
    TABLE.write().unwrap_or_else(PoisonError::into_inner)
}

type ForkLocks = (MutexGuard<'static, ()>, RwLockWriteGuard<'static, Table>);

thread_local! {
    static FORK_LOCKS: RefCell<Option<ForkLocks>> = const { RefCell::new(None) };
}

/// Takes all locks before a fork: in the child, no lock is held by a thread that the child does not have.
extern "C" fn before_fork() {
    let locks = (lock(&MANAGING), write());
    let _ = FORK_LOCKS.try_with(|slot| *slot.borrow_mut() = Some(locks));
}

extern "C" fn after_fork() {
    let _ = FORK_LOCKS.try_with(|slot| slot.borrow_mut().take());
}

fn watch_forks() {
    static ONCE: Once = Once::new();
    // SAFETY: no thread calls `fork` while it holds the locks that the handlers take and release.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork));
    });
}

impl Managed {
    /// Makes one call on the file.
    pub fn with<R>(&self, call: impl FnOnce(&File) -> Result<R>) -> Result<R> {
        if self.is_parents() {
            return Err(Failure::forked());
        }
        let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
        call(file.as_ref().ok_or_else(|| Failure::bad_handle("file"))?)
    }

    /// The file was managed by the parent process, before a fork; the child cannot use the file.
    pub fn is_parents(&self) -> bool {
        self.process != untorn_os::process_generation()
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
                *place = Some(Place { reserved: start..start + bytes as usize, _map: whole });
            }
            Ok(map)
        })
    }

    fn reserved(&self) -> Range<usize> {
        lock(&self.place).as_ref().map_or(0..0, |place| place.reserved.clone())
    }

    fn is_of(&self, fd: c_int) -> bool {
        stat(fd).is_some_and(|stat| (stat.st_dev, stat.st_ino) == self.key)
    }
}

/// The managed file of a descriptor. From now on the file stays managed until this descriptor is closed, too.
pub(super) fn find(fd: c_int) -> Option<Arc<Managed>> {
    if FILES.load(Acquire) == 0 {
        return None;
    }
    let stat = stat(fd).filter(is_regular)?;
    let file = read().files.get(&(stat.st_dev, stat.st_ino))?.clone();
    lock(&file.descriptors).insert(fd);
    Some(file)
}

/// Makes a call on the managed file of a descriptor. None: the descriptor is not of a managed file.
pub(super) fn on_managed<T>(fd: c_int, failed: T, call: impl FnOnce(&Arc<Managed>) -> Result<T>) -> Option<T> {
    let file = find(fd)?;
    Some(guard(failed, || call(&file)))
}

/// The path of a descriptor's file.
pub(super) fn path_of(fd: c_int) -> Result<PathBuf> {
    let gone = || failure(libc::ENOENT, "the descriptor's file has no name any more");
    let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).map_err(|_| gone())?;
    let named = std::fs::symlink_metadata(&path).map_err(|_| gone())?;
    match stat(fd) {
        Some(stat) if (stat.st_dev, stat.st_ino) == (named.dev(), named.ino()) => Ok(path),
        _ => Err(gone()),
    }
}

/// The managed file of a descriptor of a regular file, which is managed from now on if it was not before.
pub(super) fn manage(fd: c_int) -> Result<Arc<Managed>> {
    watch_forks();
    let _managing = lock(&MANAGING);
    if let Some(file) = find(fd).filter(|file| !file.is_parents()) {
        return Ok(file);
    }
    let path = path_of(fd)?;
    // The program's own lock would make Untorn's fail; from now on Untorn holds the lock.
    let lock = write().locks.remove(&fd);
    if lock.is_some() {
        // SAFETY: takes numbers.
        unsafe { libc::flock(fd, libc::LOCK_UN) };
    }
    let file = File::open(&path).inspect_err(|_| {
        if let Some(lock) = lock {
            // SAFETY: as above.
            unsafe { libc::flock(fd, lock | libc::LOCK_NB) };
            write().locks.insert(fd, lock);
        }
    })?;
    // While recovery waited for another owner, that owner may have replaced the file.
    if path_of(fd)? != path {
        return Err(failure(libc::ESTALE, format!("{} was replaced meanwhile", path.display())));
    }
    let key = stat(fd).map(|stat| (stat.st_dev, stat.st_ino)).ok_or_else(|| failure(libc::EBADF, "no descriptor"))?;
    let managed = Arc::new(Managed {
        key,
        process: untorn_os::process_generation(),
        file: RwLock::new(Some(file)),
        descriptors: Mutex::new(BTreeSet::from([fd])),
        place: Mutex::new(None),
        position: Mutex::new(()),
    });
    let mut table = write();
    table.files.insert(key, managed.clone());
    FILES.store(table.files.len(), Release);
    Ok(managed)
}

/// Records that the program took or released a lock on a file that is not managed.
pub(super) fn note_lock(fd: c_int, operation: c_int) {
    match operation & !libc::LOCK_NB {
        libc::LOCK_UN => drop(write().locks.remove(&fd)),
        lock => drop(write().locks.insert(fd, lock)),
    }
}

/// Stops managing a file that was managed only to be mapped, and could not be mapped.
pub(super) fn undo(managed: &Arc<Managed>) {
    lock(&managed.descriptors).clear();
    // The file has no changes, so closing it loses nothing.
    let _ = release_if_unused(managed);
}

/// Stops managing a file if its last descriptor and map are gone. **Discards uncommitted changes**, unless the
/// program asked for a commit on close.
pub(super) fn release_if_unused(managed: &Arc<Managed>) -> Result<()> {
    let managing = lock(&MANAGING);
    release_if_unused_locked(managed, &managing)
}

fn release_if_unused_locked(managed: &Arc<Managed>, _managing: &MutexGuard<'_, ()>) -> Result<()> {
    {
        let mut descriptors = lock(&managed.descriptors);
        descriptors.retain(|fd| managed.is_of(*fd));
        let mut table = write();
        if !descriptors.is_empty() || table.windows.iter().any(|window| Arc::ptr_eq(&window.file, managed)) {
            return Ok(());
        }
        if table.files.get(&managed.key).is_some_and(|known| Arc::ptr_eq(known, managed)) {
            table.files.remove(&managed.key);
            FILES.store(table.files.len(), Release);
        }
    }
    *lock(&managed.place) = None;
    let file = managed.file.write().unwrap_or_else(PoisonError::into_inner).take();
    match file {
        Some(file) if !managed.is_parents() => Ok(file.close()?),
        _ => Ok(()),
    }
}

/// Ends the newest windows that show a range of addresses, and stops managing their files if these are unused.
/// False: no window shows the range.
pub(super) fn unmap(addresses: Range<usize>) -> Result<bool> {
    let managing = lock(&MANAGING);
    let taken = take_windows(addresses);
    let found = !taken.is_empty();
    let mut result = Ok(found);
    for Window { file, map, .. } in taken {
        let unmapped = match Arc::into_inner(map) {
            Some(map) if !file.is_parents() => map.unmap().map_err(Failure::from),
            _ => Ok(()),
        };
        result =
            result.and_then(|found| unmapped.and_then(|()| release_if_unused_locked(&file, &managing)).map(|()| found));
    }
    result
}

/// The addresses that two ranges share.
fn overlap(a: &Range<usize>, b: &Range<usize>) -> Option<Range<usize>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (both.start < both.end).then_some(both)
}

/// The managed files that are mapped in a range of addresses.
pub(super) fn mapped_in(addresses: &Range<usize>) -> Vec<Arc<Managed>> {
    let mut files: Vec<Arc<Managed>> = Vec::new();
    if FILES.load(Acquire) > 0 {
        for window in read().windows.iter().filter(|window| overlap(&window.addresses, addresses).is_some()) {
            if !files.iter().any(|file| Arc::ptr_eq(file, &window.file)) {
                files.push(window.file.clone());
            }
        }
    }
    files
}

/// Whether a range of addresses overlaps the reserved addresses of a managed file.
pub(super) fn is_reserved(addresses: &Range<usize>) -> bool {
    FILES.load(Acquire) > 0 && read().files.values().any(|file| overlap(&file.reserved(), addresses).is_some())
}

/// A map of a file, if there is one.
pub(super) fn map_of(file: &Arc<Managed>) -> Option<Arc<Map>> {
    read().windows.iter().find(|window| Arc::ptr_eq(&window.file, file)).map(|window| window.map.clone())
}

/// Adds the window of a new map.
pub(super) fn add(window: Window) {
    write().windows.push(window);
}

/// Subtracts a range from several others.
fn subtract(ranges: Vec<Range<usize>>, hole: &Range<usize>) -> Vec<Range<usize>> {
    let outside = |r: Range<usize>| match overlap(&r, hole) {
        Some(both) => [r.start..both.start, both.end..r.end],
        None => [r, 0..0],
    };
    ranges.into_iter().flat_map(outside).filter(|r| !r.is_empty()).collect()
}

/// Takes a range of addresses out of the windows: each address out of the newest window that shows it. Returns
/// the parts taken out.
fn take_windows(addresses: Range<usize>) -> Vec<Window> {
    let mut table = write();
    let (mut left, mut kept, mut taken) = (vec![addresses], Vec::new(), Vec::new());
    for window in std::mem::take(&mut table.windows).into_iter().rev() {
        let part = |addresses| Window { addresses, file: window.file.clone(), map: window.map.clone() };
        let here: Vec<_> = left.iter().filter_map(|range| overlap(range, &window.addresses)).collect();
        let stays = here.iter().fold(vec![window.addresses.clone()], subtract);
        kept.extend(stays.into_iter().map(part));
        taken.extend(here.into_iter().map(part));
        left = subtract(left, &window.addresses);
    }
    kept.reverse();
    table.windows = kept;
    taken
}

/// Extends the window that shows exactly this range, within the reserved addresses of its file.
pub(super) fn extend(addresses: &Range<usize>, end: usize) -> Result<()> {
    let mut table = write();
    let window = table.windows.iter_mut().rev().find(|window| window.addresses == *addresses);
    let window = window.ok_or_else(|| failure(libc::EFAULT, "no map of a managed file has exactly these addresses"))?;
    if end > window.file.reserved().end {
        return Err(failure(libc::ENOMEM, "the map would outgrow the address space that is reserved for its file"));
    }
    window.addresses.end = end;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_subtracted() {
        let left = |hole: Range<usize>| subtract(vec![0..10, 20..30], &hole);
        assert_eq!(left(5..25), [0..5, 25..30]);
        assert_eq!(left(3..4), [0..3, 4..10, 20..30]);
        assert_eq!(left(10..20), [0..10, 20..30]);
        assert!(left(0..30).is_empty());
        assert_eq!(overlap(&(0..5), &(5..9)), None);
    }
}
