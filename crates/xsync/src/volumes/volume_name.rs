//! Names of temporary volumes. They tell which directories' changes a volume holds.

use crate::host::held_directories::{self, HeldDirectories};
use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// The default directory of temporary volumes.
pub const PLACE_DEFAULT: &str = "/var/lib/untorn-xsync";
/// The extension of images.
pub const IMAGE: &str = "img";
/// The extension of images that are kept after their changes were applied.
pub const KEPT: &str = "kept";

/// The extension of a volume that is being made or removed. Without its list of directories it is useless.
pub fn unfinished(end: &str) -> String {
    format!("{end}-new")
}

/// Makes a volume, or another home for changes, for these directories, and locks the directories.
///
/// `make` gets two names: the one while the volume is being made, and the final one, which ends in `end`. Sessions in a
/// place do this one at a time. So a session sees the volumes of sessions that began earlier in the same directory, and
/// no session removes a volume as unfinished that another one is making.
pub fn make<T>(
    place: &Path,
    dirs: &[PathBuf],
    end: &str,
    make: impl FnOnce(&Path, &Path) -> Result<T>,
) -> Result<(T, HeldDirectories)> {
    fs::create_dir_all(place).with_context(|| format!("cannot make {}", place.display()))?;
    let one_at_a_time = File::open(place).with_context(|| format!("cannot open {}", place.display()))?;
    flock(&one_at_a_time, FlockOperation::LockExclusive).with_context(|| format!("cannot lock {}", place.display()))?;
    let (new, path) = names(place, dirs, end)?;
    let held = held_directories::hold(dirs)?;
    make(&new, &path).map(|made| (made, held))
}

fn names(place: &Path, dirs: &[PathBuf], end: &str) -> Result<(PathBuf, PathBuf)> {
    remove_unfinished(place, &unfinished(end))?;
    for dir in dirs {
        if let Some(left) = of_dir(place, dir, end)? {
            if is_locked(&left) {
                bail!("another session works on {} ({}); wait for its end", dir.display(), left.display());
            }
            bail!(
                "an earlier session has changes of {} that are not applied yet: {}\n  `untorn xsync --resume {1}` \
                 applies them, `untorn xsync --discard {1}` throws them away",
                dir.display(),
                left.display()
            );
        }
    }
    let first = dirs.first().and_then(|dir| dir.file_name()).unwrap_or_default().to_string_lossy().into_owned();
    let plain: String = first.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(40).collect();
    let sums: Vec<String> = dirs.iter().map(|dir| sum(dir)).collect();
    let name = format!("{plain}-{}-{}", std::process::id(), sums.join("-"));
    Ok((place.join(&name).with_extension(unfinished(end)), place.join(name).with_extension(end)))
}

/// Finds a volume with changes of a directory.
fn of_dir(place: &Path, dir: &Path, end: &str) -> Result<Option<PathBuf>> {
    let sum = sum(dir);
    let entries = fs::read_dir(place).with_context(|| place.display().to_string())?.flatten();
    let mut volumes = entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == end));
    Ok(volumes.find(|path| path.file_stem().unwrap_or_default().to_string_lossy().split('-').skip(2).any(|s| s == sum)))
}

/// Removes volumes whose making was interrupted by a kill.
fn remove_unfinished(place: &Path, end: &str) -> Result<()> {
    for entry in fs::read_dir(place).with_context(|| place.display().to_string())?.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|e| e == end) && !is_locked(&path) {
            let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
    }
    Ok(())
}

fn is_locked(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockExclusive).is_err())
}

/// A hash that tells directories apart in file names.
fn sum(dir: &Path) -> String {
    // A new compiler may change the algorithm. An older volume is then not found here, but `--resume` still applies it.
    let mut hasher = DefaultHasher::new();
    dir.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
