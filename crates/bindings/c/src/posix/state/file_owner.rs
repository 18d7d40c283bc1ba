//! The process whose files these are: not a child that shares its memory.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering::*};

/// The process that manages files. 0: none ever was.
static OWNER: AtomicI32 = AtomicI32::new(0);

fn own_pid() -> c_int {
    // SAFETY: asks only.
    unsafe { libc::getpid() }
}

/// This process is it from now on: before its first file, and in a forked child.
pub(crate) fn become_owner() {
    OWNER.store(own_pid(), Release);
}

/// Whether this process shares the memory of a parent that manages files, as a child made by `vfork` does: what it does
/// with its descriptors is no business of the parent's files.
pub(crate) fn is_borrower() -> bool {
    let owner = OWNER.load(Acquire);
    owner != 0 && owner != own_pid()
}
