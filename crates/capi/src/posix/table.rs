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

use super::{Key, failure, is_regular, stat};
use crate::error::{Failure, Result};

/// A managed file.
pub(super) struct Managed {
    key: Key,
    /// Which process manages it, as forks are counted.
    process: u64,
    /// None: it is managed no more.
    file: RwLock<Option<File>>,
    /// Descriptors that calls have come through.
    descriptors: Mutex<BTreeSet<c_int>>,
    /// Its mapping, from the first map of it on: programs that map a file anew whenever it grows find it
    /// in its place.
    place: Mutex<Option<Place>>,
    /// Held by calls that use a descriptor's offset.
    pub position: Mutex<()>,
}

/// Where a file is in memory.
struct Place {
    /// Everything that the mapping may take up.
    reserved: Range<usize>,
    /// Keeps the mapping.
    _map: Map,
}

/// A part of the address space that the program has mapped.
pub(super) struct Window {
    pub addresses: Range<usize>,
    pub file: Arc<Managed>,
    /// What it shows, with its neighbours if it was cut.
    pub map: Arc<Map>,
}

#[derive(Default)]
pub(super) struct Table {
    files: HashMap<Key, Arc<Managed>>,
    /// The newest last.
    pub windows: Vec<Window>,
    /// Locks that the program took by `flock` on files that are not managed, by descriptor.
    locks: HashMap<c_int, c_int>,
}

static TABLE: LazyLock<RwLock<Table>> = LazyLock::new(RwLock::default);
/// How many files are in the table, also those of a parent.
static FILES: AtomicUsize = AtomicUsize::new(0);
/// Held while a file becomes managed, or ceases to be. Comes before the table.
static TURN: Mutex<()> = Mutex::new(());

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn read() -> RwLockReadGuard<'static, Table> {
    TABLE.read().unwrap_or_else(PoisonError::into_inner)
}

fn write() -> RwLockWriteGuard<'static, Table> {
    TABLE.write().unwrap_or_else(PoisonError::into_inner)
}

type Held = (MutexGuard<'static, ()>, RwLockWriteGuard<'static, Table>);

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// A child must not inherit the table locked by a thread that it does not inherit.
extern "C" fn before_fork() {
    let held = (lock(&TURN), write());
    let _ = HELD.try_with(|slot| *slot.borrow_mut() = Some(held));
}

extern "C" fn after_fork() {
    let _ = HELD.try_with(|slot| slot.borrow_mut().take());
}

fn watch_forks() {
    static ONCE: Once = Once::new();
    // SAFETY: the handlers lock and unlock what nobody holds while calling `fork`.
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

    /// In a forked child, its parent's files are of no use.
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
                // Nobody sees if the mapping gets another place, or a larger one.
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

/// The managed file that a descriptor is of. Whoever asks has seen the descriptor, which counts from now on.
pub(super) fn find(fd: c_int) -> Option<Arc<Managed>> {
    if FILES.load(Acquire) == 0 {
        return None;
    }
    let stat = stat(fd).filter(is_regular)?;
    let file = read().files.get(&(stat.st_dev, stat.st_ino))?.clone();
    lock(&file.descriptors).insert(fd);
    Some(file)
}

/// Where a descriptor's file is.
pub(super) fn path_of(fd: c_int) -> Result<PathBuf> {
    let gone = || failure(libc::ENOENT, "the descriptor's file has no name any more");
    let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).map_err(|_| gone())?;
    let named = std::fs::symlink_metadata(&path).map_err(|_| gone())?;
    match stat(fd) {
        Some(stat) if (stat.st_dev, stat.st_ino) == (named.dev(), named.ino()) => Ok(path),
        _ => Err(gone()),
    }
}

/// The same as `find`, for a descriptor of a regular file, which is managed from now on.
pub(super) fn manage(fd: c_int) -> Result<Arc<Managed>> {
    watch_forks();
    let _turn = lock(&TURN);
    if let Some(file) = find(fd).filter(|file| !file.is_parents()) {
        return Ok(file);
    }
    let path = path_of(fd)?;
    // A lock of the program's own would keep Untorn out; from now on Untorn holds one.
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
    // Recovery may have waited for another owner, who put another file there.
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

/// Remembers a lock that the program took on a file that is not managed, or that it has none any more.
pub(super) fn note_lock(fd: c_int, operation: c_int) {
    match operation & !libc::LOCK_NB {
        libc::LOCK_UN => drop(write().locks.remove(&fd)),
        lock => drop(write().locks.insert(fd, lock)),
    }
}

/// Lets go of a file that could not be mapped after it had become managed for that.
pub(super) fn undo(managed: &Arc<Managed>) {
    lock(&managed.descriptors).clear();
    // It has no changes.
    let _ = let_go(managed);
}

/// Lets go of a file if its last descriptor and map are gone. **Discards what is uncommitted**, unless the
/// program wished otherwise.
pub(super) fn let_go(managed: &Arc<Managed>) -> Result<()> {
    let turn = lock(&TURN);
    let_go_in_turn(managed, &turn)
}

fn let_go_in_turn(managed: &Arc<Managed>, _turn: &MutexGuard<'_, ()>) -> Result<()> {
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

/// Ends the newest windows that show a range of addresses, and lets go of their files. False: none does.
pub(super) fn unmap(addresses: Range<usize>) -> Result<bool> {
    let turn = lock(&TURN);
    let cut = cut(addresses);
    let found = !cut.is_empty();
    let mut result = Ok(found);
    for Window { file, map, .. } in cut {
        let unmapped = match Arc::into_inner(map) {
            Some(map) if !file.is_parents() => map.unmap().map_err(Failure::from),
            _ => Ok(()),
        };
        result = result.and_then(|found| unmapped.and_then(|()| let_go_in_turn(&file, &turn)).map(|()| found));
    }
    result
}

fn meet(a: &Range<usize>, b: &Range<usize>) -> Option<Range<usize>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (both.start < both.end).then_some(both)
}

/// The files that are mapped in a range of addresses; empty: none is, and the range is not Untorn's.
pub(super) fn mapped_in(addresses: &Range<usize>) -> Vec<Arc<Managed>> {
    let mut files: Vec<Arc<Managed>> = Vec::new();
    if FILES.load(Acquire) > 0 {
        for window in read().windows.iter().filter(|window| meet(&window.addresses, addresses).is_some()) {
            if !files.iter().any(|file| Arc::ptr_eq(file, &window.file)) {
                files.push(window.file.clone());
            }
        }
    }
    files
}

/// A range of addresses touches what some file's mapping reserved.
pub(super) fn is_reserved(addresses: &Range<usize>) -> bool {
    FILES.load(Acquire) > 0 && read().files.values().any(|file| meet(&file.reserved(), addresses).is_some())
}

/// One of a file's maps.
pub(super) fn map_of(file: &Arc<Managed>) -> Option<Arc<Map>> {
    read().windows.iter().find(|window| Arc::ptr_eq(&window.file, file)).map(|window| window.map.clone())
}

/// A new map of a part of a file.
pub(super) fn add(window: Window) {
    write().windows.push(window);
}

/// What is left of ranges outside of another one.
fn without(ranges: Vec<Range<usize>>, hole: &Range<usize>) -> Vec<Range<usize>> {
    let outside = |r: Range<usize>| match meet(&r, hole) {
        Some(both) => [r.start..both.start, both.end..r.end],
        None => [r, 0..0],
    };
    ranges.into_iter().flat_map(outside).filter(|r| !r.is_empty()).collect()
}

/// Takes a range of addresses out of the windows: each address out of the newest that shows it. Returns
/// what was taken.
fn cut(addresses: Range<usize>) -> Vec<Window> {
    let mut table = write();
    let (mut left, mut kept, mut taken) = (vec![addresses], Vec::new(), Vec::new());
    for window in std::mem::take(&mut table.windows).into_iter().rev() {
        let part = |addresses| Window { addresses, file: window.file.clone(), map: window.map.clone() };
        let here: Vec<_> = left.iter().filter_map(|range| meet(range, &window.addresses)).collect();
        let stays = here.iter().fold(vec![window.addresses.clone()], without);
        kept.extend(stays.into_iter().map(part));
        taken.extend(here.into_iter().map(part));
        left = without(left, &window.addresses);
    }
    kept.reverse();
    table.windows = kept;
    taken
}

/// Makes the window that shows exactly this range longer, as far as its file's reserved addresses go.
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
    fn ranges_are_cut() {
        let cut = |hole: Range<usize>| without(vec![0..10, 20..30], &hole);
        assert_eq!(cut(5..25), [0..5, 25..30]);
        assert_eq!(cut(3..4), [0..3, 4..10, 20..30]);
        assert_eq!(cut(10..20), [0..10, 20..30]);
        assert!(cut(0..30).is_empty());
        assert_eq!(meet(&(0..5), &(5..9)), None);
    }
}
