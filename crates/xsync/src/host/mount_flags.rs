//! Adds attributes to a mount. In a user namespace, attributes cannot be taken away.

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

/// Adds attributes to the mount whose root the descriptor is, and makes it private: mounts do not propagate to or from
/// it.
pub fn restrict(mount: impl AsFd, set: u64) -> io::Result<()> {
    let attributes = Attributes { set, clear: 0, propagation: PRIVATE, user_namespace: 0 };
    // SAFETY: the call reads the empty path and the attributes, and both outlive the call.
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
