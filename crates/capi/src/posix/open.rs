//! Exported functions: descriptors of managed files begin, are committed, and end.

use std::ffi::{CStr, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::data::untorn_fd_ftruncate;
use super::table::{Managed, find, let_go, manage, map_of, note_lock, path_of};
use super::{check_readable, check_writable, failure, is_regular, stat, system};
use crate::error::{Failure, Result, guard};

/// Makes a call on the managed file that a descriptor is of. None: it is of no managed file.
pub(super) fn on_managed<T>(fd: c_int, failed: T, call: impl FnOnce(&Arc<Managed>) -> Result<T>) -> Option<T> {
    let file = find(fd)?;
    Some(guard(failed, || call(&file)))
}

/// The same for calls that only managed files have.
fn on_managed_only(fd: c_int, call: impl FnOnce(&Arc<Managed>) -> Result<()>) -> c_int {
    let none = || Err(failure(libc::EINVAL, format!("descriptor {fd} is not one of a managed file: map it first")));
    guard(-1, || match find(fd) {
        Some(file) => call(&file).map(|()| 0),
        None => none(),
    })
}

/// Whether a lone file has a store beside it.
fn has_store(path: &Path) -> bool {
    let mut store = path.as_os_str().to_owned();
    store.push(".untorn");
    PathBuf::from(store).is_dir()
}

/// A file that has a store beside it is recovered before anything is read from it. One opened for writing
/// is managed from now on.
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

/// `open`. A file that has a store beside it (`<path>.untorn`) is recovered if need be and, if it is
/// opened for writing, managed from now on; O_TRUNC is then an uncommitted change. Other files are opened
/// as ever.
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
        adopt(fd, flags)?;
        if truncate && untorn_fd_ftruncate(fd, 0) != 0 {
            // SAFETY: `open` has just taken it, so it ends in NUL.
            let path = unsafe { CStr::from_ptr(path) };
            return Err(system(&format!("truncate {}", path.to_string_lossy())));
        }
        Ok(fd)
    });
    if opened < 0 {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        untorn_fd_close(fd);
        // SAFETY: the C library gives each thread an `errno` that is valid while the thread runs.
        unsafe { *libc::__errno_location() = errno };
    }
    opened
}

/// `close`. With the last descriptor and map of a managed file, what is not committed is DISCARDED
/// (unless untorn_fd_commit_on_close() asked for a commit), and the file becomes a plain one.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_close(fd: c_int) -> c_int {
    let file = find(fd);
    // SAFETY: closes what the caller wants closed.
    let closed = unsafe { libc::close(fd) };
    match file {
        Some(file) if !file.is_parents() => {
            if guard(-1, || let_go(&file).map(|()| 0)) < 0 {
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

/// `fsync`: commits all changes of a managed file, made through whichever descriptor or map, durable on
/// return. What an MS_ASYNC began is waited for.
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

/// `flock`: who manages a file has it to himself, and holds such a lock already. One that was taken
/// before the file became managed passes over to Untorn then.
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

/// Manages a file from now on, before anything of it is mapped; it is to be a regular one, opened for
/// reading and writing. 0 (also if it is managed already), or -1: EINVAL, EBADF, and those of untorn_mmap().
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

/// Forgets all uncommitted changes of a managed file, in memory, too: it is as at its last commit. 0, or
/// -1: EINVAL if the descriptor is of no managed file, ECHILD in a forked child …
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_rollback(fd: c_int) -> c_int {
    on_managed_only(fd, |file| file.with(|file| Ok(file.rollback()?)))
}

/// Whether what is uncommitted when the last of a managed file's descriptors and maps goes is committed
/// then (`on` not 0), or discarded (0, the default). 0, or -1 with EINVAL or ECHILD.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_commit_on_close(fd: c_int, on: c_int) -> c_int {
    on_managed_only(fd, |file| {
        file.with(|file| {
            file.set_commit_on_close(on != 0);
            Ok(())
        })
    })
}

/// Gives memory back: pages that were stored to and are committed need not be kept. NO THREAD may store
/// to the file's maps during this call: a store could be lost. 0, or -1: EINVAL if the descriptor is of
/// no managed file or the file is not mapped, ECHILD, EIO …
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_quiesce(fd: c_int) -> c_int {
    on_managed_only(fd, |file| match map_of(file) {
        Some(map) => Ok(map.quiesce()?),
        None => Err(failure(libc::EINVAL, "the file is not mapped")),
    })
}

/// 1: a descriptor of a managed file; 0: of something else; -1: EBADF, no descriptor at all.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_is_managed(fd: c_int) -> c_int {
    guard(-1, || match stat(fd) {
        Some(_) => Ok(find(fd).is_some().into()),
        None => Err(Failure::bad_handle("descriptor")),
    })
}
