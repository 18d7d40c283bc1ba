//! The process that owns the managed files, as opposed to a child that shares its memory.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering::*};

/// The process that manages files. 0: no process has managed files yet.
static OWNER: AtomicI32 = AtomicI32::new(0);

fn own_pid() -> c_int {
    // SAFETY: asks only.
    unsafe { libc::getpid() }
}

/// Makes this process the owner: before its first file, and in a forked child.
pub(crate) fn become_owner() {
    OWNER.store(own_pid(), Release);
}

/// Whether this process shares the memory of a parent that manages files, like a child made by `vfork`. The calls of
/// such a child on its descriptors do not affect the parent's files.
pub(crate) fn is_borrower() -> bool {
    let owner = OWNER.load(Acquire);
    owner != 0 && owner != own_pid()
}
