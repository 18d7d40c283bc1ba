//! The numbers of the library's own descriptors.

use std::ffi::c_int;

/// The lowest descriptor of the library's own, unless the limit is low.
const HIGH_DESCRIPTORS: c_int = 512;

/// Keeps the library's descriptors out of the way of programs that choose numbers by themselves, as shells do.
pub(crate) fn keep_descriptors_high() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0 {
        untorn_os::keep_from(HIGH_DESCRIPTORS.min(c_int::try_from(limit.rlim_cur / 2).unwrap_or(c_int::MAX)));
    }
}
