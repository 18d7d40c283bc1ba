//! Names of volumes that are thrown away: they tell which directories' changes they hold.

use crate::host::held_directories::{self, HeldDirectories};
use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// Where they are, if nobody says otherwise.
pub const PLACE_DEFAULT: &str = "/var/lib/untorn-xsync";
/// Ends the names of images.
pub const IMAGE: &str = "img";
/// Ends the names of images whose changes were applied, and that somebody wanted to keep.
pub const KEPT: &str = "kept";

/// The end of a name while what it names is made or removed; it is of no use without the list of directories in it.
pub fn unfinished(end: &str) -> String {
    format!("{end}-new")
}

/// Makes a volume for these directories, or what holds their changes otherwise. `make` gets its names: while it is made,
/// and afterwards; `end` ends the name. Sessions in a place do this one at a time: of those that begin together in one
/// directory each sees the volumes of those before it, and nobody removes as unfinished what is being made.
/// The directories are held from then on.
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

/// A volume with changes of a directory.
fn of_dir(place: &Path, dir: &Path, end: &str) -> Result<Option<PathBuf>> {
    let sum = sum(dir);
    let entries = fs::read_dir(place).with_context(|| place.display().to_string())?.flatten();
    let mut volumes = entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == end));
    Ok(volumes.find(|path| path.file_stem().unwrap_or_default().to_string_lossy().split('-').skip(2).any(|s| s == sum)))
}

/// Removes what a session was making when it was killed.
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

/// Tells directories apart in names of files.
fn sum(dir: &Path) -> String {
    // The algorithm may change with the compiler: a volume of then is not found, and `--resume` still applies it.
    let mut hasher = DefaultHasher::new();
    dir.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
