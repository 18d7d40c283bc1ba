//! Paths of any depth, in a form that the kernel accepts (PATH_MAX).
//!
//! A path that is longer than some bytes is made to begin at an open directory.

use rustix::fs::{Mode, OFlags, open};
use std::ffi::OsStr;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// From this length on, a path is made to begin at an open directory. It is far enough below PATH_MAX for one more
/// name.
const BYTES_MAX: usize = 2 << 10;

/// A path for system calls. It holds the directory at which it begins.
#[derive(Clone, Debug)]
pub struct DeepPath {
    path: PathBuf,
    shown: PathBuf,
    held: Option<Rc<OwnedFd>>,
}

impl DeepPath {
    /// Makes a path that begins where `path` does.
    pub fn new(path: &Path) -> DeepPath {
        DeepPath { path: path.to_owned(), shown: path.to_owned(), held: None }
    }

    /// The full path, for messages and comparisons.
    pub fn shown(&self) -> &Path {
        &self.shown
    }

    /// The path of a name in this directory.
    pub fn join(&self, name: impl AsRef<Path>) -> DeepPath {
        let (path, shown) = (self.path.join(&name), self.shown.join(&name));
        DeepPath { path, shown, held: self.held.clone() }
    }

    /// The path of another name in the same directory.
    pub fn with_file_name(&self, name: impl AsRef<OsStr>) -> DeepPath {
        let (path, shown) = (self.path.with_file_name(&name), self.shown.with_file_name(&name));
        DeepPath { path, shown, held: self.held.clone() }
    }

    /// This directory, in a form for listing it and for names in it.
    ///
    /// A long path becomes a link to an open directory. Calls that do not follow links would act on the link: use them
    /// with the path itself.
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
