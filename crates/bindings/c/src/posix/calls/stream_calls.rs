//! Exported functions: streams of managed files. The C library's own streams read and write without the renamed
//! calls; these streams use them.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Mutex;

use libc::{FILE, off64_t, size_t, ssize_t};

use super::io_calls::{untorn_fd_lseek, untorn_fd_read, untorn_fd_write};
use super::open_calls::{open_path, untorn_fd_close};
use crate::posix::files::managed_files::{find, find_by_key};
use crate::posix::files::managed_stores::has_store;
use crate::posix::files::mount_files;
use crate::posix::state::call_section::{Section, enter, is_inside, lock};
use crate::posix::state::file_owner::is_borrower;
use crate::posix::state::patterns;
use crate::posix::state::posix_descriptor::{lstat, path_at, refusal};
use crate::posix::state::report::{errno, reported, set_errno};

#[repr(C)]
struct Functions {
    read: Option<unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t>,
    write: Option<unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t>,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int>,
    close: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    #[link_name = "freopen"]
    fn libc_freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
}

/// The descriptors of streams, by the streams' addresses.
static STREAMS: Mutex<Option<HashMap<usize, c_int>>> = Mutex::new(None);

fn with_streams<T>(f: impl FnOnce(&mut HashMap<usize, c_int>) -> T) -> T {
    f(lock(&STREAMS).get_or_insert_default())
}

/// The descriptor in the cookie that the C library passes to the functions below.
fn fd_of(cookie: *mut c_void) -> c_int {
    cookie.addr() as c_int
}

unsafe extern "C" fn read(cookie: *mut c_void, buf: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the C library's promise.
    unsafe { untorn_fd_read(fd_of(cookie), buf.cast(), len) }
}

/// Returns 0 after an error: a stream's function must not return -1.
unsafe extern "C" fn write(cookie: *mut c_void, buf: *const c_char, len: size_t) -> ssize_t {
    // SAFETY: the C library's promise.
    unsafe { untorn_fd_write(fd_of(cookie), buf.cast(), len) }.max(0)
}

unsafe extern "C" fn seek(cookie: *mut c_void, to: *mut off64_t, whence: c_int) -> c_int {
    // SAFETY: the C library's promise.
    let Some(to) = (unsafe { to.as_mut() }) else { return -1 };
    match untorn_fd_lseek(fd_of(cookie), *to, whence) {
        -1 => -1,
        at => {
            *to = at;
            0
        }
    }
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    let fd = fd_of(cookie);
    with_streams(|streams| streams.retain(|_, known| *known != fd));
    untorn_fd_close(fd)
}

/// A stream of a descriptor of a managed file.
///
/// # Safety
/// `mode` ends in NUL.
unsafe fn stream(fd: c_int, mode: *const c_char) -> *mut FILE {
    let functions = Functions { read: Some(read), write: Some(write), seek: Some(seek), close: Some(close) };
    // SAFETY: the caller's promise, and functions that live as long as the program.
    let made = unsafe { fopencookie(std::ptr::without_provenance_mut(fd as usize), mode, functions) };
    if !made.is_null() {
        with_streams(|streams| streams.insert(made.addr(), fd));
    }
    made
}

/// The flags of `open` for a stream's mode. None: an invalid mode.
fn flags_of(mode: &[u8]) -> Option<c_int> {
    let has = |c| mode.iter().take_while(|byte| **byte != b',').any(|byte| *byte == c);
    let access = if has(b'+') { libc::O_RDWR } else { libc::O_WRONLY };
    let first = match mode.first()? {
        b'r' if !has(b'+') => libc::O_RDONLY,
        b'r' => libc::O_RDWR,
        b'w' => access | libc::O_CREAT | libc::O_TRUNC,
        b'a' => access | libc::O_CREAT | libc::O_APPEND,
        _ => return None,
    };
    let exclusive = if has(b'x') { libc::O_EXCL } else { 0 };
    Some(first | exclusive | if has(b'e') { libc::O_CLOEXEC } else { 0 })
}

/// Whether a path names a managed file, or a file that is to be managed.
///
/// # Safety
/// `path` is NULL or ends in NUL.
unsafe fn is_ours(path: *const c_char) -> bool {
    let _section = Section::begin();
    // SAFETY: the caller's promise.
    let Some(path) = (unsafe { path_at(libc::AT_FDCWD, path) }).filter(|_| !is_borrower()) else { return false };
    let Ok(whole) = std::fs::canonicalize(&path).or_else(|_| std::path::absolute(&path)) else { return false };
    lstat(&whole).as_ref().is_some_and(|found| find_by_key(found).is_some())
        || has_store(&whole)
        || patterns::match_path(&whole)
}

/// `fopen`. The stream of a managed file goes through the renamed calls.
///
/// # Safety
/// As for `fopen`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_stream_fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    if is_inside() {
        let _ = enter("fopen");
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    let flags = unsafe { mode.as_ref().and_then(|_| flags_of(CStr::from_ptr(mode).to_bytes())) };
    // SAFETY: the caller's promise.
    let Some(flags) = flags.filter(|_| unsafe { is_ours(path) }) else { return unsafe { libc::fopen(path, mode) } };
    // SAFETY: the caller's promise.
    let fd = unsafe { open_path(libc::AT_FDCWD, path, flags, 0o666) };
    if fd < 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    unsafe { stream_or_close(fd, mode) }
}

/// Whether a descriptor belongs to a managed file, or to a named file on a mount.
fn is_known(fd: c_int) -> bool {
    find(fd).is_some_and(|file| !file.is_parents()) || mount_files::find(fd).is_some_and(|file| !file.is_parents())
}

unsafe fn stream_or_close(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller's promise.
    let made = unsafe { if is_known(fd) { stream(fd, mode) } else { libc::fdopen(fd, mode) } };
    if made.is_null() {
        let failed = errno();
        untorn_fd_close(fd);
        set_errno(failed);
    }
    made
}

/// `fdopen`: as untorn_stream_fopen().
///
/// # Safety
/// As for `fdopen`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_stream_fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if is_inside() {
        let _ = enter("fdopen");
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    unsafe { if is_known(fd) { stream(fd, mode) } else { libc::fdopen(fd, mode) } }
}

/// `freopen`. With a managed file before or after: NULL with ENOTSUP, and the stream is as it was.
///
/// # Safety
/// As for `freopen`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_stream_freopen(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    let known = with_streams(|streams| streams.contains_key(&stream.addr()));
    // SAFETY: the caller's promise.
    if known || unsafe { is_ours(path) } {
        return reported("freopen", std::ptr::null_mut(), || {
            Err(refusal(libc::ENOTSUP, "a stream is not moved to or from a managed file: close it, and open another"))
        });
    }
    // SAFETY: the caller's promise.
    unsafe { libc_freopen(path, mode, stream) }
}

/// `fileno`: also of a managed file's stream.
///
/// # Safety
/// As for `fileno`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_stream_fileno(stream: *mut FILE) -> c_int {
    if is_inside() {
        let _ = enter("fileno");
        return -1;
    }
    match with_streams(|streams| streams.get(&stream.addr()).copied()) {
        Some(fd) => fd,
        // SAFETY: the caller's promise.
        None => unsafe { libc::fileno(stream) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_of_streams() {
        let write = libc::O_CREAT | libc::O_TRUNC;
        assert_eq!(flags_of(b"r"), Some(libc::O_RDONLY));
        assert_eq!(flags_of(b"rb+"), Some(libc::O_RDWR));
        assert_eq!(flags_of(b"we"), Some(libc::O_WRONLY | write | libc::O_CLOEXEC));
        assert_eq!(flags_of(b"w+x,ccs=UTF-8"), Some(libc::O_RDWR | write | libc::O_EXCL));
        assert_eq!(flags_of(b"a+"), Some(libc::O_RDWR | libc::O_CREAT | libc::O_APPEND));
        assert_eq!((flags_of(b"x"), flags_of(b"")), (None, None));
    }
}
