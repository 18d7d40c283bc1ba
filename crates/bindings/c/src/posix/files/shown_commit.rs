//! Files that another process changes, opened for reading only: the descriptor shows one commit.
//!
//! The program gets a copy of the file as of the last durable commit, without a name, in the place of the data file,
//! which the owner overwrites at checkpoints. So all calls on the descriptor work, also those that are not renamed, in
//! forked children and in other programs. The program gets a newer commit when it begins to read again: at `lseek` to
//! the beginning of the file, and when it takes a lock by `fcntl`.

use std::collections::{BTreeSet, HashMap};
use std::ffi::c_int;
use std::fs::{File, FileTimes, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex};

use untorn::reader::SnapshotFile;
use untorn::{Error, Reader};

use super::managed_files::{Managing, begin_managing, watch_forks};
use super::managed_stores::{has_store, store_of};
use super::name::recover;
use crate::boundary::error::{Failure, Result};
use crate::posix::state::call_section::{enter, lock};
use crate::posix::state::descriptor_table::{MANAGED, SHOWN};
use crate::posix::state::file_owner::is_borrower;
use crate::posix::state::own_descriptors::keep_descriptors_high;
use crate::posix::state::patterns;
use crate::posix::state::posix_descriptor::{Key, check_writable, failure, key_of, seek, stat, system};

/// The view that a descriptor has of a file.
#[derive(Clone)]
struct Shown {
    /// The identity of the copy, or of the data file.
    key: Key,
    is_copy: bool,
    path: PathBuf,
    /// None: there was no store.
    commit: Option<Commit>,
}

/// A store, the file's name in it, and the LSN of the commit that is shown.
type Commit = (Reader, PathBuf, u64);

/// Used only while no file can start or stop being managed, so that no fork happens meanwhile.
static TABLE: LazyLock<Mutex<HashMap<c_int, Shown>>> = LazyLock::new(Mutex::default);

/// Prepares a file that was opened for reading only and that may have a store. A file that another process has open is
/// shown as of its last durable commit; a file that nobody has open is recovered.
pub(crate) fn show(fd: c_int, path: &Path) -> Result<()> {
    let (commit, is_copy) = match is_in_use(path)? {
        true => (show_commit(fd, path)?, true),
        false if has_store(path) => (plain_commit(path), false),
        false => (None, false),
    };
    keep_descriptors_high();
    watch_forks();
    let managing = begin_managing();
    if let Some(key) = stat(fd).as_ref().map(key_of) {
        note(fd, Shown { key, is_copy, path: path.to_owned(), commit }, &managing);
    }
    Ok(())
}

fn note(fd: c_int, shown: Shown, _managing: &Managing) {
    if SHOWN.set(fd) {
        lock(&TABLE).insert(fd, shown);
    }
}

/// Notes that a descriptor is a copy of another one.
pub(crate) fn copied(fd: c_int, copy: c_int) {
    if SHOWN.has(fd) {
        let managing = begin_managing();
        let shown = lock(&TABLE).get(&fd).cloned();
        shown.into_iter().for_each(|shown| note(copy, shown, &managing));
    }
}

/// Notes that a descriptor was closed.
pub(crate) fn forget(fd: c_int) {
    if SHOWN.has(fd) {
        let _managing = begin_managing();
        SHOWN.clear(fd);
        lock(&TABLE).remove(&fd);
    }
}

/// Shows a newer commit, if there is one. If that fails, the descriptor keeps its view.
pub(crate) fn refresh(call: &str, fd: c_int) {
    if !SHOWN.has(fd) || is_borrower() {
        return;
    }
    let Some(_section) = enter(call) else { return };
    let managing = begin_managing();
    let Some(mut shown) = lock(&TABLE).get(&fd).cloned() else { return };
    let is_same = stat(fd).as_ref().map(key_of) == Some(shown.key) && !MANAGED.has(fd) && check_writable(fd).is_err();
    if !is_same {
        // The descriptor was closed by a call that is not renamed, such as `fclose`, and its number is another's by now.
        SHOWN.clear(fd);
        lock(&TABLE).remove(&fd);
        return;
    }
    match newer(fd, &shown) {
        Ok(None) => {}
        Ok(Some(commit)) => {
            (shown.commit, shown.is_copy) = (Some(commit), true);
            shown.key = stat(fd).as_ref().map_or(shown.key, key_of);
            note(fd, shown, &managing);
        }
        Err(failure) => tracing::debug!(
            id = "untorn.posix.no_newer_commit",
            path = %shown.path.display(),
            error = failure.message,
            "no newer commit is shown"
        ),
    }
}

/// Shows the last commit, if the descriptor does not show it.
fn newer(fd: c_int, shown: &Shown) -> Result<Option<Commit>> {
    let (reader, name, lsn) = match &shown.commit {
        Some(commit) => commit.clone(),
        None if has_store(&shown.path) || is_of_used_store(&shown.path) => {
            let (reader, name) = Reader::open_containing(&shown.path)?;
            (reader, name, u64::MAX)
        }
        None => return Ok(None),
    };
    let snapshot = reader.snapshot()?;
    // An owner may write to the data file at any time.
    let may_change = || !shown.is_copy && untorn::__private::has_owner(reader.path()).unwrap_or(true);
    if snapshot.lsn() == lsn && !may_change() {
        return Ok(None);
    }
    put_copy(fd, &snapshot.open(&name)?, &shown.path)?;
    Ok(Some((reader, name, snapshot.lsn())))
}

/// Whether a process has the file's store open. A store that a crash left is recovered first.
fn is_in_use(path: &Path) -> Result<bool> {
    if !has_store(path) {
        // Files of an open store that this process has closed are plain.
        let is_own = store_of(path).is_some_and(|store| {
            let _managing = begin_managing();
            store.is_open()
        });
        return Ok(!is_own && is_of_used_store(path));
    }
    match is_plain(path) {
        Ok(true) => return Ok(false),
        Ok(false) if !untorn::__private::has_owner(path)? => {}
        Ok(false) | Err(Error::Busy { .. }) => return Ok(true),
        Err(e) => return Err(e.into()),
    }
    match recover(path) {
        Err(Failure { errno: libc::EBUSY, .. }) => Ok(true),
        done => done.map(|()| false),
    }
}

/// Whether the program has named a file that belongs to the store of a directory, and a process has the store open or
/// did not close it.
fn is_of_used_store(path: &Path) -> bool {
    if !patterns::match_path(path) {
        return false;
    }
    let Some(top) = path.ancestors().skip(1).find(|dir| dir.join(".untorn").is_dir()) else { return false };
    is_plain(top).is_ok_and(|is_plain| !is_plain)
}

/// Whether nobody has a store open, and all its commits are in the data files.
fn is_plain(of: &Path) -> untorn::Result<bool> {
    /// The stores of which this process has read a whole log.
    static PLAIN: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let was_plain = lock(&PLAIN).contains(of);
    let is_plain = untorn::__private::is_store_plain(of, was_plain)?;
    if is_plain && !was_plain {
        lock(&PLAIN).insert(of.to_owned());
    }
    Ok(is_plain)
}

/// The commit that a plain file shows.
fn plain_commit(path: &Path) -> Option<Commit> {
    let (reader, name) = Reader::open_containing(path).ok()?;
    let lsn = reader.snapshot().ok()?.lsn();
    Some((reader, name, lsn))
}

fn show_commit(fd: c_int, path: &Path) -> Result<Option<Commit>> {
    let (reader, name) = Reader::open_containing(path)?;
    let snapshot = reader.snapshot()?;
    let from = match snapshot.open(&name) {
        // Not a file of the store, although it lies in it.
        Err(e @ (Error::Invalid { .. } | Error::Unsupported { .. })) if !has_store(path) => {
            tracing::debug!(id = "untorn.posix.opened_as_is", error = %e, "opened as it is");
            return Ok(None);
        }
        opened => opened?,
    };
    put_copy(fd, &from, path)?;
    let lsn = snapshot.lsn();
    Ok(Some((reader, name, lsn)))
}

/// Puts a copy of a commit in the place of the file of a descriptor, at the same offset.
fn put_copy(fd: c_int, from: &SnapshotFile, path: &Path) -> Result<()> {
    let copy = copy_of(from, path)?;
    let io = |e: io::Error| Failure::from(Error::io("copy a commit of", path, e));
    // The program must not be able to change the copy.
    let shown = File::open(format!("/proc/self/fd/{}", copy.as_raw_fd())).map_err(io)?;
    if let Some(data) = from.data_file()?.and_then(|data| data.metadata().ok()) {
        let times = data.modified().map(|modified| FileTimes::new().set_modified(modified));
        let _ = times.and_then(|times| copy.set_times(times));
    }
    let _ = copy.set_permissions(Permissions::from_mode(from.mode()? & 0o777));
    seek(shown.as_raw_fd(), seek(fd, 0, libc::SEEK_CUR)?, libc::SEEK_SET)?;
    // SAFETY: takes numbers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    let flags = if flags & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
    // SAFETY: takes numbers; the descriptor shows a file of the same name afterwards.
    match unsafe { libc::dup3(shown.as_raw_fd(), fd, flags) } {
        -1 => Err(system("show a commit")),
        _ => Ok(()),
    }
}

/// Copies a file to a new file without a name: on its own file system, where blocks can be shared, if this user may
/// write there; otherwise in memory.
fn copy_of(from: &SnapshotFile, path: &Path) -> Result<File> {
    let beside = path.parent().map_or_else(|| PathBuf::from("."), Path::to_owned);
    let options = || OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE).open(beside);
    if let Ok(to) = options() {
        match from.copy_to(&to, &mut |_| {}) {
            Err(Error::NoSpace { .. }) => {}
            done => return done.map(|_| to).map_err(Failure::from),
        }
    }
    // SAFETY: the name ends in NUL.
    let fd = unsafe { libc::memfd_create(c"untorn".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(system("make memory for a copy"));
    }
    // SAFETY: was just made, and belongs to nobody else.
    let to = unsafe { File::from_raw_fd(fd) };
    from.copy_to(&to, &mut |_| {}).map_err(|e| match e {
        Error::NoSpace { .. } => failure(libc::ENOMEM, format!("{}: there is no room for a copy", path.display())),
        e => e.into(),
    })?;
    Ok(to)
}
