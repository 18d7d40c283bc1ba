//! Exported functions: open, close, sync and lock descriptors.

use std::ffi::{CStr, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::io_calls::untorn_fd_ftruncate;
use super::managed_files::{Managed, find, manage, map_of, note_lock, on_managed, path_of, release_if_unused};
use super::posix_descriptor::{check_readable, check_writable, failure, is_regular, stat, system};
use crate::error::{Failure, Result, guard};

/// Makes a call on the managed file of a descriptor; a descriptor of another file is refused.
fn on_managed_only(fd: c_int, call: impl FnOnce(&Arc<Managed>) -> Result<()>) -> c_int {
    let none = || Err(failure(libc::EINVAL, format!("descriptor {fd} is not of a managed file: map the file first")));
    guard(-1, || match find(fd) {
        Some(file) => call(&file).map(|()| 0),
        None => none(),
    })
}

/// Whether a file has a private store beside it.
fn has_store(path: &Path) -> bool {
    let mut store = path.as_os_str().to_owned();
    store.push(".untorn");
    PathBuf::from(store).is_dir()
}

/// Recovers a file that has a store beside it, before the program reads the file. A file opened for writing is
/// managed from now on.
fn adopt(fd: c_int, flags: c_int) -> Result<()> {
    if find(fd).is_some_and(|file| !file.is_parents()) {
        return Ok(());
    }
    let Ok(path) = path_of(fd) else { return Ok(()) };
    if !has_store(&path) {
        return Ok(());
    }
    if flags & libc::O_ACCMODE != libc::O_RDONLY {
        return manage(fd).map(|_| ());
    }
    if !untorn::offline::inspect(&path)?.clean {
        untorn::offline::open(&path, &Default::default(), &|_, _| ())?.close()?;
    }
    Ok(())
}

/// `open`. A file that has a store beside it (`<path>.untorn`) is recovered if needed. If the file is opened
/// for writing, it is managed from now on, and O_TRUNC is an uncommitted change. Other files are opened by
/// the C library's `open`.
///
/// # Safety
/// `path` is NULL or ends in NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    let truncate = flags & libc::O_TRUNC != 0 && flags & libc::O_ACCMODE != libc::O_RDONLY;
    let without = if truncate { flags & !libc::O_TRUNC } else { flags };
    // SAFETY: the caller's promise.
    let fd = unsafe { libc::open(path, without, mode) };
    if fd < 0 || flags & libc::O_PATH != 0 || !stat(fd).as_ref().is_some_and(is_regular) {
        return fd;
    }
    let opened = guard(-1, || {
        crate::log::start();
        adopt(fd, flags)?;
        if truncate && untorn_fd_ftruncate(fd, 0) != 0 {
            // SAFETY: `open` has just accepted the path, so the path ends in NUL.
            let path = unsafe { CStr::from_ptr(path) };
            return Err(system(&format!("truncate {}", path.to_string_lossy())));
        }
        Ok(fd)
    });
    if opened < 0 {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        untorn_fd_close(fd);
        // SAFETY: each thread has an `errno` of its own, which is valid while the thread runs.
        unsafe { *libc::__errno_location() = errno };
    }
    opened
}

/// `close`. When the last descriptor and map of a managed file are gone, uncommitted changes are DISCARDED
/// (unless untorn_fd_commit_on_close() asked for a commit), and the file becomes a plain file.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_close(fd: c_int) -> c_int {
    let file = find(fd);
    // SAFETY: closes the descriptor that the caller passed to be closed.
    let closed = unsafe { libc::close(fd) };
    match file {
        Some(file) if !file.is_parents() => {
            if guard(-1, || release_if_unused(&file).map(|()| 0)) < 0 {
                -1
            } else {
                closed
            }
        }
        _ => closed,
    }
}

fn commit(file: &Managed) -> Result<c_int> {
    file.with(|file| Ok(file.commit()?)).map(|()| 0)
}

/// `fsync`. Commits all changes of a managed file, made through any descriptor or map, durable on return.
/// Also waits for commits that MS_ASYNC started.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_fsync(fd: c_int) -> c_int {
    // SAFETY: takes a number.
    on_managed(fd, -1, |file| commit(file)).unwrap_or_else(|| unsafe { libc::fsync(fd) })
}

/// `fdatasync`: as untorn_fd_fsync().
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_fdatasync(fd: c_int) -> c_int {
    // SAFETY: takes a number.
    on_managed(fd, -1, |file| commit(file)).unwrap_or_else(|| unsafe { libc::fdatasync(fd) })
}

/// `flock`. A managed file is already locked by its process, so the call succeeds. A lock that was taken
/// before the file became managed is replaced by Untorn's lock.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_flock(fd: c_int, operation: c_int) -> c_int {
    on_managed(fd, -1, |file| file.with(|_| Ok(0))).unwrap_or_else(|| {
        // SAFETY: takes numbers.
        let done = unsafe { libc::flock(fd, operation) };
        if done == 0 {
            note_lock(fd, operation);
        }
        done
    })
}

/// Manages a regular file from now on, before any map of the file. The descriptor must be open for reading and
/// writing. Returns 0 (also if the file is already managed), or -1: EINVAL, EBADF, and the errors of
/// untorn_mmap().
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_manage(fd: c_int) -> c_int {
    guard(-1, || {
        let stat = stat(fd).ok_or_else(|| Failure::bad_handle("descriptor"))?;
        if !is_regular(&stat) {
            return Err(failure(libc::EINVAL, "not a regular file"));
        }
        check_readable(fd)?;
        check_writable(fd)?;
        manage(fd).map(|_| 0)
    })
}

/// Discards all uncommitted changes of a managed file, also in memory: the file is as of its last commit.
/// Returns 0, or -1: EINVAL if the descriptor is not of a managed file, ECHILD in a forked child …
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_rollback(fd: c_int) -> c_int {
    on_managed_only(fd, |file| file.with(|file| Ok(file.rollback()?)))
}

/// Sets what happens to uncommitted changes when the last of a managed file's descriptors and maps is gone:
/// they are committed (`on` not 0), or discarded (0, the default). Returns 0, or -1 with EINVAL or ECHILD.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_commit_on_close(fd: c_int, on: c_int) -> c_int {
    on_managed_only(fd, |file| {
        file.with(|file| {
            file.set_commit_on_close(on != 0);
            Ok(())
        })
    })
}

/// Reclaims memory: drops pages that were stored to and committed. NO THREAD may store to the file's maps
/// during this call: a store could be lost. Returns 0, or -1: EINVAL if the descriptor is not of a managed
/// file or the file is not mapped, ECHILD, EIO …
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_reclaim(fd: c_int) -> c_int {
    on_managed_only(fd, |file| match map_of(file) {
        Some(map) => Ok(map.reclaim()?),
        None => Err(failure(libc::EINVAL, "the file is not mapped")),
    })
}

/// Tells whether a descriptor is of a managed file. Returns 1: it is; 0: it is not; -1: EBADF, not an open
/// descriptor.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_is_managed(fd: c_int) -> c_int {
    guard(-1, || match stat(fd) {
        Some(_) => Ok(find(fd).is_some().into()),
        None => Err(Failure::bad_handle("descriptor")),
    })
}
