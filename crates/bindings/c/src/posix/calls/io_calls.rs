//! Exported functions: reading, writing and resizing through descriptors.

use std::ffi::{c_int, c_void};

use libc::{off_t, ssize_t};
use untorn::File;

use crate::boundary::arguments::{self, OFFSET_MAX};
use crate::boundary::error::{Failure, Result};
use crate::posix::files::managed_files::{Managed, on_managed};
use crate::posix::files::mount_files::written;
use crate::posix::files::own_commits::{change, changed_on_mount};
use crate::posix::files::shown_commit::refresh;
use crate::posix::state::call_section::lock;
use crate::posix::state::posix_descriptor::{self, check_readable, check_writable, failure, seek, system};
use crate::posix::state::report;

fn offset(offset: off_t) -> Result<u64> {
    u64::try_from(offset).map_err(|_| failure(libc::EINVAL, format!("the offset {offset} is negative")))
}

/// Reads into several buffers, one after the other, up to the end of the file.
fn read_at(file: &File, buffers: &mut [&mut [u8]], mut at: u64) -> Result<ssize_t> {
    let mut done = 0;
    for buffer in buffers {
        let most = buffer.len().min((OFFSET_MAX - at).try_into().unwrap_or(usize::MAX));
        let n = file.read_at(&mut buffer[..most], at)?;
        done += n;
        at += n as u64;
        if n < buffer.len() {
            break;
        }
    }
    Ok(done as ssize_t)
}

/// Writes buffers one after the other; with O_APPEND always at the end, as Linux does.
fn write_at(file: &File, flags: c_int, buffers: &[&[u8]], at: u64) -> Result<(u64, ssize_t)> {
    let len = buffers.iter().map(|b| b.len()).sum::<usize>();
    let at = if flags & libc::O_APPEND != 0 { file.len()? } else { at };
    arguments::range(at, len as u64)?;
    let mut whole = Vec::new();
    let bytes = match buffers {
        [one] => *one,
        many => {
            let no_memory =
                |_| failure(libc::ENOMEM, format!("no memory for {len} bytes: write them in smaller pieces"));
            whole.try_reserve_exact(len).map_err(no_memory)?;
            many.iter().for_each(|part| whole.extend_from_slice(part));
            &*whole
        }
    };
    let at = if flags & libc::O_APPEND != 0 {
        file.append(bytes)?
    } else {
        untorn::__private::write_over(file, bytes, at)?;
        at
    };
    Ok((at, len as ssize_t))
}

/// Reads at the descriptor's own offset, and advances the offset.
fn read_on(managed: &Managed, fd: c_int, buffers: &mut [&mut [u8]]) -> Result<ssize_t> {
    check_readable(fd)?;
    managed.with(|file| {
        let _position = lock(&managed.position);
        let at = seek(fd, 0, libc::SEEK_CUR)?;
        let n = read_at(file, buffers, offset(at)?)?;
        seek(fd, at + n as off_t, libc::SEEK_SET)?;
        Ok(n)
    })
}

/// Writes at the descriptor's own offset, and advances the offset.
fn write_on(managed: &Managed, fd: c_int, buffers: &[&[u8]]) -> Result<ssize_t> {
    let flags = check_writable(fd)?;
    managed.with(|file| {
        let _position = lock(&managed.position);
        let at = seek(fd, 0, libc::SEEK_CUR)?;
        let at = offset(at)?;
        let (at, n) = change(managed, file, flags, || write_at(file, flags, buffers, at))?;
        seek(fd, at as off_t + n as off_t, libc::SEEK_SET)?;
        Ok(n)
    })
}

/// `pread`.
///
/// # Safety
/// `buf` points to `len` bytes that no other thread uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_pread(fd: c_int, buf: *mut c_void, len: usize, at: off_t) -> ssize_t {
    on_managed("pread", fd, -1, |managed| {
        check_readable(fd)?;
        // SAFETY: the caller's promise.
        let buf = unsafe { arguments::bytes_mut(buf, len) }?;
        let at = offset(at)?;
        managed.with(|file| read_at(file, &mut [buf], at))
    })
    // SAFETY: the caller's promise.
    .unwrap_or_else(|| unsafe { libc::pread(fd, buf, len, at) })
}

/// `pwrite`. The bytes are seen at once through every descriptor and map, and are uncommitted until a sync.
///
/// # Safety
/// `buf` points to `len` bytes that no other thread changes during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_pwrite(fd: c_int, buf: *const c_void, len: usize, at: off_t) -> ssize_t {
    on_managed("pwrite", fd, -1, |managed| {
        let flags = check_writable(fd)?;
        // SAFETY: the caller's promise.
        let bytes = unsafe { arguments::bytes(buf, len) }?;
        let at = offset(at)?;
        managed.with(|file| Ok(change(managed, file, flags, || write_at(file, flags, &[bytes], at))?.1))
    })
    // SAFETY: the caller's promise.
    .unwrap_or_else(|| written("pwrite", fd, unsafe { libc::pwrite(fd, buf, len, at) }))
}

/// `read`.
///
/// # Safety
/// `buf` points to `len` bytes that no other thread uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_read(fd: c_int, buf: *mut c_void, len: usize) -> ssize_t {
    on_managed("read", fd, -1, |managed| {
        // SAFETY: the caller's promise.
        read_on(managed, fd, &mut [unsafe { arguments::bytes_mut(buf, len) }?])
    })
    // SAFETY: the caller's promise.
    .unwrap_or_else(|| unsafe { libc::read(fd, buf, len) })
}

/// `write`: as untorn_fd_pwrite().
///
/// # Safety
/// `buf` points to `len` bytes that no other thread changes during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_write(fd: c_int, buf: *const c_void, len: usize) -> ssize_t {
    on_managed("write", fd, -1, |managed| {
        // SAFETY: the caller's promise.
        write_on(managed, fd, &[unsafe { arguments::bytes(buf, len) }?])
    })
    // SAFETY: the caller's promise.
    .unwrap_or_else(|| written("write", fd, unsafe { libc::write(fd, buf, len) }))
}

/// The members of a vector, checked.
///
/// # Safety
/// `vector` points to `count` members that no other code changes during `'a`.
unsafe fn members<'a>(vector: *const libc::iovec, count: c_int) -> Result<&'a [libc::iovec]> {
    let most = usize::try_from(count).ok().filter(|count| *count <= libc::UIO_MAXIOV as usize);
    match most.ok_or_else(|| failure(libc::EINVAL, format!("a vector of {count} buffers")))? {
        0 => Ok(&[]),
        _ if vector.is_null() => Err(Failure::null("the vector")),
        // SAFETY: not NULL, of a length that fits; the rest is the caller's promise.
        count => Ok(unsafe { std::slice::from_raw_parts(vector, count) }),
    }
}

/// The buffers of a vector, to read into.
///
/// # Safety
/// The vector and its buffers are valid for `readv`, and no other code uses them during `'a`.
unsafe fn into<'a>(vector: *const libc::iovec, count: c_int) -> Result<Vec<&'a mut [u8]>> {
    // SAFETY: the caller's promise.
    let members = unsafe { members(vector, count) }?;
    // SAFETY: the caller's promise.
    members.iter().map(|v| unsafe { arguments::bytes_mut(v.iov_base, v.iov_len) }).collect()
}

/// The buffers of a vector, to write from.
///
/// # Safety
/// The vector and its buffers are valid for `writev`, and no other code changes them during `'a`.
unsafe fn from<'a>(vector: *const libc::iovec, count: c_int) -> Result<Vec<&'a [u8]>> {
    // SAFETY: the caller's promise.
    let members = unsafe { members(vector, count) }?;
    // SAFETY: the caller's promise.
    members.iter().map(|v| unsafe { arguments::bytes(v.iov_base, v.iov_len) }).collect()
}

/// `readv`.
///
/// # Safety
/// As for `readv`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_readv(fd: c_int, vector: *const libc::iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    on_managed("readv", fd, -1, |managed| read_on(managed, fd, &mut unsafe { into(vector, count) }?))
        // SAFETY: the caller's promise.
        .unwrap_or_else(|| unsafe { libc::readv(fd, vector, count) })
}

/// `writev`. All buffers are written as one, all or none.
///
/// # Safety
/// As for `writev`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_writev(fd: c_int, vector: *const libc::iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    on_managed("writev", fd, -1, |managed| write_on(managed, fd, &unsafe { from(vector, count) }?))
        // SAFETY: the caller's promise.
        .unwrap_or_else(|| written("writev", fd, unsafe { libc::writev(fd, vector, count) }))
}

/// `preadv`.
///
/// # Safety
/// As for `preadv`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_preadv(fd: c_int, vector: *const libc::iovec, count: c_int, at: off_t) -> ssize_t {
    on_managed("preadv", fd, -1, |managed| {
        check_readable(fd)?;
        // SAFETY: the caller's promise.
        let mut buffers = unsafe { into(vector, count) }?;
        let at = offset(at)?;
        managed.with(|file| read_at(file, &mut buffers, at))
    })
    // SAFETY: the caller's promise.
    .unwrap_or_else(|| unsafe { libc::preadv(fd, vector, count, at) })
}

/// `pwritev`. All buffers are written as one, all or none.
///
/// # Safety
/// As for `pwritev`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_pwritev(fd: c_int, vector: *const libc::iovec, count: c_int, at: off_t) -> ssize_t {
    on_managed("pwritev", fd, -1, |managed| {
        let flags = check_writable(fd)?;
        // SAFETY: the caller's promise.
        let buffers = unsafe { from(vector, count) }?;
        let at = offset(at)?;
        managed.with(|file| Ok(change(managed, file, flags, || write_at(file, flags, &buffers, at))?.1))
    })
    // SAFETY: the caller's promise.
    .unwrap_or_else(|| written("pwritev", fd, unsafe { libc::pwritev(fd, vector, count, at) }))
}

/// `lseek`. SEEK_END uses the current size, uncommitted changes included; holes are not reported. To the beginning of a
/// file that another process changes: shows its last durable commit.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_lseek(fd: c_int, to: off_t, whence: c_int) -> off_t {
    let managed = |managed: &std::sync::Arc<Managed>| {
        managed.with(|file| {
            let _position = lock(&managed.position);
            let size = file.len()? as off_t;
            let inside = (0..size).contains(&to);
            let to = match whence {
                libc::SEEK_END => size.checked_add(to),
                libc::SEEK_DATA if inside => Some(to),
                libc::SEEK_HOLE if inside => Some(size),
                libc::SEEK_DATA | libc::SEEK_HOLE => return Err(failure(libc::ENXIO, "behind the end of the file")),
                _ => return seek(fd, to, whence),
            };
            let to = to.ok_or_else(|| failure(libc::EOVERFLOW, "an offset behind the largest"))?;
            seek(fd, to, libc::SEEK_SET)
        })
    };
    if (to, whence) == (0, libc::SEEK_SET) {
        refresh("lseek", fd);
    }
    // SAFETY: takes numbers.
    on_managed("lseek", fd, -1, managed).unwrap_or_else(|| unsafe { libc::lseek(fd, to, whence) })
}

/// `fstat`. `st_size` is the current size, uncommitted changes included.
///
/// # Safety
/// `to` points to a `struct stat`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_fd_fstat(fd: c_int, to: *mut libc::stat) -> c_int {
    on_managed("fstat", fd, -1, |managed| {
        let mut stat = posix_descriptor::stat(fd).ok_or_else(|| system("read the file's status"))?;
        stat.st_size = managed.with(|file| Ok(file.len()?))? as off_t;
        if to.is_null() {
            return Err(Failure::null("the pointer to the stat"));
        }
        // SAFETY: not NULL; the rest is the caller's promise.
        unsafe { to.write(stat) };
        Ok(0)
    })
    // SAFETY: the caller's promise.
    .unwrap_or_else(|| unsafe { libc::fstat(fd, to) })
}

/// `ftruncate`. The new size is an uncommitted change until a sync.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_ftruncate(fd: c_int, size: off_t) -> c_int {
    on_managed("ftruncate", fd, -1, |managed| {
        check_writable(fd)?;
        let size = offset(size)?;
        managed.with(|file| change(managed, file, 0, || Ok(file.set_len(size)?))).map(|()| 0)
    })
    // SAFETY: takes numbers.
    .unwrap_or_else(|| changed_on_mount("ftruncate", fd, unsafe { libc::ftruncate(fd, size) }))
}

const ZERO: c_int = libc::FALLOC_FL_ZERO_RANGE;
const PUNCH: c_int = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
const ZERO_INSIDE: c_int = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;

/// Sets a file's size and zeros for a mode of `fallocate`. No disk space is reserved: a commit that finds no
/// space fails as a whole.
fn allocate(file: &File, mode: c_int, at: off_t, len: off_t) -> Result<()> {
    if at < 0 || len <= 0 {
        return Err(failure(libc::EINVAL, format!("{len} bytes at offset {at} cannot be allocated")));
    }
    let (at, len, size) = (at as u64, len as u64, file.len()?);
    arguments::range(at, len)?;
    match mode {
        0 if at + len > size => Ok(file.set_len(at + len)?),
        0 | libc::FALLOC_FL_KEEP_SIZE => Ok(()),
        ZERO => Ok(file.zero(at, len)?),
        PUNCH | ZERO_INSIDE => Ok(file.zero(at.min(size), len.min(size - at.min(size)))?),
        _ => Err(failure(libc::EOPNOTSUPP, format!("fallocate's mode {mode:#x} is not supported for managed files"))),
    }
}

/// `fallocate`. Extends the file, or zeros a range; no disk space is reserved.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_fallocate(fd: c_int, mode: c_int, at: off_t, len: off_t) -> c_int {
    on_managed("fallocate", fd, -1, |managed| {
        check_writable(fd)?;
        managed.with(|file| change(managed, file, 0, || allocate(file, mode, at, len))).map(|()| 0)
    })
    // SAFETY: takes numbers.
    .unwrap_or_else(|| changed_on_mount("fallocate", fd, unsafe { libc::fallocate(fd, mode, at, len) }))
}

/// `posix_fallocate`. Otherwise as untorn_fd_fallocate() with mode 0; returns an errno, as in POSIX.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_fd_posix_fallocate(fd: c_int, at: off_t, len: off_t) -> c_int {
    // The result if the call is refused in a signal handler.
    let mut errno = libc::EDEADLK;
    on_managed("posix_fallocate", fd, (), |managed| {
        let allocate = |file: &File| change(managed, file, 0, || allocate(file, 0, at, len));
        let done = check_writable(fd).and_then(|_| managed.with(allocate));
        errno = done.as_ref().err().map_or(0, |failure| failure.errno);
        done
    })
    .map(|()| errno)
    .unwrap_or_else(|| {
        // SAFETY: takes numbers.
        let failed = unsafe { libc::posix_fallocate(fd, at, len) };
        if changed_on_mount("posix_fallocate", fd, failed) < 0 { report::errno() } else { failed }
    })
}
