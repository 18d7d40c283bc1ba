//! `--exact`: what the session sees of a volume is an overlay of the kind `volatile`, which answers flushes itself, and
//! writes nothing. So each call has the result that it has elsewhere, a write error of the disk included.
//!
//! The lower layer is empty, and the upper one is the data: nothing is ever copied up, and the volume can be used with
//! and without.

use crate::view::overlays::{overlay, path_of};
use anyhow::{Context, Result};
use rustix::mount::MountAttrFlags;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// In a volume; the session does not see it.
const HOME: &str = "exact";

/// Makes what the overlay works with. What an earlier session left is removed: the kernel mounts such an overlay once.
pub fn make(volume: &Path) -> Result<PathBuf> {
    remove(volume)?;
    let home = volume.join(HOME);
    for part in ["lower", "work"] {
        fs::create_dir_all(home.join(part)).context("the volume's overlay")?;
    }
    Ok(home)
}

/// Removes it.
pub fn remove(volume: &Path) -> Result<()> {
    match fs::remove_dir_all(volume.join(HOME)) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e).context("the volume's overlay"),
        _ => Ok(()),
    }
}

/// Mounts the overlay of the data, with what [`make`] made.
pub fn mount(data: &Path, home: &Path, place: &Path) -> Result<()> {
    let [lower, upper, work] = [home.join("lower"), data.to_owned(), home.join("work")].map(File::open);
    let (lower, upper, work) = (lower?, upper?, work?);
    let [lower, upper, work] = [&lower, &upper, &work].map(path_of);
    let options = [
        ("lowerdir", lower.as_str()),
        ("upperdir", &upper),
        ("workdir", &work),
        ("redirect_dir", "off"),
        ("metacopy", "off"),
        ("index", "off"),
        ("volatile", ""),
    ];
    overlay(&options, MountAttrFlags::empty(), place)
}
