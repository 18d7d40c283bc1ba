//! Keeps a session from making sockets and FIFOs in a directory that others see, by Landlock.
//!
//! They would lead past the gate.

use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

/// LANDLOCK_ACCESS_FS_* of `<linux/landlock.h>`.
const MAKE_SOCKET: u64 = 1 << 9;
const MAKE_FIFO: u64 = 1 << 10;
const REFER: u64 = 1 << 13;
const RULE_PATH_BENEATH: libc::c_int = 1;
const CREATE_RULESET_VERSION: libc::c_ulong = 1;
/// The first version that lets files be moved between directories.
const VERSION_MIN: libc::c_long = 2;

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct Beneath {
    allowed: u64,
    directory: i32,
}

/// Restricts this process and all its later children to make sockets and FIFOs only in these directories. Needs
/// CAP_SYS_ADMIN.
pub fn allow_only_in<'a>(directories: impl Iterator<Item = &'a Path>) -> Result<()> {
    // SAFETY: only returns a number.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0, 0, CREATE_RULESET_VERSION) };
    if version < VERSION_MIN {
        bail!(
            "the kernel has no Landlock (Linux 5.19 or newer, with `landlock` in the parameter lsm=): sockets and \
             FIFOs that the session makes in the directory would lead past the gate; use a volume instead"
        );
    }
    let handled: u64 = MAKE_SOCKET | MAKE_FIFO | REFER;
    // SAFETY: the call reads the number, which outlives the call.
    let made = checked(unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &handled, size_of::<u64>(), 0) })?;
    // SAFETY: the call has just returned this descriptor, and nobody else has it.
    let rules = unsafe { OwnedFd::from_raw_fd(made as libc::c_int) };
    rule(&rules, Path::new("/"), REFER)?;
    for directory in directories {
        rule(&rules, directory, MAKE_SOCKET | MAKE_FIFO)?;
    }
    // SAFETY: numbers only.
    checked(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0) }).map(drop)
}

fn rule(rules: &OwnedFd, directory: &Path, allowed: u64) -> Result<()> {
    let open = File::open(directory).with_context(|| directory.display().to_string())?;
    let beneath = Beneath { allowed, directory: open.as_raw_fd() };
    // SAFETY: the call reads `beneath`, which outlives the call.
    checked(unsafe { libc::syscall(libc::SYS_landlock_add_rule, rules.as_raw_fd(), RULE_PATH_BENEATH, &beneath, 0) })
        .map(drop)
}

fn checked(result: libc::c_long) -> Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error()).context("cannot seal the directory (Landlock)")
    } else {
        Ok(result)
    }
}
