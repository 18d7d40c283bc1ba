//! Directories that disappear however the benchmark ends: by a return, a panic or Ctrl-C. With Ctrl-C its processes end, too.

use anyhow::{Context, Result};
use parking_lot::Mutex;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use untorn_terminal::{signals, tell};

/// The exit code of shells for "ended by Ctrl-C".
const INTERRUPTED: i32 = 130;

/// The time limit for the end of all children.
const END_TIME_MAX: Duration = Duration::from_secs(10);

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

/// Cleans up on SIGINT, SIGTERM and SIGHUP: no process that this one has started goes on, and no directory stays.
pub fn clean_up_on_signals() -> Result<()> {
    // A server whose parent has ended becomes a child of this process.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    signals::handle(|| {
        let left = LEFT.lock();
        end_children();
        left.iter().rev().for_each(|path| remove(path));
        // Holds the lock until the end: a thread that waits for it would only make more directories.
        std::process::exit(INTERRUPTED);
    })
    .context("cannot handle Ctrl-C")
}

/// Kills the children of this process, and theirs, which become its own.
fn end_children() {
    let until = Instant::now() + END_TIME_MAX;
    while Instant::now() < until {
        let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let children = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
        let children: Vec<Pid> = children
            .flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
            .filter_map(Pid::from_raw)
            .collect();
        if children.is_empty() {
            return;
        }
        for child in children {
            let _ = kill_process(child, Signal::KILL);
            let _ = waitpid(Some(child), WaitOptions::NOHANG);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
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
