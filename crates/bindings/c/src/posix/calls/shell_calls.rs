//! Exported functions: shell commands, such as `cp` of a managed file, which see the committed contents.

use std::ffi::{c_char, c_int};

use libc::FILE;

use crate::posix::files::managed_files::{all, is_any_managed};
use crate::posix::state::call_section::enter;
use crate::posix::state::file_owner::is_borrower;
use crate::posix::state::report::reported;

/// Applies all commits to the plain files. Failures are reported on standard error. False: refused.
fn show_commits(call: &str) -> bool {
    if !is_any_managed() || is_borrower() {
        return true;
    }
    let Some(_section) = enter(call) else { return false };
    for file in all() {
        reported(call, (), || file.with(|file| Ok(file.store().checkpoint()?)));
    }
    true
}

/// `system`. The command finds all managed files as of their last commit.
///
/// # Safety
/// As for `system`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_shell_system(command: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    if command.is_null() || show_commits("system") { unsafe { libc::system(command) } } else { -1 }
}

/// `popen`: as untorn_shell_system().
///
/// # Safety
/// As for `popen`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_shell_popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller's promise.
    if show_commits("popen") { unsafe { libc::popen(command, mode) } } else { std::ptr::null_mut() }
}
