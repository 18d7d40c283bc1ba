//! The read-only view of the host for an ordinary user's session.
//!
//! In a user namespace, the lower directory of an overlay must have no mounts in it. A directory with mounts is made
//! anew, in memory, with an overlay for each directory in it.

use crate::host::host_view::{KERNEL, OWN, Shown, mount_points};
use crate::host::mount_flags;
use crate::view::overlays::{self, memory};
use anyhow::{Context, Result};
use rustix::fs::{Mode, OFlags, open};
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Shows a directory of the host, read-only, with `empty` as the lowest layer of overlays. Adds messages about parts
/// that cannot be shown to `missing`.
pub fn show(dir: &Path, place: &Path, empty: &Path, missing: &mut Vec<String>) -> Result<()> {
    let mut splitting = Splitting { mounts: mount_points()?, empty, missing };
    if !splitting.has_mounts_in_it(dir) {
        return splitting.overlay(dir, place);
    }
    memory(place, "mode=755")?;
    splitting.fill(dir, place)?;
    // Mount points for the session's own directories.
    for own in
        OWN.iter().chain(&KERNEL).map(Path::new).filter(|own| dir == Path::new("/") && own.components().count() == 2)
    {
        let _ = fs::create_dir(place.join(own.strip_prefix("/").unwrap_or(own)));
    }
    let open = open(place, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    mount_flags::restrict(open, mount_flags::READ_ONLY).context("a read-only directory")
}

struct Splitting<'a> {
    mounts: Vec<PathBuf>,
    /// The lowest layer of overlays.
    empty: &'a Path,
    missing: &'a mut Vec<String>,
}

impl Splitting<'_> {
    fn has_mounts_in_it(&self, dir: &Path) -> bool {
        self.mounts.iter().any(|at| at != dir && at.starts_with(dir))
    }

    fn overlay(&self, dir: &Path, place: &Path) -> Result<()> {
        overlays::show(&Shown { at: dir.to_owned(), is_file: false }, place, self.empty)
    }

    fn fill(&mut self, dir: &Path, place: &Path) -> Result<()> {
        for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
            let name = entry?.file_name();
            let (from, to) = (dir.join(&name), place.join(&name));
            if let Err(e) = self.entry(&from, &to) {
                self.missing.push(format!("{} is not shown: {e:#}", from.display()));
            }
        }
        Ok(())
    }

    fn entry(&mut self, from: &Path, to: &Path) -> Result<()> {
        let meta = fs::symlink_metadata(from)?;
        if meta.is_symlink() {
            return Ok(symlink(fs::read_link(from)?, to)?);
        }
        if meta.is_file() {
            File::create(to)?;
            return overlays::show(&Shown { at: from.to_owned(), is_file: true }, to, self.empty);
        }
        if !meta.is_dir() {
            return Ok(());
        }
        fs::create_dir(to)?;
        if OWN.iter().chain(&KERNEL).any(|own| from == Path::new(own)) {
            return Ok(());
        }
        if self.has_mounts_in_it(from) {
            self.fill(from, to)?;
            return Ok(fs::set_permissions(to, fs::Permissions::from_mode(meta.permissions().mode() & 0o7777))?);
        }
        // A directory that the user may not read stays unreadable, as an empty one.
        match open(from, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
            Err(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => {
                Ok(fs::set_permissions(to, fs::Permissions::from_mode(0o000))?)
            }
            Err(e) => Err(e.into()),
            Ok(_) => self.overlay(from, to),
        }
    }
}
