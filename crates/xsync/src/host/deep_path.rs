//! Paths that the kernel takes, however deep they are (PATH_MAX): beyond some bytes they begin at an open directory.

use rustix::fs::{Mode, OFlags, open};
use std::ffi::OsStr;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// With a name behind it, far below PATH_MAX.
const BYTES_MAX: usize = 2 << 10;

/// A path for calls of the kernel, which holds the directory that it begins at.
#[derive(Clone, Debug)]
pub struct DeepPath {
    path: PathBuf,
    shown: PathBuf,
    held: Option<Rc<OwnedFd>>,
}

impl DeepPath {
    /// A path as it is.
    pub fn new(path: &Path) -> DeepPath {
        DeepPath { path: path.to_owned(), shown: path.to_owned(), held: None }
    }

    /// For people, and to compare.
    pub fn shown(&self) -> &Path {
        &self.shown
    }

    /// A name in this directory.
    pub fn join(&self, name: impl AsRef<Path>) -> DeepPath {
        let (path, shown) = (self.path.join(&name), self.shown.join(&name));
        DeepPath { path, shown, held: self.held.clone() }
    }

    /// Another name in the directory of this one.
    pub fn with_file_name(&self, name: impl AsRef<OsStr>) -> DeepPath {
        let (path, shown) = (self.path.with_file_name(&name), self.shown.with_file_name(&name));
        DeepPath { path, shown, held: self.held.clone() }
    }

    /// This directory, to list it and for names in it. Where the path begins anew, it is a link for calls that do not
    /// follow links: ask those about the path itself.
    pub fn directory(&self) -> io::Result<DeepPath> {
        if self.path.as_os_str().as_bytes().len() < BYTES_MAX {
            return Ok(self.clone());
        }
        let dir =
            open(&self.path, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let path = format!("/proc/self/fd/{}", dir.as_raw_fd()).into();
        Ok(DeepPath { path, shown: self.shown.clone(), held: Some(Rc::new(dir)) })
    }
}

impl Deref for DeepPath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl AsRef<Path> for DeepPath {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}
