//! A mount namespace for the supervisor: what it mounts is seen by nobody else, and goes with it.

use anyhow::{Context, Result, ensure};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Directory of all supervisors.
pub const HOME: &str = "/run/untorn-xsync";

/// A session cannot be made by anybody else.
pub fn check_root() -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "a session needs root: it mounts a volume and makes namespaces; run it by sudo"
    );
    Ok(())
}

/// Makes this process's mount namespace, with an empty directory for mounts. This process must have one thread.
pub fn private_mounts() -> Result<PathBuf> {
    check_root()?;
    let scratch = Path::new(HOME).join("scratch");
    fs::create_dir_all(&scratch).with_context(|| format!("cannot make {}", scratch.display()))?;
    // SAFETY: changes the namespace of this process, which has one thread.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(io::Error::last_os_error()).context("cannot make a mount namespace; run this as root");
    }
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC).context("private mounts")?;
    mount("untorn-xsync", &scratch, "tmpfs", MountFlags::NODEV | MountFlags::NOSUID, c"mode=700")
        .with_context(|| format!("cannot mount {}", scratch.display()))?;
    Ok(scratch)
}
