//! Collects names that a plain directory refuses, so that one refused name does not keep all others from the directory.

use crate::error_line::in_one_line;
use anyhow::{Error, Result, bail, ensure};
use rustix::fd::AsFd;
use rustix::fs::fstatvfs;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path, PathBuf};
use untorn_terminal::table::count;

/// A file system with this many free bytes is not full.
const ROOM: u64 = 1 << 20;
/// The most names that a message lists.
const TOLD: usize = 50;

/// Names that could not be made, and the reasons.
#[derive(Default)]
pub struct HeldBack(BTreeMap<PathBuf, String>);

impl HeldBack {
    /// Notes a name that the directory refused. An error that affects the whole directory, such as a full disk, stays
    /// an error.
    pub fn or_hold(&mut self, path: &Path, done: Result<()>, on: impl AsFd) -> Result<()> {
        match done {
            Err(e) if !is_of_all(&e, on) => {
                self.0.insert(path.to_owned(), in_one_line(&e));
                Ok(())
            }
            done => done,
        }
    }

    /// Whether a name, or a directory that contains it, was refused.
    pub fn has(&self, path: &Path) -> bool {
        !self.0.is_empty() && path.ancestors().any(|above| self.0.contains_key(above))
    }

    /// Whether a name in this directory was refused.
    pub fn has_below(&self, directory: &Path) -> bool {
        let next = self.0.range(directory.to_owned()..).find(|(path, _)| *path != directory);
        next.is_some_and(|(path, _)| path.starts_with(directory))
    }

    /// Number of refused names.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// One line for each refused name.
    pub fn lines(&self) -> String {
        let mut lines: Vec<String> = self.0.values().take(TOLD).map(|why| format!("  {why}")).collect();
        if self.0.len() > TOLD {
            lines.push(format!("  and {} more", self.0.len() - TOLD));
        }
        lines.join("\n")
    }

    /// An error if any name was refused.
    pub fn refuse(&self) -> Result<()> {
        match self.0.len() {
            0 => Ok(()),
            1 => bail!("{}; --skip leaves it out", self.0.values().next().map_or("", String::as_str)),
            n => {
                bail!("{} cannot be copied; --skip leaves one out:\n{}", count(n as u64, "name", "names"), self.lines())
            }
        }
    }
}

/// Whether an error concerns the whole file system or process rather than the one name.
fn is_of_all(e: &Error, on: impl AsFd) -> bool {
    let number = e.chain().find_map(|cause| {
        let io = cause.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        io.or_else(|| cause.downcast_ref::<rustix::io::Errno>().map(|errno| errno.raw_os_error()))
    });
    match number {
        // The kernel also returns ENOSPC for attributes for which an inode has no room.
        Some(libc::ENOSPC) => fstatvfs(on).map_or(true, |room| {
            room.f_bavail.saturating_mul(room.f_frsize) < ROOM || room.f_files > 0 && room.f_favail == 0
        }),
        Some(number) => [libc::EDQUOT, libc::EIO, libc::EROFS, libc::ENOMEM, libc::EMFILE, libc::ENFILE, libc::EINTR]
            .contains(&number),
        None => false,
    }
}

/// Names to leave out, with everything below them.
#[derive(Default)]
pub struct Skips {
    names: BTreeSet<PathBuf>,
    found: RefCell<BTreeSet<PathBuf>>,
}

impl Skips {
    /// Takes the names as users write them, relative to the directory.
    pub fn new(names: &[PathBuf]) -> Skips {
        let plain = |name: &PathBuf| name.components().filter(|part| *part != Component::CurDir).collect::<PathBuf>();
        Skips { names: names.iter().map(plain).collect(), found: RefCell::default() }
    }

    /// Whether this name is to be left out.
    pub fn has(&self, path: &Path) -> bool {
        let found = self.names.iter().find(|name| path.starts_with(name));
        if let Some(name) = found {
            self.found.borrow_mut().insert(name.clone());
        }
        found.is_some()
    }

    /// Refuses names that do not exist.
    pub fn check(&self) -> Result<()> {
        let missing = self.names.difference(&self.found.borrow()).next().cloned();
        ensure!(
            missing.is_none(),
            "there is no {} to skip; give names as the messages show them, relative to the directory",
            missing.unwrap_or_default().display()
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn one_name_is_told_from_all() {
        let dir = std::fs::File::open("/").unwrap();
        let mut held = HeldBack::default();
        let failed = |number| Err(io::Error::from_raw_os_error(number)).context("cannot make it");
        for (name, number) in [("a", libc::EPERM), ("a/b", libc::EMLINK), ("c", libc::ENAMETOOLONG)] {
            held.or_hold(Path::new(name), failed(number), &dir).unwrap();
        }
        assert!(held.or_hold(Path::new("d"), failed(libc::EIO), &dir).is_err());
        assert!(held.has(Path::new("c/d")) && !held.has(Path::new("cd")) && !held.has(Path::new("d")));
        assert!(held.has_below(Path::new("a")) && !held.has_below(Path::new("c")) && held.has_below(Path::new("")));
        assert!(held.refuse().unwrap_err().to_string().contains("3 names"));
    }

    #[test]
    fn what_is_skipped_must_be_there() {
        let skips = Skips::new(&["./a/b/".into(), "c".into()]);
        assert!(skips.has(Path::new("a/b/d")) && !skips.has(Path::new("a")) && !skips.has(Path::new("cd")));
        assert!(skips.check().unwrap_err().to_string().contains("there is no c"));
        assert!(skips.has(Path::new("c")) && skips.check().is_ok());
    }
}
