//! Failures of the calls: in `errno` as ever, and once each on standard error, because programs print no more of them
//! than `File exists`.

use std::collections::HashSet;
use std::ffi::c_int;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use super::call_section::Section;
use crate::error::untorn_error::{UNTORN_E_BAD_HANDLE, UNTORN_E_INVALID, UNTORN_E_IO, UNTORN_E_NULL};
use crate::error::{Failure, Result, guard};
use crate::log;

/// Messages that were told. More than these are not told.
static TOLD: Mutex<Option<HashSet<u64>>> = Mutex::new(None);
const TOLD_MAX: usize = 100;

/// Says something on standard error, once, unless the log is switched off (`UNTORN_LOG=off`).
pub(super) fn tell(text: &str) {
    if log::is_off() {
        return;
    }
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    let told = told.get_or_insert_default();
    if told.len() < TOLD_MAX && told.insert(hasher.finish()) {
        let line = format!("untorn: {text}\n");
        // SAFETY: the bytes of `line`. Nobody is told of a standard error that is closed.
        let _ = unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
    }
}

/// What the C library would also have said: the program's own business.
fn is_ordinary(failure: &Failure) -> bool {
    match failure.kind {
        UNTORN_E_IO => matches!(failure.errno, libc::EINVAL | libc::ENXIO | libc::ESPIPE | libc::EBADF | libc::ENOENT),
        UNTORN_E_INVALID | UNTORN_E_NULL | UNTORN_E_BAD_HANDLE => matches!(
            failure.errno,
            libc::EBADF | libc::EINVAL | libc::EFBIG | libc::EACCES | libc::EFAULT | libc::ENXIO
        ),
        _ => false,
    }
}

/// Adds the path of the file to a message that names none.
pub(super) fn about(failure: Failure, path: impl FnOnce() -> Option<PathBuf>) -> Failure {
    match path() {
        Some(path) if !failure.message.contains('/') => {
            Failure { message: format!("{}: {}", path.display(), failure.message), ..failure }
        }
        _ => failure,
    }
}

/// Runs the body of a call, as [`guard`], and says on standard error what failed.
pub(super) fn reported<T>(call: &str, failed: T, body: impl FnOnce() -> Result<T>) -> T {
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
pub(super) fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

pub(super) fn set_errno(errno: c_int) {
    // SAFETY: each thread has an `errno` of its own, which is valid while the thread runs.
    unsafe { *libc::__errno_location() = errno };
}
