//! Directories that disappear however the benchmark ends: by a return, a panic or Ctrl-C.

use anyhow::{Context, Result};
use parking_lot::Mutex;
use rustix::mount::UnmountFlags;
use std::path::{Path, PathBuf};
use untorn_terminal::{signals, tell};

/// The exit code of shells for "ended by Ctrl-C".
const INTERRUPTED: i32 = 130;

/// The directories that still exist, in the order of their creation.
static LEFT: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A new directory. It is unmounted, if it is a mount point, and removed when dropped.
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    pub fn new_in(parent: &Path) -> Result<Scratch> {
        let made = tempfile::Builder::new().prefix("untorn-bench-").tempdir_in(parent);
        let path = made.with_context(|| format!("cannot make a directory in {}", parent.display()))?.keep();
        LEFT.lock().push(path.clone());
        Ok(Scratch { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove(&self.path);
        LEFT.lock().retain(|path| *path != self.path);
    }
}

/// Cleans up on SIGINT, SIGTERM and SIGHUP.
pub fn clean_up_on_signals() -> Result<()> {
    signals::handle(|| {
        let left = LEFT.lock();
        left.iter().rev().for_each(|path| remove(path));
        // Holds the lock until the end: a thread that waits for it would only make more directories.
        std::process::exit(INTERRUPTED);
    })
    .context("cannot handle Ctrl-C")
}

fn remove(path: &Path) {
    // Detached, because this process may still have files open there. Usually the directory is no mount point (EINVAL).
    let _ = rustix::mount::unmount(path, UnmountFlags::DETACH);
    if let Err(e) = std::fs::remove_dir_all(path)
        && e.kind() != std::io::ErrorKind::NotFound
    {
        tell!("cannot remove {}: {e}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_leaves_nothing() {
        let parent = tempfile::tempdir().unwrap();
        let panicked = std::panic::catch_unwind(|| {
            let scratch = Scratch::new_in(parent.path()).unwrap();
            std::fs::write(scratch.path().join("file"), "x").unwrap();
            panic!("on purpose");
        });
        assert!(panicked.is_err());
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
