//! A directory that is built beside its place, and gets its name when it is complete.

use crate::error::{Error, Result};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::{File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A directory that is being built. It is removed if it does not get its name.
pub struct Fresh {
    dir: PathBuf,
    to: PathBuf,
}

fn failed(verb: &str, path: &Path, e: io::Error) -> Error {
    Error::store(format!("{verb} {}: {e}", path.display()))
}

/// The directory that holds a path.
fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Flushes the directory that holds a path.
///
/// # Errors
/// It cannot be flushed.
pub fn flush_parent(path: &Path) -> io::Result<()> {
    File::open(parent_of(path))?.sync_all()
}

impl Fresh {
    /// Makes an empty directory beside `to`.
    ///
    /// # Errors
    /// The directory that holds `to` does not let this user.
    pub fn beside(to: &Path, purpose: &str) -> Result<Fresh> {
        let name = to.file_name().ok_or_else(|| {
            Error::store(format!("{} has no name; give the directory a name of its own", to.display()))
        })?;
        // A random name: in some containers a process always has the same id, and a killed one leaves its directory.
        let (prefix, parent) = (format!(".{}.{purpose}-", name.to_string_lossy()), parent_of(to));
        let mode = Permissions::from_mode(0o700);
        let made = tempfile::Builder::new().prefix(&prefix).rand_bytes(12).permissions(mode).tempdir_in(parent);
        let dir = made.map_err(|e| failed("make a directory in", parent, e))?.keep();
        Ok(Fresh { dir, to: to.to_owned() })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Puts the directory into the place of the one that has its name, in one step, durably. The other one is removed.
    ///
    /// # Errors
    /// The file system cannot do it, or does not let this user.
    pub fn exchange(self) -> Result<()> {
        let exchanged = renameat_with(CWD, &self.dir, CWD, &self.to, RenameFlags::EXCHANGE);
        exchanged.map_err(|e| failed("replace", &self.to, e.into()))?;
        flush_parent(&self.to).map_err(|e| failed("replace", &self.to, e))
    }

    /// Gives the directory its name, durably. An empty directory of that name is replaced.
    ///
    /// # Errors
    /// The name is taken.
    pub fn name(self) -> Result<()> {
        let failed = |e| failed("make", &self.to, e);
        match renameat_with(CWD, &self.dir, CWD, &self.to, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            // Replaces an empty directory only. Some file systems know no flags.
            Err(_) => std::fs::rename(&self.dir, &self.to).map_err(failed)?,
        }
        flush_parent(&self.to).map_err(failed)
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // It has another name once it is complete.
        remove(&self.dir);
    }
}

/// Removes a directory with everything in it, also files that its user may not write.
pub fn remove(dir: &Path) {
    fn open_up(dir: &Path) {
        let _ = std::fs::set_permissions(dir, Permissions::from_mode(0o700));
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            open_up(&entry.path());
        }
    }
    match std::fs::remove_dir_all(dir) {
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            open_up(dir);
            let _ = std::fs::remove_dir_all(dir);
        }
        _ => {}
    }
}

/// Refuses a path that is taken, except by an empty directory that can be replaced.
///
/// # Errors
/// It is taken.
pub fn check_free(path: &Path) -> Result<()> {
    // With a slash at its end, a link would be followed.
    let path = path.components().as_path();
    let refused = |reason: &str| Err(Error::store(format!("{} {reason}", path.display())));
    let about = match path.symlink_metadata() {
        Ok(about) => about,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed("look at", path, e)),
    };
    if about.is_symlink() {
        return refused("is a symbolic link, which cannot be replaced: name a new directory, for example below it");
    }
    if about.is_dir() && parent_of(path).metadata().is_ok_and(|parent| parent.dev() != about.dev()) {
        return refused("is a mount point, which cannot be replaced: name a new directory below it");
    }
    match std::fs::read_dir(path).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => refused("is not empty: restore into a new directory, and move it to its place yourself"),
        Err(_) => refused("is there already: restore into a new directory"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_directory_that_can_be_replaced_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let (empty, link) = (dir.path().join("empty"), dir.path().join("link"));
        std::fs::create_dir(&empty).unwrap();
        std::os::unix::fs::symlink(&empty, &link).unwrap();
        check_free(&empty).unwrap();
        check_free(&dir.path().join("new")).unwrap();
        for link in [link.clone(), link.join("")] {
            assert!(check_free(&link).unwrap_err().to_string().contains("below it"));
        }
        assert!(check_free(dir.path()).unwrap_err().to_string().contains("is not empty"));
        assert!(check_free(Path::new("/proc")).unwrap_err().to_string().contains("is a mount point"));
    }

    #[test]
    fn the_directory_of_a_killed_process_does_not_block_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("to");
        let first = Fresh::beside(&to, "test").unwrap();
        assert_ne!(first.dir(), Fresh::beside(&to, "test").unwrap().dir());
    }
}
