//! The end of the process: files that are still open become plain files, as of their last commit.

use std::sync::OnceLock;

use super::managed_files::{Managing, all, begin_managing};
use super::mount_files;
use crate::posix::state::call_section::enter;
use crate::posix::state::file_owner::is_borrower;
use crate::posix::state::report::reported;

/// Runs after everything that the program registered by `atexit`, and after its destructors: these may still use files.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = close_all;

/// Registers the handler. Without this reference, a static link would leave out the object that has [`AT_EXIT`].
pub(crate) fn register() {
    std::hint::black_box(&raw const AT_EXIT);
}

/// Ends the transactions over the files.
static FIRST: OnceLock<fn(&Managing)> = OnceLock::new();

/// Sets the function that runs before the files are closed.
pub(crate) fn run_first(end: fn(&Managing)) {
    let _ = FIRST.set(end);
}

/// Closes all files of this process, as the last `close` would. A child that shares its parent's files leaves them alone.
extern "C" fn close_all() {
    if is_borrower() {
        return;
    }
    // A handler may end the process in the middle of a call. The locks of that call are never released.
    let Some(_section) = enter("exit") else { return };
    let first = FIRST.get();
    if first.is_none() && all().is_empty() {
        return mount_files::end_all();
    }
    let managing = begin_managing();
    if let Some(end) = first {
        end(&managing);
    }
    mount_files::end_all();
    for file in all() {
        reported("exit", (), || file.end());
    }
}
