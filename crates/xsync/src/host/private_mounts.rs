//! A private mount namespace for the supervisor: no other process sees its mounts, and they go with it.

use crate::report::session_home;
use anyhow::{Context, Result, ensure};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use std::fs;
use std::io;
use std::path::PathBuf;
use untorn_terminal::user_namespace::{self, is_root};

/// Fails unless this process is root, which a session with a volume needs.
pub fn check_root() -> Result<()> {
    ensure!(is_root(), root_is_needed());
    Ok(())
}

/// A message: a session with a volume needs root, and how to do without.
pub fn root_is_needed() -> &'static str {
    "a session with a volume needs root: it mounts a volume; run it by sudo, or with --place DIR or --on DIR in a \
     directory that an administrator provides (`untorn xsync --print-fstab` prints how)"
}

/// The message for a root process to which the kernel refuses namespaces.
pub const NOT_ALLOWED: &str = "this process is root without the right to make namespaces (CAP_SYS_ADMIN), as in a \
    session or in a container: a session cannot run in a session; in a container, give the container this capability";

/// Enters a new mount namespace, and returns an empty directory for mounts. This process must have one thread.
pub fn private_mounts() -> Result<PathBuf> {
    let scratch = session_home::home()?.join("scratch");
    fs::create_dir_all(&scratch).with_context(|| format!("cannot make {}", scratch.display()))?;
    if !is_root() {
        user_namespace::enter().map_err(anyhow::Error::msg)?;
    // SAFETY: changes the namespace of this process, which has one thread.
    } else if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(io::Error::last_os_error()).context(NOT_ALLOWED);
    }
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC).map_err(|e| {
        if is_root() {
            anyhow::Error::new(e).context("private mounts")
        } else {
            anyhow::Error::msg(user_namespace::refused(&e.into()))
        }
    })?;
    mount("untorn-xsync", &scratch, "tmpfs", MountFlags::NODEV | MountFlags::NOSUID, c"mode=700")
        .with_context(|| format!("cannot mount {}", scratch.display()))?;
    Ok(scratch)
}
