//! Exported functions: calls on paths, which change names or read metadata by name.

use std::ffi::{OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libc::off_t;

use super::io_calls::untorn_fd_ftruncate;
use super::open_calls::{open_path, untorn_fd_close, untorn_fd_fsync};
use crate::boundary::error::Result;
use crate::posix::files::managed_files::{begin_managing, find_by_key, is_any_managed, is_in_use};
use crate::posix::files::managed_stores::has_store;
use crate::posix::files::mount_files;
use crate::posix::files::name::Name;
use crate::posix::files::own_commits::name_removed;
use crate::posix::files::relocation;
use crate::posix::files::transactions::{change_names, check_name_on_mount, is_given};
use crate::posix::state::call_section::enter;
use crate::posix::state::file_owner::is_borrower;
use crate::posix::state::patterns;
use crate::posix::state::posix_descriptor::{lstat, path_at, refusal};
use crate::posix::state::report::{errno, reported, set_errno};

/// The name that a path refers to, if Untorn may have to handle it. Errors are left to the system's call.
fn name(path: Option<PathBuf>) -> Option<Name> {
    Name::of(&path?).ok()
}

/// Renames. None: Untorn handles neither name, and the system's call is to be made.
///
/// # Safety
/// Both paths are NULL or end in NUL.
unsafe fn rename_managed(
    call: &str,
    (from_dir, from): (c_int, *const c_char),
    (to_dir, to): (c_int, *const c_char),
    flags: c_uint,
) -> Option<c_int> {
    if is_borrower() {
        return None;
    }
    let Some(_section) = enter(call) else { return Some(-1) };
    // SAFETY: the caller's promise.
    let (from_path, to_path) = unsafe { (path_at(from_dir, from), path_at(to_dir, to)) };
    let managing = begin_managing();
    let (old, new) = (name(from_path)?, name(to_path)?);
    if old.is_directory() && is_in_use(&old.path) {
        let text = format!("{}: files below it are open, and their store knows them by this name", old.path.display());
        return Some(reported(call, -1, || Err(refusal(libc::EBUSY, text))));
    }
    if old.is_ordinary() && new.is_ordinary() {
        return None;
    }
    Some(reported(call, -1, || {
        if flags & libc::RENAME_WHITEOUT != 0 {
            return Err(refusal(libc::ENOTSUP, format!("RENAME_WHITEOUT of the managed file {}", old.path.display())));
        }
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        let rename = || {
            // SAFETY: the caller's promise.
            unsafe { libc::renameat2(from_dir, from, to_dir, to, flags) }
        };
        match (old.shared.as_ref().or(new.shared.as_ref()), relocation::is_on_mount(&old, &new)) {
            (Some(store), _) => change_names(store, &managing, |changes| changes.rename(&old, &new, flags)),
            (None, true) => check_name_on_mount(&old)
                .and_then(|()| check_name_on_mount(&new))
                .and_then(|()| relocation::rename_on_mount(&old, &new, exchange, rename, &managing)),
            (None, false) => relocation::rename(&old, &new, exchange, rename, &managing),
        }
        .map(|()| 0)
    }))
}

/// `rename`. A managed file is committed, and stays managed under its new name; a crash leaves each of the two names
/// with its old or its new file, whole. A managed file that is replaced becomes a file without a name, as in POSIX.
///
/// # Safety
/// As for `rename`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_path_rename(from: *const c_char, to: *const c_char) -> c_int {
    let here = libc::AT_FDCWD;
    // SAFETY: the caller's promise.
    unsafe { rename_managed("rename", (here, from), (here, to), 0).unwrap_or_else(|| libc::rename(from, to)) }
}

/// `renameat`: as untorn_path_rename().
///
/// # Safety
/// As for `renameat`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_path_renameat(
    from_dir: c_int,
    from: *const c_char,
    to_dir: c_int,
    to: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        rename_managed("renameat", (from_dir, from), (to_dir, to), 0)
            .unwrap_or_else(|| libc::renameat(from_dir, from, to_dir, to))
    }
}

/// `renameat2`: as untorn_path_rename(). With RENAME_EXCHANGE, both files are committed and stay managed.
///
/// # Safety
/// As for `renameat2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_path_renameat2(
    from_dir: c_int,
    from: *const c_char,
    to_dir: c_int,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        rename_managed("renameat2", (from_dir, from), (to_dir, to), flags)
            .unwrap_or_else(|| libc::renameat2(from_dir, from, to_dir, to, flags))
    }
}

/// Unlinks a file.
fn unlink(call: &str, path: impl Fn() -> Option<PathBuf>, unlink: impl Fn() -> c_int) -> c_int {
    let done = unlink_managed(call, &path, &unlink).unwrap_or_else(unlink);
    name_removed(call, path, done)
}

/// Unlinks a file. None: the system's call is to be made.
fn unlink_managed(call: &str, path: impl FnOnce() -> Option<PathBuf>, unlink: impl FnOnce() -> c_int) -> Option<c_int> {
    if is_borrower() {
        return None;
    }
    let Some(_section) = enter(call) else { return Some(-1) };
    let managing = begin_managing();
    let name = name(path())?;
    if let Some(store) = name.shared.as_ref().filter(|_| !name.is_missing() || is_given(&name.path)) {
        return Some(reported(call, -1, || {
            change_names(store, &managing, |changes| changes.unlink(&name)).map(|()| 0)
        }));
    }
    if name.is_missing() || name.is_ordinary() {
        return None;
    }
    if name.file.is_none() && !has_store(&name.path) {
        // A name on a mount, or one that nobody has opened yet.
        let checked = reported(call, -1, || check_name_on_mount(&name).map(|()| 0));
        return (checked < 0).then_some(checked);
    }
    Some(reported(call, -1, || relocation::unlink(&name, unlink, &managing).map(|()| 0)))
}

/// `unlink`. Also removes the store of the file. A managed file that is open becomes a file without a name, as in
/// POSIX.
///
/// # Safety
/// As for `unlink`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_path_unlink(path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let remove = || unsafe { libc::unlink(path) };
    // SAFETY: the caller's promise.
    unlink("unlink", || unsafe { path_at(libc::AT_FDCWD, path) }, remove)
}

/// `unlinkat`: as untorn_path_unlink(), or untorn_path_rmdir().
///
/// # Safety
/// As for `unlinkat`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_path_unlinkat(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let remove = || unsafe { libc::unlinkat(dir, path, flags) };
    // SAFETY: the caller's promise.
    let at = || unsafe { path_at(dir, path) };
    if flags & libc::AT_REMOVEDIR != 0 {
        return remove_dir(at, remove);
    }
    unlink("unlinkat", at, remove)
}

/// `remove`: as untorn_path_unlink(), or untorn_path_rmdir().
///
/// # Safety
/// As for `remove`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_path_remove(path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let (remove, at) = (|| unsafe { libc::remove(path) }, || unsafe { path_at(libc::AT_FDCWD, path) });
    let Some(section) = enter("remove") else { return -1 };
    let is_dir = at().is_some_and(|path| path.is_dir());
    drop(section);
    if is_dir {
        return remove_dir(at, remove);
    }
    unlink("remove", at, remove)
}

/// `rmdir`. Stores of files that no longer exist do not prevent the removal of a directory.
///
/// # Safety
/// As for `rmdir`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_path_rmdir(path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let remove = || unsafe { libc::rmdir(path) };
    // SAFETY: the caller's promise.
    remove_dir(|| unsafe { path_at(libc::AT_FDCWD, path) }, remove)
}

/// Removes a directory; if it is not empty, removes closed stores of files that no longer exist, and tries again.
fn remove_dir(path: impl FnOnce() -> Option<PathBuf>, remove: impl Fn() -> c_int) -> c_int {
    let done = remove();
    if done == 0 || !matches!(errno(), libc::ENOTEMPTY | libc::EEXIST) || is_borrower() {
        return done;
    }
    let refused = errno();
    let Some(_section) = enter("rmdir") else { return -1 };
    let entries = path().and_then(|path| std::fs::read_dir(path).ok()).into_iter().flatten().flatten();
    let mut removed = false;
    for entry in entries {
        let store = entry.path();
        let file = store.as_os_str().as_bytes().strip_suffix(b".untorn").map(|file| Path::new(OsStr::from_bytes(file)));
        if let Some(file) = file.filter(|file| file.file_name().is_some_and(|name| !name.is_empty())) {
            removed |= reported("rmdir", false, || Ok(untorn::__private::remove_unneeded(file)?));
        }
    }
    if removed {
        return remove();
    }
    set_errno(refused);
    -1
}

/// The `stat` of the file that `linkat` gives a further name.
///
/// # Safety
/// `path` is NULL or ends in NUL.
unsafe fn stat_of_linked(dir: c_int, path: *const c_char, flags: c_int) -> Option<libc::stat> {
    let follow = if flags & libc::AT_SYMLINK_FOLLOW != 0 { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
    // SAFETY: zeros are a valid `stat`, and the kernel fills it.
    let mut stat = unsafe { std::mem::zeroed() };
    // SAFETY: the caller's promise; `stat` is writable.
    let done = unsafe { libc::fstatat(dir, path, &raw mut stat, follow | flags & libc::AT_EMPTY_PATH) };
    (done == 0).then_some(stat)
}

/// Refuses a second name of a managed file, and makes a file durable that gets a managed name. None: the system's call is
/// to be made.
///
/// # Safety
/// The paths are NULL or end in NUL.
unsafe fn link_managed(
    call: &str,
    (from_dir, from): (c_int, *const c_char),
    (to_dir, to): (c_int, *const c_char),
    flags: c_int,
    link: impl FnOnce() -> c_int,
) -> Option<c_int> {
    if is_borrower() {
        return None;
    }
    let Some(_section) = enter(call) else { return Some(-1) };
    let managing = begin_managing();
    // SAFETY: the caller's promise.
    let (from_path, to_path, stat) =
        unsafe { (path_at(from_dir, from), path_at(to_dir, to), stat_of_linked(from_dir, from, flags)?) };
    let is_stored =
        |name: &Name| name.file.is_some() || has_store(&name.path) || name.shared.is_some() && !name.is_missing();
    let stored = name(from_path).filter(is_stored);
    if stored.is_some() || find_by_key(&stat).is_some() {
        return Some(reported(call, -1, || {
            let path = stored.map_or_else(String::new, |name| format!("{}: ", name.path.display()));
            Err(refusal(libc::EPERM, format!("{path}a managed file has one name: rename it instead")))
        }));
    }
    let target = name(to_path)?;
    if !relocation::links_to_managed_name(&stat, &target) {
        return None;
    }
    // SAFETY: the caller's promise.
    let open = || unsafe { relocation::open_linked(from_dir, from, flags) };
    Some(reported(call, -1, || relocation::link(&stat, open()?, &target, link, &managing).map(|()| 0)))
}

/// `link`. A managed file has one name: EPERM. A file that gets the name of one to be managed is flushed before.
///
/// # Safety
/// As for `link`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_path_link(from: *const c_char, to: *const c_char) -> c_int {
    let here = libc::AT_FDCWD;
    // SAFETY: the caller's promise.
    let link = || unsafe { libc::link(from, to) };
    // SAFETY: the caller's promise.
    unsafe { link_managed("link", (here, from), (here, to), 0, link) }.unwrap_or_else(link)
}

/// `linkat`: as untorn_path_link(). A file without a name (O_TMPFILE) that gets a name to be managed, and that is still
/// open for writing, is managed from now on.
///
/// # Safety
/// As for `linkat`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_path_linkat(
    from_dir: c_int,
    from: *const c_char,
    to_dir: c_int,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let link = || unsafe { libc::linkat(from_dir, from, to_dir, to, flags) };
    // SAFETY: the caller's promise.
    unsafe { link_managed("linkat", (from_dir, from), (to_dir, to), flags, link) }.unwrap_or_else(link)
}

/// `truncate`. For an open managed file, the new size is an uncommitted change. For a file that is to be managed and
/// is not open, the new size is a commit by itself.
///
/// # Safety
/// As for `truncate`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_path_truncate(path: *const c_char, size: off_t) -> c_int {
    let Some(section) = enter("truncate") else { return -1 };
    // SAFETY: the caller's promise.
    let real = unsafe { path_at(libc::AT_FDCWD, path) }.and_then(|path| std::fs::canonicalize(path).ok());
    let found = real.as_deref().and_then(lstat);
    let is_open = found.as_ref().is_some_and(|found| find_by_key(found).is_some() || mount_files::knows(found));
    let ours = is_open || real.is_some_and(|path| has_store(&path) || patterns::match_path(&path));
    drop(section);
    if !ours || is_borrower() {
        // SAFETY: the caller's promise.
        return unsafe { libc::truncate(path, size) };
    }
    // SAFETY: the caller's promise.
    let fd = unsafe { open_path(libc::AT_FDCWD, path, libc::O_RDWR | libc::O_CLOEXEC, 0) };
    if fd < 0 {
        return -1;
    }
    let mut done = untorn_fd_ftruncate(fd, size);
    if done == 0 && !is_open {
        done = untorn_fd_fsync(fd);
    }
    let failed = errno();
    let closed = untorn_fd_close(fd);
    if done != 0 {
        set_errno(failed);
        return done;
    }
    closed
}

/// Replaces the size in the system's `stat` of a managed file by its current size, uncommitted changes included.
fn current_size(call: &str, found: &libc::stat, size: &mut dyn FnMut(off_t)) -> c_int {
    if !is_any_managed() {
        return 0;
    }
    let Some(_section) = enter(call) else { return -1 };
    let Some(file) = find_by_key(found).filter(|file| !file.is_parents()) else { return 0 };
    reported(call, -1, || {
        size(file.with(|file| Ok(file.len()?))? as off_t);
        Ok(0)
    })
}

/// # Safety
/// `to` is NULL or points to a `struct stat`, which the system has filled if `done` is 0.
unsafe fn with_current_size(call: &str, done: c_int, to: *mut libc::stat) -> c_int {
    if done != 0 {
        return done;
    }
    // SAFETY: the system has filled it.
    match unsafe { to.as_mut() } {
        Some(to) => {
            let found = *to;
            current_size(call, &found, &mut |size| to.st_size = size)
        }
        None => done,
    }
}

/// `stat`. The size of a managed file includes uncommitted changes.
///
/// # Safety
/// As for `stat`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_path_stat(path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with_current_size("stat", libc::stat(path, to), to) }
}

/// `lstat`: as untorn_path_stat().
///
/// # Safety
/// As for `lstat`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_path_lstat(path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with_current_size("lstat", libc::lstat(path, to), to) }
}

/// `fstatat`: as untorn_path_stat().
///
/// # Safety
/// As for `fstatat`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_path_fstatat(
    dir: c_int,
    path: *const c_char,
    to: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with_current_size("fstatat", libc::fstatat(dir, path, to, flags), to) }
}

/// `statx`: as untorn_path_stat().
///
/// # Safety
/// As for `statx`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_path_statx(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    to: *mut libc::statx,
) -> c_int {
    // SAFETY: the caller's promise.
    let done = unsafe { libc::statx(dir, path, flags, mask, to) };
    // SAFETY: the system has filled it.
    let Some(to) = (unsafe { to.as_mut() }).filter(|_| done == 0) else { return done };
    // SAFETY: zeros are a valid `stat`.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    found.st_dev = libc::makedev(to.stx_dev_major, to.stx_dev_minor);
    found.st_ino = to.stx_ino;
    found.st_mode = to.stx_mode.into();
    current_size("statx", &found, &mut |size| to.stx_size = size as u64)
}

/// Refuses to set times of a managed file, because Untorn notices changes by other programs by these times. None: the
/// system's call is to be made.
fn refuse_times(call: &str, path: impl FnOnce() -> Option<PathBuf>) -> Option<c_int> {
    let Some(_section) = enter(call) else { return Some(-1) };
    let found = std::fs::canonicalize(path()?).ok().as_deref().and_then(lstat)?;
    find_by_key(&found)?;
    Some(reported(call, -1, || -> Result<c_int> {
        Err(refusal(libc::ENOTSUP, "the times of a managed file are Untorn's while the file is open"))
    }))
}

/// `utimensat`. On an open managed file: ENOTSUP.
///
/// # Safety
/// As for `utimensat`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_path_utimensat(
    dir: c_int,
    path: *const c_char,
    times: *const libc::timespec,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        refuse_times("utimensat", || path_at(dir, path)).unwrap_or_else(|| libc::utimensat(dir, path, times, flags))
    }
}

/// `utimes`. On an open managed file: ENOTSUP.
///
/// # Safety
/// As for `utimes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_path_utimes(path: *const c_char, times: *const libc::timeval) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { refuse_times("utimes", || path_at(libc::AT_FDCWD, path)).unwrap_or_else(|| libc::utimes(path, times)) }
}

/// `utime`. On an open managed file: ENOTSUP.
///
/// # Safety
/// As for `utime`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_path_utime(path: *const c_char, times: *const c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        refuse_times("utime", || path_at(libc::AT_FDCWD, path)).unwrap_or_else(|| libc::utime(path, times.cast()))
    }
}
