//! Temporarily opens directories that their owner has closed to himself (mode 0555) and below which something must be
//! changed, as `chmod u+w` before the change and `chmod u-w` after it would.

use crate::plain_trees::copying::path_of;
use crate::plain_trees::deep_paths::Below;
use crate::plain_trees::manifest::write_whole;
use anyhow::{Context, Result};
use rustix::fs::{Stat, fstat};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The mode bits of the owner.
const OPEN: u32 = 0o700;

/// Directories that are temporarily open, and their former modes.
pub struct WidenedModes {
    /// File with the former modes, for recovery after a kill.
    record: PathBuf,
    modes: BTreeMap<PathBuf, u32>,
}

impl WidenedModes {
    /// Opens those of the directories that belong to this user.
    ///
    /// Their modes are durable in the record before the first is changed. Directories that a killed process had opened
    /// are included.
    pub fn open(record: PathBuf, below: &mut Below, directories: &BTreeSet<&Path>) -> Result<WidenedModes> {
        let modes = match fs::read(&record) {
            Err(e) if e.kind() == ErrorKind::NotFound => BTreeMap::new(),
            bytes => read(&bytes.with_context(|| format!("cannot read {}", record.display()))?)
                .with_context(|| format!("{} is damaged", record.display()))?,
        };
        let mut widened = WidenedModes { record, modes };
        // Repeated, because a directory that cannot be searched hides others below it.
        loop {
            let closed: Vec<(&Path, u32)> = directories
                .iter()
                .filter_map(|path| Some((*path, closed(&fstat(below.directory(path).ok()?).ok()?)?)))
                .collect();
            if closed.is_empty() {
                break;
            }
            for (path, mode) in &closed {
                widened.modes.entry(path.to_path_buf()).or_insert(*mode);
            }
            widened.write()?;
            let mut is_opened = false;
            for (path, mode) in closed {
                let opened = below.directory(path).map_err(std::io::Error::from);
                let opened =
                    opened.and_then(|at| fs::set_permissions(path_of(&at), Permissions::from_mode(mode | OPEN)));
                // Not an error here: the later change in that directory fails, and says why.
                is_opened |= opened.is_ok();
            }
            if !is_opened {
                break;
            }
        }
        Ok(widened)
    }

    fn write(&self) -> Result<()> {
        let mut bytes = Vec::new();
        for (path, mode) in &self.modes {
            bytes.extend(format!("{mode:o} ").into_bytes());
            bytes.extend(path.as_os_str().as_bytes());
            bytes.push(0);
        }
        write_whole(&self.record, &bytes)
    }

    /// The directories that are open.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.modes.keys().map(PathBuf::as_path)
    }

    /// Notes that a directory has got its final mode.
    pub fn settled(&mut self, path: &Path) {
        self.modes.remove(path);
    }

    /// Restores the mode of a directory that still exists, unless another process has changed the mode.
    pub fn set_back(&mut self, path: &Path, below: &mut Below) -> Result<()> {
        let Some(mode) = self.modes.remove(path) else { return Ok(()) };
        let at = match below.directory(path) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            at => at.with_context(|| format!("cannot open {}", path.display()))?,
        };
        if fstat(&at)?.st_mode & 0o7777 != mode | OPEN {
            return Ok(());
        }
        let done = fs::set_permissions(path_of(&at), Permissions::from_mode(mode));
        done.with_context(|| format!("cannot set the mode of {} back to {mode:o}", path.display()))
    }

    /// Restores the modes of all directories that are still open, the deepest first.
    pub fn set_all_back(mut self, below: &mut Below) -> Result<()> {
        let paths: Vec<PathBuf> = self.modes.keys().rev().cloned().collect();
        let done = paths.iter().map(|path| self.set_back(path, below)).fold(Ok(()), Result::and);
        if done.is_ok() {
            // Removed, because the modes may be changed on purpose later.
            match fs::remove_file(&self.record) {
                Err(e) if e.kind() != ErrorKind::NotFound => {
                    return Err(e).with_context(|| format!("cannot remove {}", self.record.display()));
                }
                _ => {}
            }
        }
        done
    }
}

/// The mode of a directory that belongs to this user and is closed to him, if he can restore it.
fn closed(about: &Stat) -> Option<u32> {
    let mode = about.st_mode & 0o7777;
    let is_own = about.st_uid == rustix::process::geteuid().as_raw();
    // A user who is not in the group loses the setgid bit with every change of the mode.
    let keeps_group = mode & libc::S_ISGID == 0 || is_in_group(about.st_gid);
    (is_own && mode & OPEN != OPEN && keeps_group).then_some(mode)
}

fn is_in_group(group: u32) -> bool {
    let groups = rustix::process::getgroups().unwrap_or_default();
    rustix::process::getegid().as_raw() == group || groups.iter().any(|of| of.as_raw() == group)
}

fn read(bytes: &[u8]) -> Option<BTreeMap<PathBuf, u32>> {
    let line = |line: &[u8]| {
        let space = line.iter().position(|byte| *byte == b' ')?;
        let mode = u32::from_str_radix(std::str::from_utf8(&line[..space]).ok()?, 8).ok()?;
        Some((OsString::from_vec(line[space + 1..].to_vec()).into(), mode))
    };
    bytes.split(|byte| *byte == 0).filter(|line| !line.is_empty()).map(line).collect()
}
