//! Attributes of a mount, added to those that it has: in a user namespace, those that it has cannot be taken away.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// MOUNT_ATTR_RDONLY of `<linux/mount.h>`.
pub const READ_ONLY: u64 = 1;
/// MOUNT_ATTR_NODEV.
pub const NODEV: u64 = 4;
const PRIVATE: u64 = 1 << 18;

/// `struct mount_attr`.
#[repr(C)]
struct Attributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Adds attributes to a mount, of which the descriptor is the root; nothing spreads to or from it afterwards.
pub fn restrict(mount: impl AsFd, set: u64) -> io::Result<()> {
    let attributes = Attributes { set, clear: 0, propagation: PRIVATE, user_namespace: 0 };
    // SAFETY: both the empty path and the attributes are what the call reads, and outlive the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &attributes,
            size_of::<Attributes>(),
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
