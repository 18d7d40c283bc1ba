//! Exported functions: calls that copy descriptors, lock records, or cannot be made on managed files.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use libc::{off_t, size_t, ssize_t};

use super::open_calls::untorn_fd_close;
use crate::posix::files::managed_files::{
    Leaving, above_standard, all, close_by_exec, find, is_any_managed, is_own, note_descriptor, on_managed,
};
use crate::posix::files::mount_files::{self, MountFile, on_mount, written};
use crate::posix::files::shown_commit::{self, refresh};
use crate::posix::state::call_section::{Section, enter};
use crate::posix::state::descriptor_table::{COMMITS_WRITES, MANAGED, Marks, ON_MOUNT, is_marked};
use crate::posix::state::file_owner::is_borrower;
use crate::posix::state::posix_descriptor::{path_of, refusal, seek};
use crate::posix::state::report::reported;

/// Notes that a copy of a descriptor, made just now, is of the same file. Returns the copy's number, which is above those
/// of the standard streams for a managed file.
fn copied(call: &str, fd: c_int, copy: c_int) -> c_int {
    if copy < 0 {
        return copy;
    }
    let note = || {
        let copy = match find(fd) {
            Some(file) => {
                let copy = if file.is_parents() || copy == fd { copy } else { above_standard(&file, copy)? };
                note_descriptor(&file, copy)?;
                copy
            }
            None => copy,
        };
        shown_commit::copied(fd, copy);
        mount_files::copied(fd, copy).map(|()| copy)
    };
    match reported(call, -1, note) {
        -1 => {
            // SAFETY: the copy that was just made.
            unsafe { libc::close(copy) };
            -1
        }
        copy => copy,
    }
}

/// Begins a call on one or two descriptors. None: refused; otherwise a section if one of them may be of a managed file.
fn begin(call: &str, fds: [c_int; 2]) -> Option<Option<Section>> {
    if fds.into_iter().any(is_marked) { enter(call).map(Some) } else { Some(None) }
}

/// `dup`.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_dup(fd: c_int) -> c_int {
    let Some(_section) = begin("dup", [fd, -1]) else { return -1 };
    // SAFETY: takes a number.
    copied("dup", fd, unsafe { libc::dup(fd) })
}

/// Makes `to` a copy of `fd`, which closes the file that `to` had open.
fn replace(call: &str, fd: c_int, to: c_int, dup: impl FnOnce() -> c_int) -> c_int {
    let Some(_section) = begin(call, [fd, to]) else { return -1 };
    if is_own(to) {
        let text = format!(
            "descriptor {to} is in use by Untorn for a managed file, and {call} would close it: choose a number that the \
             program has open, or one from fcntl(F_DUPFD)"
        );
        return reported(call, -1, || Err(refusal(libc::EBUSY, text)));
    }
    let is_managed = fd != to && find(fd).is_some();
    if is_managed && to <= libc::STDERR_FILENO {
        let text = "the streams of the C and C++ libraries write to standard descriptors past Untorn, and so do the \
                    programs that inherit them: write to another descriptor, or copy the file when it is complete";
        return reported(call, -1, || Err(refusal(libc::EINVAL, text.to_owned())));
    }
    let leaving = if fd == to { Leaving::default() } else { Leaving::of(to) };
    let done = dup();
    if done >= 0 && is_managed {
        close_by_exec(done);
    }
    if done < 0 || is_borrower() {
        return done;
    }
    leaving.forget(to);
    if fd != to {
        shown_commit::forget(to);
    }
    let done = copied(call, fd, done);
    reported(call, -1, || leaving.release().map(|()| done))
}

/// `dup2`. The previous file of `to` is closed, as by untorn_fd_close(). If `to` is a descriptor that belongs to
/// Untorn itself: EBUSY.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: takes numbers; the caller wants `to` closed.
    replace("dup2", fd, to, || unsafe { libc::dup2(fd, to) })
}

/// `dup3`: as untorn_fd_dup2().
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: takes numbers; the caller wants `to` closed.
    replace("dup3", fd, to, || unsafe { libc::dup3(fd, to, flags) })
}

/// Refuses to keep a descriptor of a managed file open across `exec`, also in a child. None: it is of another file.
fn refuse_inheriting(call: &str, fd: c_int) -> Option<c_int> {
    let text = "the descriptor is of a managed file, and a program that inherits it by `exec` would write past Untorn: let \
                that program open the file by its name";
    on_managed(call, fd, -1, |_| Err(refusal(libc::EINVAL, text.to_owned())))
}

/// `posix_spawn_file_actions_adddup2`. A descriptor of a managed file: EINVAL.
///
/// # Safety
/// As for `posix_spawn_file_actions_adddup2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_adddup2(
    actions: *mut libc::posix_spawn_file_actions_t,
    fd: c_int,
    to: c_int,
) -> c_int {
    match refuse_inheriting("posix_spawn_file_actions_adddup2", fd) {
        // This call returns its error.
        Some(_) => libc::EINVAL,
        // SAFETY: the caller's promise.
        None => unsafe { libc::posix_spawn_file_actions_adddup2(actions, fd, to) },
    }
}

/// `fcntl`. Copies of descriptors are of the same file. Locks stay when Untorn closes its own descriptors.
///
/// # Safety
/// As for `fcntl`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        let Some(_section) = begin("fcntl", [fd, -1]) else { return -1 };
        // SAFETY: as below.
        return copied("fcntl", fd, unsafe { libc::fcntl(fd, command, argument) });
    }
    if command == libc::F_SETFD
        && argument.addr() as c_int & libc::FD_CLOEXEC == 0
        && let Some(refused) = refuse_inheriting("fcntl", fd)
    {
        return refused;
    }
    if matches!(command, libc::F_SETLK | libc::F_SETLKW | libc::F_OFD_SETLK | libc::F_OFD_SETLKW) {
        refresh("fcntl", fd);
    }
    // SAFETY: the caller's promise; a number goes through unchanged.
    let done = unsafe { libc::fcntl(fd, command, argument) };
    match command {
        libc::F_SETLK | libc::F_SETLKW if done == 0 => on_managed("fcntl", fd, -1, |file| {
            // SAFETY: the system has just read it.
            let lock = unsafe { argument.cast::<libc::flock>().read() };
            let base = match c_int::from(lock.l_whence) {
                libc::SEEK_CUR => seek(fd, 0, libc::SEEK_CUR)?,
                // The system knows the data file's size, but not its size with uncommitted changes.
                libc::SEEK_END => crate::posix::state::posix_descriptor::stat(fd).map_or(0, |stat| stat.st_size),
                _ => 0,
            };
            file.record_locks.note(&lock, base);
            Ok(0)
        })
        .unwrap_or(done),
        _ => done,
    }
}

/// `lockf`: as untorn_fd_fcntl().
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_lockf(fd: c_int, operation: c_int, len: off_t) -> c_int {
    // SAFETY: takes numbers.
    let done = unsafe { libc::lockf(fd, operation, len) };
    if done != 0 || operation == libc::F_TEST {
        return done;
    }
    on_managed("lockf", fd, -1, |file| {
        // SAFETY: zeros are a valid `flock`.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = if operation == libc::F_ULOCK { libc::F_UNLCK } else { libc::F_WRLCK } as _;
        lock.l_len = len;
        file.record_locks.note(&lock, seek(fd, 0, libc::SEEK_CUR)?);
        Ok(0)
    })
    .unwrap_or(done)
}

/// Closes descriptors one by one, because a managed file ends with its last one, and without those of Untorn's own. None:
/// no file is managed, and the system's call is to be made.
fn close_each(call: &str, first: c_uint, last: c_uint) -> Option<c_int> {
    if is_borrower() || !is_any_managed() || first > last {
        return None;
    }
    let Some(section) = enter(call) else { return Some(-1) };
    if all().is_empty() && !mount_files::is_any_own() {
        return None;
    }
    let open = std::fs::read_dir("/proc/self/fd").map(|entries| {
        let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<c_uint>().ok());
        numbers.filter(|fd| (first..=last).contains(fd)).collect::<Vec<_>>()
    });
    let open = match open {
        Ok(open) => open,
        Err(e) => {
            let text = format!("descriptors of managed files are among them, and /proc does not list them: {e}");
            return Some(reported(call, -1, || Err(refusal(libc::ENOTSUP, text))));
        }
    };
    drop(section);
    let mut done = 0;
    for fd in open.into_iter().map(|fd| fd as c_int).filter(|fd| !is_own(*fd)) {
        let is_ours = MANAGED.has(fd) || ON_MOUNT.has(fd);
        if untorn_fd_close(fd) != 0 && is_ours {
            done = -1;
        }
    }
    Some(done)
}

/// `close_range`. While this process has managed files open, it closes each of the program's descriptors as
/// untorn_fd_close() does, and none of Untorn's own; CLOSE_RANGE_UNSHARE is then ENOTSUP.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let done = match flags as c_uint {
        0 => close_each("close_range", first, last),
        flags if flags & libc::CLOSE_RANGE_UNSHARE != 0 && flags & libc::CLOSE_RANGE_CLOEXEC == 0 => refuse_unshared(),
        _ => None,
    };
    // SAFETY: takes numbers; the caller wants these closed.
    done.unwrap_or_else(|| unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) as c_int })
}

/// Refuses descriptors of one thread only. None: no file is managed.
fn refuse_unshared() -> Option<c_int> {
    if is_borrower() || all().is_empty() && !mount_files::is_any_own() {
        return None;
    }
    let text = "a thread with descriptors of its own would not see those of managed files: close them without \
                CLOSE_RANGE_UNSHARE";
    Some(reported("close_range", -1, || Err(refusal(libc::ENOTSUP, text.to_owned()))))
}

/// `closefrom`: as untorn_fd_close_range().
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_closefrom(first: c_int) {
    let first = first.max(0) as c_uint;
    if close_each("closefrom", first, c_uint::MAX).is_none() {
        // SAFETY: takes numbers; the caller wants these closed.
        unsafe { libc::syscall(libc::SYS_close_range, first, c_uint::MAX, 0) };
    }
}

/// Refuses a call that would bypass the managed file. None: neither descriptor is of a managed file.
fn refuse<T>(call: &str, fds: [c_int; 2], failed: T, errno: c_int) -> Option<T> {
    if !fds.into_iter().any(|fd| MANAGED.has(fd)) {
        return None;
    }
    let Some(_section) = enter(call) else { return Some(failed) };
    let fd = fds.into_iter().find(|fd| MANAGED.has(*fd) && find(*fd).is_some())?;
    let refusal = || {
        let path = path_of(fd).unwrap_or_default();
        Err(refusal(
            errno,
            format!("{} is a managed file, and {call} would bypass Untorn: read or write it", path.display()),
        ))
    };
    Some(reported(call, failed, refusal))
}

/// `sendfile`. From or to a managed file: EINVAL; programs then read and write instead.
///
/// # Safety
/// As for `sendfile`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_sendfile(to: c_int, from: c_int, offset: *mut off_t, len: size_t) -> ssize_t {
    // SAFETY: the caller's promise.
    let send = || unsafe { libc::sendfile(to, from, offset, len) };
    refuse("sendfile", [to, from], -1, libc::EINVAL).unwrap_or_else(|| written("sendfile", to, send()))
}

/// `copy_file_range`. From or to a managed file: EXDEV; programs then read and write instead.
///
/// # Safety
/// As for `copy_file_range`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_copy_file_range(
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: the caller's promise.
    let copy = || unsafe { libc::copy_file_range(from, from_offset, to, to_offset, len, flags) };
    refuse("copy_file_range", [to, from], -1, libc::EXDEV).unwrap_or_else(|| written("copy_file_range", to, copy()))
}

/// `splice`. From or to a managed file: EINVAL; programs then read and write instead.
///
/// # Safety
/// As for `splice`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_splice(
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: the caller's promise.
    let splice = || unsafe { libc::splice(from, from_offset, to, to_offset, len, flags) };
    refuse("splice", [to, from], -1, libc::EINVAL).unwrap_or_else(|| written("splice", to, splice()))
}

/// `preadv2`. On a managed file flags are not supported: EOPNOTSUPP.
///
/// # Safety
/// As for `preadv2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_preadv2(
    fd: c_int,
    vector: *const libc::iovec,
    count: c_int,
    at: off_t,
    flags: c_int,
) -> ssize_t {
    if flags == 0 && at >= 0 {
        // SAFETY: the caller's promise.
        return unsafe { super::io_calls::untorn_fd_preadv(fd, vector, count, at) };
    }
    // SAFETY: the caller's promise.
    refuse("preadv2", [fd, -1], -1, libc::EOPNOTSUPP)
        .unwrap_or_else(|| unsafe { libc::preadv2(fd, vector, count, at, flags) })
}

/// `pwritev2`. On a managed file flags are not supported: EOPNOTSUPP.
///
/// # Safety
/// As for `pwritev2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_pwritev2(
    fd: c_int,
    vector: *const libc::iovec,
    count: c_int,
    at: off_t,
    flags: c_int,
) -> ssize_t {
    if flags == 0 && at >= 0 {
        // SAFETY: the caller's promise.
        return unsafe { super::io_calls::untorn_fd_pwritev(fd, vector, count, at) };
    }
    const SYNC: c_int = libc::RWF_DSYNC | libc::RWF_SYNC;
    // The kernel cannot sync changes that belong to a transaction.
    let syncs = flags & SYNC != 0 && ON_MOUNT.has(fd);
    let flags = if syncs { flags & !SYNC } else { flags };
    // SAFETY: the caller's promise.
    let done = refuse("pwritev2", [fd, -1], -1, libc::EOPNOTSUPP)
        .unwrap_or_else(|| written("pwritev2", fd, unsafe { libc::pwritev2(fd, vector, count, at, flags) }));
    if !syncs || done <= 0 || COMMITS_WRITES.has(fd) {
        return done;
    }
    mount_files::commit_written("pwritev2", fd, done)
}

/// `sync_file_range`: does nothing for a managed file, as the call promises nothing about a crash.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_sync_file_range(fd: c_int, at: off_t, len: off_t, flags: c_uint) -> c_int {
    // SAFETY: takes numbers.
    on_managed("sync_file_range", fd, -1, |file| file.with(|_| Ok(0)))
        .unwrap_or_else(|| unsafe { libc::sync_file_range(fd, at, len, flags) })
}

/// `futimens`. On a managed file: ENOTSUP, as Untorn notices changes by other programs by a file's times.
///
/// # Safety
/// As for `futimens`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_futimens(fd: c_int, times: *const libc::timespec) -> c_int {
    // SAFETY: the caller's promise.
    refuse("futimens", [fd, -1], -1, libc::ENOTSUP).unwrap_or_else(|| unsafe { libc::futimens(fd, times) })
}

/// `futimes`: as untorn_fd_futimens().
///
/// # Safety
/// As for `futimes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_futimes(fd: c_int, times: *const libc::timeval) -> c_int {
    // SAFETY: the caller's promise.
    refuse("futimes", [fd, -1], -1, libc::ENOTSUP).unwrap_or_else(|| unsafe { libc::futimes(fd, times) })
}

/// `FICLONE`, `FICLONERANGE` and `FIDEDUPERANGE` of Linux.
const CLONES: [libc::c_ulong; 3] = [0x4004_9409, 0x4020_940d, 0xc018_9436];

/// `ioctl`. Clones of the data of a managed file, or into one: EOPNOTSUPP.
///
/// # Safety
/// As for `ioctl`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_ioctl(fd: c_int, request: libc::c_ulong, argument: *mut c_void) -> c_int {
    let refused = match CLONES.iter().position(|clone| *clone == request) {
        Some(0) => refuse("ioctl", [fd, argument.addr() as c_int], -1, libc::EOPNOTSUPP),
        // The first member of the range is the source's descriptor, as 64 bits.
        // SAFETY: the caller's promise.
        Some(1) => refuse("ioctl", [fd, unsafe { argument.cast::<i64>().read() } as c_int], -1, libc::EOPNOTSUPP),
        Some(_) => refuse("ioctl", [fd, -1], -1, libc::EOPNOTSUPP),
        None if request == libc::FIONCLEX => refuse_inheriting("ioctl", fd),
        None => None,
    };
    // SAFETY: the caller's promise.
    refused.unwrap_or_else(|| unsafe { libc::ioctl(fd, request, argument) })
}

/// Makes a call of asynchronous I/O, which begins with a `struct aiocb`. `syncs` marks the descriptors of files on
/// mounts for which the call is refused, because the kernel would have to sync changes that belong to a transaction.
///
/// # Safety
/// `control` is NULL or points to a `struct aiocb`.
unsafe fn aio(call: &str, control: *mut libc::aiocb, syncs: Option<&Marks>, submit: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the caller's promise.
    let fd = unsafe { control.as_ref() }.map_or(-1, |control| control.aio_fildes);
    if syncs.is_some_and(|marks| marks.has(fd)) {
        let text = "the file is on a mount and committed by fsync: call that";
        let refused = |_: &Arc<MountFile>| Err(refusal(libc::EINVAL, text));
        return on_mount(call, fd, -1, refused).unwrap_or_else(submit);
    }
    refuse(call, [fd, -1], -1, libc::EINVAL).unwrap_or_else(submit)
}

/// `aio_read`. On a managed file: EINVAL.
///
/// # Safety
/// As for `aio_read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_aio_read(control: *mut libc::aiocb) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { aio("aio_read", control, None, || libc::aio_read(control)) }
}

/// `aio_write`. On a managed file: EINVAL.
///
/// # Safety
/// As for `aio_write`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_aio_write(control: *mut libc::aiocb) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { aio("aio_write", control, Some(&COMMITS_WRITES), || libc::aio_write(control)) }
}

/// `aio_fsync`. On a managed file: EINVAL.
///
/// # Safety
/// As for `aio_fsync`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_aio_fsync(operation: c_int, control: *mut libc::aiocb) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { aio("aio_fsync", control, Some(&ON_MOUNT), || libc::aio_fsync(operation, control)) }
}
