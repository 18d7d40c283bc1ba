//! The overlay of `--exact` over a volume's data.
//!
//! It is an overlay of the kind `volatile`, which answers flushes itself and writes nothing. So each call returns the
//! result that it has outside of a session, including write errors of the disk.
//!
//! The lower layer is empty, and the upper layer is the data. So nothing is ever copied up, and the volume can be used
//! with and without `--exact`.

use crate::view::overlays::{overlay, path_of};
use anyhow::{Context, Result};
use rustix::mount::MountAttrFlags;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A directory of the volume that the session does not see.
const HOME: &str = "exact";

/// Makes the directories of the overlay. Those of an earlier session are removed, because the kernel mounts a volatile
/// overlay only once.
pub fn make(volume: &Path) -> Result<PathBuf> {
    remove(volume)?;
    let home = volume.join(HOME);
    for part in ["lower", "work"] {
        fs::create_dir_all(home.join(part)).context("the volume's overlay")?;
    }
    Ok(home)
}

/// Removes the directories of the overlay.
pub fn remove(volume: &Path) -> Result<()> {
    match fs::remove_dir_all(volume.join(HOME)) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e).context("the volume's overlay"),
        _ => Ok(()),
    }
}

/// Mounts the overlay over the data, with the directories that [`make`] made.
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
