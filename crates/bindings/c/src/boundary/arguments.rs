//! Checks on the arguments that C passes in.

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::boundary::error::{Failure, Result};

/// The largest offset and file size: the maximum of `off_t`.
pub(crate) const OFFSET_MAX: u64 = i64::MAX as u64;

/// A path: any bytes that end in NUL.
///
/// # Safety
/// `path` is NULL or points to a string that ends in NUL and stays unchanged during `'a`.
pub(crate) unsafe fn path<'a>(path: *const c_char, what: &str) -> Result<&'a Path> {
    if path.is_null() {
        return Err(Failure::null(what));
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    if bytes.is_empty() {
        return Err(Failure { errno: libc::ENOENT, ..Failure::invalid(format!("{what} is empty")) });
    }
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

/// A path in a store; the empty path is the store's own directory.
///
/// # Safety
/// As of [`path`].
pub(crate) unsafe fn path_or_top<'a>(path: *const c_char) -> Result<&'a Path> {
    if path.is_null() {
        return Err(Failure::null("the path"));
    }
    // SAFETY: the caller's promise.
    Ok(Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes())))
}

/// Bytes that the call reads. NULL is allowed if `len` is 0.
///
/// # Safety
/// Unless `len` is 0, `buf` is NULL or points to `len` bytes that stay unchanged during `'a`.
pub(crate) unsafe fn bytes<'a>(buf: *const c_void, len: usize) -> Result<&'a [u8]> {
    match checked_len(buf, len)? {
        0 => Ok(&[]),
        // SAFETY: not NULL, not longer than a slice may be; the rest is the caller's promise.
        len => Ok(unsafe { std::slice::from_raw_parts(buf.cast(), len) }),
    }
}

/// Bytes that the call writes. NULL is allowed if `len` is 0.
///
/// # Safety
/// Unless `len` is 0, `buf` is NULL or points to `len` bytes that no other code uses during `'a`.
pub(crate) unsafe fn bytes_mut<'a>(buf: *mut c_void, len: usize) -> Result<&'a mut [u8]> {
    match checked_len(buf, len)? {
        0 => Ok(&mut []),
        // SAFETY: not NULL, not longer than a slice may be; the rest is the caller's promise.
        len => Ok(unsafe { std::slice::from_raw_parts_mut(buf.cast(), len) }),
    }
}

fn checked_len(buf: *const c_void, len: usize) -> Result<usize> {
    if len > isize::MAX as usize {
        return Err(Failure::invalid(format!("a length of {len} bytes is larger than SSIZE_MAX")));
    }
    if len > 0 && buf.is_null() {
        return Err(Failure::null("the buffer"));
    }
    Ok(len)
}

/// An offset that `off_t` can hold.
pub(crate) fn offset(offset: u64) -> Result<u64> {
    if offset > OFFSET_MAX {
        return Err(Failure::invalid(format!("offset {offset} is negative, or larger than INT64_MAX")));
    }
    Ok(offset)
}

/// Checks that a range ends within the largest file size.
pub(crate) fn range(start: u64, len: u64) -> Result<()> {
    offset(start)?;
    match start.checked_add(len) {
        Some(end) if end <= OFFSET_MAX => Ok(()),
        _ => Err(Failure::too_big(format!("{len} bytes at offset {start} end past INT64_MAX"))),
    }
}

/// Permission bits.
pub(crate) fn mode(mode: u32) -> Result<u32> {
    if mode & !0o7777 != 0 {
        return Err(Failure::invalid(format!("mode {mode:#o} has bits outside 07777")));
    }
    Ok(mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_where_off_t_ends() {
        assert!(range(OFFSET_MAX, 0).is_ok());
        assert!(range(OFFSET_MAX - 1, 1).is_ok());
        let errno = |start, len| range(start, len).unwrap_err().errno;
        assert_eq!(errno(OFFSET_MAX, 1), libc::EFBIG);
        assert_eq!(errno(1, u64::MAX), libc::EFBIG);
        assert_eq!(errno(OFFSET_MAX + 1, 0), libc::EINVAL);
        assert_eq!(errno(u64::MAX, 1), libc::EINVAL);
    }
}
