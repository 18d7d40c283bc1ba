//! Paths as C passes them.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A path relative to the directory of a descriptor, as one that every call takes.
///
/// # Safety
/// `path` is NULL or ends in NUL.
pub(super) unsafe fn path_at(dir: c_int, path: *const c_char) -> Option<PathBuf> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
    match dir {
        libc::AT_FDCWD => Some(path.to_owned()),
        _ if path.is_absolute() => Some(path.to_owned()),
        dir => Some(Path::new("/proc/self/fd").join(dir.to_string()).join(path)),
    }
}
