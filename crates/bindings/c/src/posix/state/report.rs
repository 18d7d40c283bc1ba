//! Reports of failed calls: in `errno` as usual, and once each on standard error, because programs print no more of a
//! failure than `File exists`.

use std::ffi::c_int;
use std::path::PathBuf;

use super::call_section::Section;
use crate::boundary::error::untorn_error::{UNTORN_E_BAD_HANDLE, UNTORN_E_INVALID, UNTORN_E_IO, UNTORN_E_NULL};
use crate::boundary::error::{Failure, Result, guard};
pub(crate) use crate::boundary::log::tell;

/// Whether the C library's own call could have failed in the same way, so that no message is needed.
fn is_ordinary(failure: &Failure) -> bool {
    match failure.kind {
        UNTORN_E_IO => matches!(failure.errno, libc::EINVAL | libc::ENXIO | libc::ESPIPE | libc::EBADF | libc::ENOENT),
        UNTORN_E_INVALID | UNTORN_E_NULL | UNTORN_E_BAD_HANDLE => matches!(
            failure.errno,
            libc::EBADF | libc::EINVAL | libc::EFBIG | libc::EACCES | libc::EFAULT | libc::ENXIO | libc::EEXIST
        ),
        _ => false,
    }
}

/// Adds the path of the file to a message that names none.
pub(crate) fn about(failure: Failure, path: impl FnOnce() -> Option<PathBuf>) -> Failure {
    match path() {
        Some(path) if !failure.message.contains('/') => {
            Failure { message: format!("{}: {}", path.display(), failure.message), ..failure }
        }
        _ => failure,
    }
}

/// Runs the body of a call like [`guard`], and reports a failure on standard error.
pub(crate) fn reported<T>(call: &str, failed: T, body: impl FnOnce() -> Result<T>) -> T {
    let _section = Section::begin();
    guard(failed, || {
        body().inspect_err(|failure| {
            if !is_ordinary(failure) {
                tell(&format!("{call}: {}", failure.message));
            }
        })
    })
}

/// The `errno` of this thread.
pub(crate) fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: each thread has an `errno` of its own, which is valid while the thread runs.
    unsafe { *libc::__errno_location() = errno };
}
