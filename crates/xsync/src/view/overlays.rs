//! Mounts overlays of the host's directories.

use crate::host::host_view::Shown;
use crate::host::mount_flags;
use crate::invariant::OVERLAYS_OF_THE_HOST;
use anyhow::{Context, Result, bail};
use rustix::fs::{CWD, Mode, OFlags, open};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, fsconfig_create, fsconfig_set_string,
    fsmount, fsopen, mount, mount_bind, move_mount,
};
use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use untorn_os::holds;
use untorn_terminal::user_namespace::is_root;

/// Shows a directory or file of the host, read-only.
///
/// Sockets and FIFOs on an overlay are separate from those of the host. A bind mount would lead to the processes of the
/// host that have them open.
pub fn show(shown: &Shown, place: &Path, lowest: &Path) -> Result<()> {
    if shown.is_file || !holds(OVERLAYS_OF_THE_HOST) {
        if shown.is_file && !fs::metadata(&shown.at)?.is_file() {
            bail!("neither a directory nor a regular file");
        }
        mount_bind(&shown.at, place)?;
        let place = open(place, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        return Ok(mount_flags::restrict(place, mount_flags::READ_ONLY | mount_flags::NODEV)?);
    }
    let (upper, lower) = (File::open(&shown.at)?, File::open(lowest)?);
    let layers = format!("{}:{}", path_of(&upper), path_of(&lower));
    overlay(&[("lowerdir", &layers)], MountAttrFlags::MOUNT_ATTR_RDONLY, place)
}

/// The prefix of an overlay's own attributes: root's, or an ordinary user's.
pub fn overlay_attributes() -> &'static str {
    if is_root() { "trusted.overlay." } else { "user.overlay." }
}

/// The path of an open directory. It is short, and has no characters that would need escapes in mount options.
pub fn path_of(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Mounts an overlay.
pub fn overlay(options: &[(&str, &str)], more: MountAttrFlags, at: &Path) -> Result<()> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).context("overlays (the file system overlayfs)")?;
    for (name, value) in options {
        let set = match *value {
            "" => rustix::mount::fsconfig_set_flag(&context, *name),
            value => fsconfig_set_string(&context, *name, value),
        };
        set.with_context(|| format!("{name}={value}{}", said(&context)))?;
    }
    fsconfig_create(&context).with_context(|| format!("overlay{}", said(&context)))?;
    let mounted = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, more | MountAttrFlags::MOUNT_ATTR_NODEV)?;
    Ok(move_mount(&mounted, "", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// The kernel's message about a mount that it refused.
fn said(context: &OwnedFd) -> String {
    let mut text = [0; 512];
    match rustix::io::read(context, &mut text[..]) {
        Ok(bytes) if bytes > 0 => format!(" ({})", String::from_utf8_lossy(&text[..bytes]).trim()),
        _ => String::new(),
    }
}

/// Mounts a directory in memory.
pub fn memory(at: &Path, mode: &str) -> Result<()> {
    let options = std::ffi::CString::new(mode)?;
    mount("untorn-xsync", at, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, &*options)
        .with_context(|| format!("a directory in memory at {}", at.display()))
}
