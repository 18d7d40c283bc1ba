//! Exported functions: open, close, sync and lock descriptors.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;

use super::io_calls::untorn_fd_ftruncate;
use crate::boundary::error::{Failure, Result, guard};
use crate::posix::files::managed_files::{
    Leaving, Managed, above_standard, begin_managing, find, is_own, learn, note_lock, on_managed,
};
use crate::posix::files::managed_stores::{self, StoreUse, has_store, store_above};
use crate::posix::files::managing::{keep_on_mount, manage};
use crate::posix::files::mount_files::{self, MountFile, on_mount};
use crate::posix::files::name::{Name, recover, set_aside};
use crate::posix::files::own_commits::sync_name;
use crate::posix::files::patience::patiently;
use crate::posix::files::relocation::is_dir_on_mount;
use crate::posix::files::shown_commit::{self, show};
use crate::posix::files::transactions;
use crate::posix::files::windows::map_of;
use crate::posix::state::call_section::{enter, is_inside};
use crate::posix::state::descriptor_table::{COMMITS_WRITES, MANAGED, ON_MOUNT, is_marked};
use crate::posix::state::file_owner::is_borrower;
use crate::posix::state::patterns;
use crate::posix::state::posix_descriptor::{
    check_readable, check_writable, failure, is_regular, lstat, path_at, path_of, refusal, stat,
};
use crate::posix::state::report::{errno, reported, set_errno};
use crate::posix::state::settings;

/// The longest name of a managed file, as the name of its store ends in `.untorn`.
const NAME_BYTES_MAX: usize = libc::NAME_MAX as usize - ".untorn".len();

/// A flag of `open` that names the file, for this opening. No kernel has a flag of this value; a kernel that gets it
/// ignores it.
const O_ATOMIC: c_int = 0o1_000_000_000;

/// Makes a call on the managed file of a descriptor, or on a named file on a mount; refuses a descriptor of another
/// file.
fn on_managed_only(
    name: &str,
    fd: c_int,
    call: impl FnOnce(&Arc<Managed>) -> Result<()>,
    on_mount: impl FnOnce(&Arc<MountFile>) -> Result<()>,
) -> c_int {
    let none = || {
        let text =
            format!("descriptor {fd} is not of a managed file: name the file by untorn_manage() before it is opened");
        Err(failure(libc::EINVAL, text))
    };
    let Some(_section) = enter(name) else { return -1 };
    reported(name, -1, || match (learn(fd), mount_files::learn(fd)) {
        (Some(file), _) => call(&file).map(|()| 0),
        (None, Some(file)) => on_mount(&file).map(|()| 0),
        (None, None) => none(),
    })
}

/// Recovers a file that has a store beside it, before the program reads the file; if another process owns the store, the
/// descriptor shows the last durable commit. A file with a store, and a file that the program has named, is managed from
/// now on if it was opened for writing.
fn adopt(fd: c_int, flags: c_int) -> Result<()> {
    let refuse = |why: &str| Err(refusal(libc::EINVAL, format!("O_ATOMIC: {why}")));
    let atomic = flags & O_ATOMIC != 0;
    if atomic && !stat(fd).as_ref().is_some_and(is_regular) {
        return refuse("only a regular file is all or nothing");
    }
    if learn(fd).is_some_and(|file| !file.is_parents()) || mount_files::learn(fd).is_some_and(|file| !file.is_parents())
    {
        return Ok(());
    }
    let path = match path_of(fd) {
        Ok(path) => path,
        Err(_) if atomic => return refuse("a file without a name has no store"),
        Err(_) => return Ok(()),
    };
    if !has_store(&path) && !is_named(&path, flags) {
        return Ok(());
    }
    if flags & libc::O_ACCMODE != libc::O_RDONLY {
        if !keep_on_mount(fd)? {
            manage(fd)?;
        }
        return Ok(());
    }
    show(fd, &path)
}

/// Whether the program has named the file, by a pattern or by the flags with which it opens the file.
fn is_named(path: &Path, flags: c_int) -> bool {
    flags & O_ATOMIC != 0 || patterns::match_path(path)
}

/// Recovers a file that has a store beside it and that this process does not have open.
pub(crate) fn recover_unmanaged(path: &Path) -> Result<()> {
    let found = untorn::offline::inspect(path)?;
    if found.clean && found.quarantined.is_empty() { Ok(()) } else { recover(path) }
}

/// Prepares the creation of a name: deals with the store of an older file of that name, and refuses a name that is
/// too long for the name of its store.
fn clear_name(path: &Path, flags: c_int) -> Result<()> {
    if lstat(path).is_some() {
        return Ok(());
    }
    if has_store(path) {
        set_aside(path)?;
    }
    if transactions::is_any_open()
        && let Ok(name) = Name::of(path)
        && is_named(&name.path, flags)
    {
        transactions::check_name_on_mount(&name)?;
    }
    let name_bytes = path.file_name().map_or(0, OsStr::len);
    let fits = name_bytes <= NAME_BYTES_MAX || name_bytes > libc::NAME_MAX as usize;
    let has_private_store =
        || is_named(path, flags) && Name::of(path).is_ok_and(|name| store_above(&name.path).is_none());
    if !fits && flags & libc::O_ACCMODE != libc::O_RDONLY && has_private_store() && !is_beside_mount_files(path) {
        return Err(refusal(
            libc::ENAMETOOLONG,
            format!(
                "{}: the name of a managed file has at most {NAME_BYTES_MAX} bytes, because its store is called \
                 <name>.untorn. Nothing was created",
                path.display()
            ),
        ));
    }
    Ok(())
}

/// Whether a file of this path is, or would be, on an Untorn mount.
fn is_beside_mount_files(path: &Path) -> bool {
    path.parent().is_some_and(|dir| is_dir_on_mount(if dir.as_os_str().is_empty() { Path::new(".") } else { dir }))
}

/// Whether the file is a named file on a mount and each write to it is to be a commit. This library makes these
/// commits, because the kernel cannot sync changes that belong to a transaction.
fn takes_sync(path: Option<&Path>, flags: c_int) -> bool {
    // `O_SYNC` has this bit, too.
    if flags & libc::O_DSYNC == 0 || flags & libc::O_ACCMODE == libc::O_RDONLY {
        return false;
    }
    let whole = path.and_then(|path| std::fs::canonicalize(path).or_else(|_| std::path::absolute(path)).ok());
    whole.is_some_and(|path| is_named(&path, flags) && !has_store(&path) && is_beside_mount_files(&path))
}

/// The first part of an opening.
enum Begun {
    /// The descriptor of a file that a transaction creates.
    Created(c_int),
    Ordinary(Opening),
}

/// The use of the named store of the path, if it has one, while the path is opened.
struct Opening(Option<StoreUse>);

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            // No fork happens while the store closes.
            let _managing = begin_managing();
            drop(shared);
        }
    }
}

/// Opens the named store of a path before the path is looked up: recovery may make the file or remove it.
fn begin_in_store(path: Option<&Path>, flags: c_int, mode: libc::mode_t) -> Result<Begun> {
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_CREAT != 0;
    let path = path.filter(|_| writes && managed_stores::is_any()).map(Name::of);
    let Some(Ok(name)) = path else { return Ok(Begun::Ordinary(Opening(None))) };
    let store = store_above(&name.path).filter(|_| name.file.is_none() && is_named(&name.path, flags));
    let Some(store) = store else { return Ok(Begun::Ordinary(Opening(None))) };
    if flags & libc::O_CREAT != 0
        && let Some(fd) = transactions::create(&store, &name.path, flags, mode)?
    {
        return Ok(Begun::Created(fd));
    }
    let begin_use = || {
        let _managing = begin_managing();
        store.begin_use()
    };
    patiently(begin_use).map(|shared| Begun::Ordinary(Opening(Some(shared))))
}

/// Closes a descriptor after a failed call, and keeps the call's error.
fn give_up(fd: c_int) -> c_int {
    let failed = errno();
    untorn_fd_close(fd);
    set_errno(failed);
    -1
}

/// Gives a managed file that was just opened a number above those of the standard streams.
fn keep_above_standard(fd: c_int) -> c_int {
    let Some(file) = (fd <= libc::STDERR_FILENO).then(|| find(fd)).flatten() else { return fd };
    match reported("open", -1, || above_standard(&file, fd)) {
        -1 => give_up(fd),
        moved => moved,
    }
}

/// Opens a file: the common part of `open` and its relatives.
///
/// # Safety
/// `path` is NULL or ends in NUL.
pub(crate) unsafe fn open_path(dir: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    let open = |flags| {
        // SAFETY: the caller's promise.
        unsafe { libc::openat(dir, path, flags & !O_ATOMIC, mode) }
    };
    if is_borrower() {
        return open(flags);
    }
    let Some(section) = enter("open") else { return -1 };
    // SAFETY: the caller's promise.
    let named = unsafe { path_at(dir, path) };
    if let Some(path) = named.as_deref().filter(|_| flags & libc::O_CREAT != 0)
        && reported("open", -1, || patiently(|| clear_name(path, flags)).map(|()| 0)) < 0
    {
        return -1;
    }
    let begun = match reported("open", None, || begin_in_store(named.as_deref(), flags, mode).map(Some)) {
        None => return -1,
        Some(Begun::Created(fd)) => return fd,
        Some(Begun::Ordinary(shared)) => shared,
    };
    let is_new = flags & libc::O_CREAT != 0
        && settings::commits_writes()
        && named.as_deref().is_some_and(|path| lstat(path).is_none());
    let commits_writes = takes_sync(named.as_deref(), flags);
    let wanted = flags;
    let flags = if commits_writes { flags & !libc::O_SYNC } else { flags };
    let truncate = flags & libc::O_TRUNC != 0 && flags & libc::O_ACCMODE != libc::O_RDONLY;
    let fd = open(if truncate { flags & !libc::O_TRUNC } else { flags });
    if fd < 0 || flags & libc::O_PATH != 0 || flags & O_ATOMIC == 0 && !stat(fd).as_ref().is_some_and(is_regular) {
        return fd;
    }
    crate::boundary::log::start();
    let adopted = reported("open", -1, || adopt(fd, flags).map(|()| 0));
    drop(begun);
    drop(section);
    if adopted < 0 {
        return give_up(fd);
    }
    let fd = keep_above_standard(fd);
    if fd < 0 {
        return fd;
    }
    let fd = match commits_writes {
        false => fd,
        true if ON_MOUNT.has(fd) => {
            COMMITS_WRITES.set(fd);
            fd
        }
        // The file is not on the mount that its path led to; open it again, now with the sync flags.
        true => {
            untorn_fd_close(fd);
            let again = open(wanted & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC));
            if again >= 0 && reported("open", -1, || adopt(again, wanted).map(|()| 0)) < 0 {
                return give_up(again);
            }
            again
        }
    };
    if fd < 0 {
        return fd;
    }
    if truncate && untorn_fd_ftruncate(fd, 0) != 0 || is_new && !settle_name(fd) {
        return give_up(fd);
    }
    fd
}

/// Makes the new name of a managed file durable, if each change is to be. False: that failed.
fn settle_name(fd: c_int) -> bool {
    let is_managed = MANAGED.has(fd) || ON_MOUNT.has(fd);
    !is_managed || !settings::commits_writes() || reported("open", false, || sync_name(&path_of(fd)?).map(|()| true))
}

/// `open`. A file that the program has named (untorn_manage(), the environment's UNTORN_MANAGE, the flag O_ATOMIC), or
/// that has a store beside it (`<path>.untorn`), is recovered if needed. If it is opened for writing, it is managed from now on, and
/// O_TRUNC is an uncommitted change. If it is opened for reading only while another process has it open, the descriptor
/// is of a copy without a name, as of the last durable commit. Other files are opened by the C library's `open`.
///
/// # Safety
/// `path` is NULL or ends in NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { open_path(libc::AT_FDCWD, path, flags, mode) }
}

/// `openat`: as untorn_fd_open().
///
/// # Safety
/// As for untorn_fd_open().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_openat(dir: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { open_path(dir, path, flags, mode) }
}

/// `creat`: as untorn_fd_open().
///
/// # Safety
/// As for untorn_fd_open().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_creat(path: *const c_char, mode: libc::mode_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { open_path(libc::AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode) }
}

/// Manages a temporary file that was just made, if the program has named it.
fn made(fd: c_int, flags: c_int) -> c_int {
    let adopt = || adopt(fd, libc::O_RDWR | flags & O_ATOMIC).map(|()| 0);
    if fd >= 0 && !is_borrower() && reported("mkstemp", -1, adopt) < 0 {
        return give_up(fd);
    }
    if fd >= 0 && !settle_name(fd) { give_up(fd) } else { keep_above_standard(fd) }
}

/// `mkstemp`: as untorn_fd_open().
///
/// # Safety
/// As for `mkstemp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_mkstemp(template: *mut c_char) -> c_int {
    // SAFETY: the caller's promise.
    made(unsafe { libc::mkstemp(template) }, 0)
}

/// `mkostemp`: as untorn_fd_open().
///
/// # Safety
/// As for `mkostemp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_mkostemp(template: *mut c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    made(unsafe { libc::mkostemp(template, flags & !O_ATOMIC) }, flags)
}

/// `mkstemps`: as untorn_fd_open().
///
/// # Safety
/// As for `mkstemps`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_mkstemps(template: *mut c_char, suffix: c_int) -> c_int {
    // SAFETY: the caller's promise.
    made(unsafe { libc::mkstemps(template, suffix) }, 0)
}

/// `mkostemps`: as untorn_fd_open().
///
/// # Safety
/// As for `mkostemps`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    made(unsafe { libc::mkostemps(template, suffix, flags & !O_ATOMIC) }, flags)
}

/// `close`. For a descriptor that belongs to Untorn itself: EBADF. When the last descriptor and map of a managed file
/// are gone, uncommitted changes are DISCARDED (unless untorn_fd_commit_on_close() asked for a commit), and the file
/// becomes a plain file.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_close(fd: c_int) -> c_int {
    if is_own(fd) {
        set_errno(libc::EBADF);
        return -1;
    }
    let section = if is_marked(fd) { enter("close").map(Some) } else { Some(None) };
    let Some(_section) = section else { return -1 };
    let leaving = Leaving::of(fd);
    leaving.forget(fd);
    shown_commit::forget(fd);
    // SAFETY: closes the descriptor that the caller passed to be closed.
    let closed = unsafe { libc::close(fd) };
    reported("close", -1, || leaving.release().map(|()| closed))
}

fn commit(file: &Managed) -> Result<c_int> {
    file.with(|file| Ok(file.commit()?)).map(|()| 0)
}

fn commit_on_mount(call: &str, fd: c_int) -> Option<c_int> {
    on_mount(call, fd, -1, |file| file.commit().map(|()| 0))
}

/// `fsync`. Commits all changes of a managed file, made through any descriptor or map, durable on return.
/// Also waits for commits that MS_ASYNC started.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_fsync(fd: c_int) -> c_int {
    let done = on_managed("fsync", fd, -1, |file| commit(file)).or_else(|| commit_on_mount("fsync", fd));
    // SAFETY: takes a number.
    done.unwrap_or_else(|| unsafe { libc::fsync(fd) })
}

/// `fdatasync`: as untorn_fd_fsync().
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_fdatasync(fd: c_int) -> c_int {
    let done = on_managed("fdatasync", fd, -1, |file| commit(file)).or_else(|| commit_on_mount("fdatasync", fd));
    // SAFETY: takes a number.
    done.unwrap_or_else(|| unsafe { libc::fdatasync(fd) })
}

/// `flock`. A managed file is already locked by its process, so the call succeeds. A lock that was taken
/// before the file became managed is replaced by Untorn's lock.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_flock(fd: c_int, operation: c_int) -> c_int {
    on_managed("flock", fd, -1, |file| file.with(|_| Ok(0))).unwrap_or_else(|| {
        // SAFETY: takes numbers.
        let done = unsafe { libc::flock(fd, operation) };
        // Not in a handler that interrupted a call: it would wait for that call's locks.
        if done == 0 && !is_inside() {
            note_lock(fd, operation);
        }
        done
    })
}

/// Adds a pattern of files that are to be managed, from their opening for writing on. A pattern without a slash is
/// matched against the file's name (`*.db`), any other pattern against its whole path; `*`, `?` and `[…]` are as for
/// `fnmatch`. The environment variable UNTORN_MANAGE has more patterns, separated by colons. Returns 0, or -1:
/// EFAULT, EINVAL, ENOENT.
///
/// # Safety
/// `pattern` is NULL or ends in NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_manage(pattern: *const c_char) -> c_int {
    guard(-1, || {
        if pattern.is_null() {
            return Err(Failure::null("the pattern"));
        }
        // SAFETY: not NULL; the rest is the caller's promise.
        let pattern = OsStr::from_bytes(unsafe { CStr::from_ptr(pattern) }.to_bytes());
        if pattern.is_empty() {
            return Err(failure(libc::EINVAL, "the pattern is empty"));
        }
        patterns::add(pattern.as_bytes()).map(|()| 0)
    })
}

/// Manages a regular file from now on, before any map of the file. The descriptor must be open for reading and
/// writing. Returns 0 (also if the file is already managed), or -1: EINVAL, EBADF, and the errors of
/// untorn_mmap().
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_manage(fd: c_int) -> c_int {
    let Some(_section) = enter("untorn_fd_manage") else { return -1 };
    reported("untorn_fd_manage", -1, || {
        let stat = stat(fd).ok_or_else(|| Failure::bad_handle("descriptor"))?;
        if !is_regular(&stat) {
            return Err(failure(libc::EINVAL, "not a regular file"));
        }
        check_readable(fd)?;
        check_writable(fd)?;
        if !keep_on_mount(fd)? {
            manage(fd)?;
        }
        Ok(0)
    })
}

/// Discards all uncommitted changes of a managed file, also in memory: the file is as of its last commit.
/// Returns 0, or -1: EINVAL if the descriptor is not of a managed file, ECHILD in a forked child …
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_rollback(fd: c_int) -> c_int {
    let roll_back = |file: &Arc<Managed>| file.with(|file| Ok(file.rollback()?));
    on_managed_only("untorn_fd_rollback", fd, roll_back, |file| file.roll_back())
}

/// Sets whether uncommitted changes of a managed file are committed (`on` not 0) when its last descriptor for writing and
/// its last map are gone, or discarded (0, the default) with the last descriptor and map. Returns 0, or -1 with EINVAL or
/// ECHILD.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_commit_on_close(fd: c_int, on: c_int) -> c_int {
    let managed = |file: &Arc<Managed>| {
        file.commit_on_close.store(on != 0, Release);
        file.with(|_| Ok(()))
    };
    on_managed_only("untorn_fd_commit_on_close", fd, managed, |file| {
        file.commit_on_close.store(on != 0, Release);
        if file.is_parents() { Err(Failure::forked()) } else { Ok(()) }
    })
}

/// Reclaims memory: drops pages that were stored to and committed. NO THREAD may store to the file's maps
/// during this call: a store could be lost. Returns 0, or -1: EINVAL if the descriptor is not of a managed
/// file or the file is not mapped, ECHILD, EIO …
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_reclaim(fd: c_int) -> c_int {
    let managed = |file: &Arc<Managed>| match map_of(file) {
        Some(map) => Ok(map.reclaim()?),
        None => Err(failure(libc::EINVAL, "the file is not mapped")),
    };
    // On a mount the kernel reclaims memory by itself.
    on_managed_only("untorn_fd_reclaim", fd, managed, |_| Ok(()))
}

/// Returns whether a descriptor is of a managed file. 1: it is; 0: it is not; -1: EBADF, not an open descriptor.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_is_managed(fd: c_int) -> c_int {
    let Some(_section) = enter("untorn_fd_is_managed") else { return -1 };
    guard(-1, || match stat(fd) {
        Some(_) => Ok((learn(fd).is_some() || mount_files::learn(fd).is_some()).into()),
        None => Err(Failure::bad_handle("descriptor")),
    })
}
