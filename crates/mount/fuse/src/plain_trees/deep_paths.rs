//! Handles trees of any depth, within the limits of the system: paths of at most 4095 bytes, some thousand descriptors
//! of a process, and a stack with room for some thousand calls.

use crate::plain_trees::copying::path_of;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, unlinkat};
use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Length of path after which an intermediate directory is kept open. For shorter paths none is.
const STEP: usize = 1024;

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens names at any depth below a directory through directories only: no symbolic link is followed.
pub struct Below {
    root: OwnedFd,
    /// Directories on the way to the last opened one, and the lengths of their paths.
    way: Vec<(usize, OwnedFd)>,
    /// The path of the last directory in `way`.
    path: Vec<u8>,
}

/// A name, as a path that can be used as long as this lives.
pub struct Reached {
    /// Leads to the name.
    pub full: PathBuf,
    _parent: OwnedFd,
}

impl Below {
    /// Starts at an open directory.
    pub fn new(root: OwnedFd) -> Below {
        Below { root, way: Vec::new(), path: Vec::new() }
    }

    /// Starts at the directory at a path.
    pub fn at(path: &Path) -> rustix::io::Result<Below> {
        Ok(Below::new(rustix::fs::open(path, DIRECTORY, Mode::empty())?))
    }

    /// The directory at which this starts.
    pub fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// Opens a directory with `O_PATH`; the empty path is the root directory.
    pub fn directory(&mut self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let bytes = path.as_os_str().as_bytes();
        while let Some((len, _)) = self.way.last() {
            let leads_on = bytes.get(*len).is_none_or(|next| *next == b'/');
            if leads_on && bytes.get(..*len) == self.path.get(..*len) {
                break;
            }
            self.way.pop();
        }
        let mut at = self.way.last().map_or(0, |(len, _)| *len);
        let mut opened: Option<OwnedFd> = None;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let skipped = rest.iter().take_while(|byte| **byte == b'/').count();
            let name = rest[skipped..].split(|byte| *byte == b'/').next().unwrap_or_default();
            at += skipped + name.len();
            if name.is_empty() || name == b"." {
                continue;
            }
            let from = opened.as_ref().or(self.way.last().map(|(_, kept)| kept)).unwrap_or(&self.root);
            opened = Some(openat(from, name, DIRECTORY, Mode::empty())?);
            let kept = self.way.last().map_or(0, |(len, _)| *len);
            if at - kept >= STEP
                && let Some(directory) = opened.take()
            {
                self.way.push((at, directory));
                self.path.truncate(kept);
                self.path.extend(&bytes[kept..at]);
            }
        }
        match opened {
            Some(opened) => Ok(opened),
            None => {
                let kept = self.way.last().map_or(&self.root, |(_, kept)| kept);
                openat(kept, ".", DIRECTORY, Mode::empty())
            }
        }
    }

    /// Returns a path to a name, which need not exist.
    pub fn name(&mut self, path: &Path) -> rustix::io::Result<Reached> {
        let name = path.file_name().unwrap_or(OsStr::new("."));
        let parent = self.directory(path.parent().unwrap_or(Path::new("")))?;
        Ok(Reached { full: path_of(&parent).join(name), _parent: parent })
    }
}

/// The sorted names in a directory that was opened with `O_PATH`.
pub fn names(directory: &OwnedFd) -> io::Result<Vec<OsString>> {
    let entries = fs::read_dir(path_of(directory))?;
    let mut names = entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
    names.sort_unstable();
    Ok(names)
}

/// Removes a directory with its contents, even if the modes in it forbid that to their owner.
pub fn remove_all(path: &Path) -> io::Result<()> {
    let mut below = Below::at(path)?;
    // For each directory on the way from the outermost one: its subdirectories that are still to be removed.
    let mut at = PathBuf::new();
    let mut levels = vec![remove_files(below.root())?];
    while let Some(directories) = levels.last_mut() {
        match directories.pop() {
            Some(name) => {
                at.push(name);
                levels.push(remove_files(&below.directory(&at)?)?);
            }
            None => {
                levels.pop();
                if let Some(name) = at.file_name() {
                    let parent = below.directory(at.parent().unwrap_or(Path::new("")))?;
                    unlinkat(parent, name, AtFlags::REMOVEDIR)?;
                    at.pop();
                }
            }
        }
    }
    drop(below);
    Ok(unlinkat(CWD, path, AtFlags::REMOVEDIR)?)
}

/// Removes all entries of a directory but its subdirectories, whose names it returns.
fn remove_files(directory: &OwnedFd) -> io::Result<Vec<OsString>> {
    // A copy may have a closed mode, as its original had.
    let _ = fs::set_permissions(path_of(directory), Permissions::from_mode(0o700));
    let mut directories = Vec::new();
    for name in names(directory)? {
        match unlinkat(directory, &name, AtFlags::empty()) {
            Err(rustix::io::Errno::ISDIR | rustix::io::Errno::PERM) if is_directory(directory, &name) => {
                directories.push(name);
            }
            removed => removed?,
        }
    }
    Ok(directories)
}

fn is_directory(parent: &OwnedFd, name: &OsStr) -> bool {
    fs::symlink_metadata(path_of(parent).join(name)).is_ok_and(|about| about.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, symlink};

    #[test]
    fn names_at_any_depth_are_reached_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let mut below = Below::at(dir.path()).unwrap();
        let (mut path, mut numbers) = (PathBuf::new(), Vec::new());
        for n in 0..1500 {
            path.push(if n % 7 == 0 { "directory" } else { "d" });
            fs::create_dir(below.name(&path).unwrap().full).unwrap();
            numbers.push(below.name(&path).unwrap().full.metadata().unwrap().ino());
        }
        assert!(below.way.len() > 3 && path.as_os_str().len() > 4096);
        let ino = |opened: OwnedFd| rustix::fs::fstat(opened).unwrap().st_ino;
        for n in (0..1500).rev() {
            assert_eq!(ino(below.directory(&path).unwrap()), numbers[n], "level {n}");
            path.pop();
        }
        assert!(below.way.is_empty());
        symlink("directory", dir.path().join("link")).unwrap();
        assert_eq!(below.directory(Path::new("link")).unwrap_err(), rustix::io::Errno::NOTDIR);
        assert_eq!(ino(below.directory(Path::new("./directory//d/")).unwrap()), numbers[1]);
        drop(below);
        fs::set_permissions(dir.path().join("directory"), Permissions::from_mode(0o000)).unwrap();
        remove_all(&dir.path().join("directory")).unwrap();
        fs::create_dir(dir.path().join("other")).unwrap();
        symlink("other", dir.path().join("second")).unwrap();
        assert!(remove_all(&dir.path().join("second")).is_err() && dir.path().join("other").exists());
    }

    #[test]
    fn one_path_is_not_taken_for_another_that_begins_alike() {
        let dir = tempfile::tempdir().unwrap();
        let long = "n".repeat(200);
        let of = |last: &str| (0..6).map(|_| long.as_str()).chain([last]).collect::<PathBuf>();
        for name in ["a", "ab"] {
            fs::create_dir_all(dir.path().join(of(name)).join(name)).unwrap();
        }
        let mut below = Below::at(dir.path()).unwrap();
        for name in ["a", "ab", "a"] {
            let reached = below.name(&of(name).join(name)).unwrap();
            assert!(reached.full.is_dir(), "{name}");
            assert_eq!(names(&below.directory(&of(name)).unwrap()).unwrap(), [name]);
        }
    }
}
