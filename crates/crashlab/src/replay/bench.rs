//! Makes the disk of a crash state, mounts it, and asks what is there.

use super::recording::Recording;
use crate::device::{FileSystem, Image, Loop, memory_file, unmount_now, watch};
use anyhow::Result;
use std::fs::File;
use std::path::{Path, PathBuf};

/// An oracle: checks what a crash left.
pub trait Check {
    /// Checks a mounted file system; `said` is what was acknowledged before the cut. The error says what is
    /// wrong.
    fn check(&self, dir: &Path, said: &[String]) -> Result<(), String>;
}

/// The result of checking a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// What was promised is there.
    Sound,
    /// It is not.
    Broken(String),
    /// The kernel could not mount it.
    Unmountable(String),
}

/// One disk in memory, used for one state after the other. Only in a worker: see [`watch`].
pub struct Bench {
    disk: File,
    device: Option<Loop>,
    at: PathBuf,
}

impl Bench {
    /// Makes a bench.
    pub fn new() -> Result<Bench> {
        Ok(Bench { disk: memory_file("state")?, device: None, at: watch::directory("state")? })
    }

    /// Mounts the image for a moment and calls `look` with its directory.
    pub fn with<T>(&mut self, fs: FileSystem, image: &Image, look: impl FnOnce(&Path) -> T) -> Result<Result<T>> {
        if self.disk.metadata()?.len() != image.bytes() {
            self.device = None;
            self.disk.set_len(image.bytes())?;
            self.device = Some(Loop::attach(&self.disk, false)?);
        }
        let device = self.device.as_ref().expect("attached above");
        image.store(&self.disk)?;
        device.forget_cache()?;
        if let Err(e) = fs.mount(device.path(), &self.at) {
            return Ok(Err(e));
        }
        let found = look(&self.at);
        unmount_now(&self.at)?;
        Ok(Ok(found))
    }

    /// The verdict on an image, which is what a cut left.
    pub fn judge(&mut self, recording: &Recording, cut: usize, image: &Image, check: &dyn Check) -> Result<Verdict> {
        let said = recording.said(cut);
        Ok(match self.with(recording.fs, image, |dir| check.check(dir, &said))? {
            Ok(Ok(())) => Verdict::Sound,
            Ok(Err(why)) => Verdict::Broken(why),
            Err(e) => Verdict::Unmountable(format!("{e:#}")),
        })
    }
}
