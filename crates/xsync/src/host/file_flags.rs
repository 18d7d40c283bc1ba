//! The flags of files and directories that `chattr` shows.

use rustix::fs::{IFlags, Mode, OFlags, ioctl_getflags, ioctl_setflags, open};
use std::os::fd::OwnedFd;
use std::path::Path;

/// The flags that say how a file is stored. Those that say who may change it (`+i`, `+a`) stay in the overlay.
const KEPT: [IFlags; 11] = [
    IFlags::SECURE_REMOVAL,
    IFlags::UNRM,
    IFlags::COMPRESSED,
    IFlags::SYNC,
    IFlags::NODUMP,
    IFlags::NOATIME,
    IFlags::NOTAIL,
    IFlags::DIRSYNC,
    IFlags::TOPDIR,
    IFlags::NOCOW,
    IFlags::PROJECT_INHERIT,
];

/// Copies the flags of a file or directory to another one, as far as the other file system accepts them.
pub fn copy(from: &Path, to: &Path) {
    let of = |path: &Path| -> Option<(OwnedFd, IFlags)> {
        let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = open(path, how, Mode::empty()).ok()?;
        let flags = ioctl_getflags(&file).ok()?;
        Some((file, flags))
    };
    let is_plain = std::fs::symlink_metadata(from).is_ok_and(|meta| meta.is_file() || meta.is_dir());
    let (Some((_, wanted)), Some((to, mut flags))) = (is_plain.then(|| of(from)).flatten(), of(to)) else { return };
    for flag in KEPT {
        if wanted.contains(flag) != flags.contains(flag) && ioctl_setflags(&to, flags ^ flag).is_ok() {
            flags ^= flag;
        }
    }
}
