//! `--rescue DIR`: files of a volume whose disk has failed, saved from the kernel's memory before they are gone.
//!
//! The memory is newer than the disk, and matches no state that the disk had. People may look at the copy; this program
//! never puts it back.

use crate::changes::work_dirs::copy_attributes;
use crate::host::host_view::Written;
use anyhow::{Context, Result, bail};
use rustix::fs::syncfs;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The most paths that a message names, of those that could not be saved.
const NAMED_MAX: usize = 10;

/// The result of a rescue.
#[derive(Debug, Default)]
pub struct Rescued {
    files: u64,
    bytes: u64,
    /// The files that could not be saved, and why.
    missed: Vec<(PathBuf, io::Error)>,
}

/// Checks that a new directory can be made there, and returns its absolute path. The directory itself is made when
/// needed.
pub fn check_place(dir: &Path) -> Result<PathBuf> {
    let dir = std::path::absolute(dir).context("the directory of --rescue")?;
    if dir.exists() {
        bail!("{} exists already; --rescue makes a new directory", dir.display());
    }
    if !dir.parent().is_some_and(Path::is_dir) {
        bail!("{} cannot be made, as there is no directory for it", dir.display());
    }
    Ok(dir)
}

/// Copies the volume's data and the layers of its directories, as far as they can be read.
pub fn rescue(data: Option<&Path>, layers: &[Written], to: &Path) -> Result<Rescued> {
    fs::create_dir(to).with_context(|| format!("cannot make {}", to.display()))?;
    let mut rescued = Rescued::default();
    if let Some(data) = data {
        rescued.entry(data, &to.join("data"));
    }
    for (number, layer) in layers.iter().enumerate() {
        let name = layer.dir.file_name().unwrap_or_default().to_string_lossy();
        rescued.entry(&layer.upper, &to.join(format!("changed-{number}-{name}")));
    }
    let synced = File::open(to).and_then(|open| Ok(syncfs(&open)?));
    synced.with_context(|| format!("cannot flush {}", to.display()))?;
    Ok(rescued)
}

impl Rescued {
    fn entry(&mut self, from: &Path, to: &Path) {
        if let Err(e) = self.copy(from, to) {
            self.missed.push((from.to_owned(), e));
        }
    }

    fn copy(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let meta = fs::symlink_metadata(from)?;
        if meta.is_dir() {
            fs::create_dir(to)?;
            for entry in fs::read_dir(from)? {
                let name = entry?.file_name();
                self.entry(&from.join(&name), &to.join(&name));
            }
        } else if meta.is_symlink() {
            symlink(fs::read_link(from)?, to)?;
        } else if meta.is_file() {
            // A partial file would look like a complete one.
            self.bytes += fs::copy(from, to).inspect_err(|_| drop(fs::remove_file(to)))?;
        } else {
            // Whiteouts, sockets and the like have no contents to save.
            return Ok(());
        }
        self.files += u64::from(!meta.is_dir());
        copy_attributes(from, to).map_err(io::Error::other)
    }

    /// A message for people about the saved files and their state.
    pub fn tell(&self, to: &Path) -> String {
        let Rescued { files, bytes, missed } = self;
        let mut text = format!(
            "{files} files ({bytes} bytes) were saved from memory to {}. The disk never had these contents: they may \
             be newer than the output that was shown, and half written by the program. Compare them before you use \
             them",
            to.display()
        );
        if !missed.is_empty() {
            text += &format!("; {} could not be saved whole:", missed.len());
        }
        for (path, why) in missed.iter().take(NAMED_MAX) {
            text += &format!("\n  {}: {why}", path.display());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_named_and_the_rest_is_saved() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(from.join("inner")).unwrap();
        fs::write(from.join("inner/file"), "text").unwrap();
        symlink("nowhere", from.join("link")).unwrap();
        let gone = Written { dir: "/work".into(), upper: dir.path().join("gone"), work: dir.path().into() };
        let to = check_place(&to).unwrap();
        let rescued = rescue(Some(&from), &[gone], &to).unwrap();
        assert_eq!((rescued.files, rescued.bytes, rescued.missed.len()), (2, 4, 1));
        assert_eq!(fs::read_to_string(to.join("data/inner/file")).unwrap(), "text");
        assert!(rescued.tell(&to).contains("1 could not be saved whole:\n"), "{}", rescued.tell(&to));
        assert!(check_place(&to).is_err() && check_place(&dir.path().join("no/where")).is_err());
    }
}
