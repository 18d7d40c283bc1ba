//! Finds the file to which a path leads.

use crate::{Error, Result};
use rustix::fs::{PROC_SUPER_MAGIC, statfs};
use rustix::io::Errno;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Number of links in a row that Linux itself follows.
const LINKS_MAX: usize = 40;
/// The mode of a directory in which everybody creates files and removes only their own.
const SHARED: u32 = 0o1002;

/// Follows links at the end of a path. The last may dangle, as for a program that creates files.
pub(super) fn real_path(path: &Path) -> Result<PathBuf> {
    if path.as_os_str().as_bytes().ends_with(b"/") {
        return Err(Error::invalid(format!("{} is a directory's name; name a file", path.display())));
    }
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Error::invalid(format!("`{}` names no file", path.display())));
        };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let parent = parent.canonicalize().map_err(|e| Error::io("find the directory", parent, e))?;
        let full = parent.join(name);
        match full.symlink_metadata() {
            Ok(link) if link.is_symlink() => {
                check_link(&parent, &full, &link)?;
                path = parent.join(full.read_link().map_err(|e| Error::io("read the link", &full, e))?);
                check_descriptor(&parent, &full, &path)?;
            }
            // Any other object, or none: the next step opens it without following links.
            _ => return Ok(full),
        }
    }
    Err(Error::io("follow the links of", &path, Errno::LOOP.into()))
}

/// Refuses a link that another user planted in a shared directory, like the kernel when it follows links itself
/// (`fs.protected_symlinks`).
fn check_link(parent: &Path, full: &Path, link: &Metadata) -> Result<()> {
    let dir = parent.metadata().map_err(|e| Error::io("look at", parent, e))?;
    let shared = dir.mode() & SHARED == SHARED;
    let me = rustix::process::geteuid().as_raw();
    if shared && link.uid() != me && link.uid() != dir.uid() {
        let detail = format!("it is a link that user {} put into a shared directory; name the file itself", link.uid());
        return Err(Error::Untrusted { path: full.to_owned(), detail });
    }
    Ok(())
}

/// Refuses a link to an open file (`/dev/fd/3`) whose target name does not lead to that file, because the file was
/// removed, or never had a name.
fn check_descriptor(parent: &Path, full: &Path, said: &Path) -> Result<()> {
    if !statfs(parent).is_ok_and(|found| found.f_type == PROC_SUPER_MAGIC) {
        return Ok(());
    }
    let id = |path: &Path| path.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
    match id(full) {
        Some(open) if id(said) != Some(open) => Err(Error::invalid(format!(
            "{} is an open file without a name (it was removed, or is a pipe or a socket), so there is nothing to replace; \
             name a file. Nothing was changed",
            full.display()
        ))),
        _ => Ok(()),
    }
}
