//! Explains renames that an overlay refuses (EXDEV).
//!
//! The overlay refuses to rename a directory of the host where it cannot note the old place. Programs like `mv` copy
//! the directory then; others print an error that names no cause.

use crate::host::host_view::Written;
use crate::host::outer_streams::tell;
use rustix::fs::lgetxattr;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The renames of one session, until one message explains a refusal.
#[derive(Debug, Default)]
pub struct Renames {
    told: bool,
}

impl Renames {
    /// Examines a rename before the kernel does it. The path is in the memory of a process, relative to one of its
    /// directories.
    pub fn look_at(&mut self, pid: u32, from: Option<i32>, at: u64, written: &[Written]) {
        if self.told {
            return;
        }
        let Some(path) = path_of(pid, from, at) else { return };
        let Some(written) = written.iter().find(|written| path.starts_with(&written.dir) && path != written.dir) else {
            return;
        };
        let upper = written.upper.join(path.strip_prefix(&written.dir).expect("it starts so"));
        let is_dir = |path: &Path| fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir());
        // New entries are only in the layer. A directory in the layer that hides one of the host is new as well.
        let is_new = |upper: &Path| {
            let opaque = ["trusted.overlay.opaque", "user.overlay.opaque"];
            opaque.iter().any(|name| lgetxattr(upper, *name, &mut [0; 8][..]).is_ok())
        };
        let hidden = fs::symlink_metadata(&upper).is_ok_and(|meta| !meta.is_dir()) || is_new(&upper);
        if is_dir(&path) && !hidden {
            self.told = true;
            tell(format_args!(
                "{}: a directory that came from the host cannot be renamed in a session without root, or on a file system \
                 without file handles (EXDEV): programs like mv copy it; with --on DIR, or as root, it is renamed",
                path.display()
            ));
        }
    }
}

/// Reads a path from a process, as all processes of the session see it.
fn path_of(pid: u32, from: Option<i32>, at: u64) -> Option<PathBuf> {
    let mut bytes = vec![0; libc::PATH_MAX as usize];
    let got = File::open(format!("/proc/{pid}/mem")).ok()?.read_at(&mut bytes, at).ok()?;
    let path = Path::new(OsStr::from_bytes(bytes[..got].split(|byte| *byte == 0).next()?));
    let base = match from {
        Some(descriptor) if descriptor != libc::AT_FDCWD => format!("/proc/{pid}/fd/{descriptor}"),
        _ => format!("/proc/{pid}/cwd"),
    };
    let path = if path.is_absolute() { path.to_owned() } else { fs::read_link(base).ok()?.join(path) };
    // Drops the dots and doubled slashes of the path.
    Some(path.components().collect())
}
