//! Makes the disk of a crash state, mounts it, and asks what is there.

use super::recording::Recording;
use crate::device::{FileSystem, Image, Loop, memory_file, unmount_now, watch};
use anyhow::Result;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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

/// Where the time of checking states went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// States, those included that were looked at again.
    pub states: u32,
    /// Loop devices that were replaced, as parts of an earlier disk stayed in their caches.
    pub replaced: u32,
    /// Making the disk.
    pub making: Duration,
    /// Mounting, which is the kernel's recovery.
    pub mounting: Duration,
    /// The check: the program's recovery, and what comes after it.
    pub checking: Duration,
    /// Unmounting.
    pub unmounting: Duration,
}

impl fmt::Display for Spent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| time.as_secs_f64() * 1e3 / f64::from(self.states.max(1));
        write!(
            f,
            "{:.1} ms making the disk, {:.1} mounting, {:.1} checking, {:.1} unmounting",
            ms(self.making),
            ms(self.mounting),
            ms(self.checking),
            ms(self.unmounting)
        )?;
        match self.replaced {
            0 => Ok(()),
            n => write!(f, "; loop devices replaced, as parts of an earlier disk stayed cached: {n}"),
        }
    }
}

/// One disk in memory, used for one state after the other. Only in a worker: see [`watch`].
pub struct Bench {
    disk: File,
    device: Option<Loop>,
    at: PathBuf,
    spent: Spent,
}

impl Bench {
    /// Makes a bench.
    pub fn new() -> Result<Bench> {
        Ok(Bench { disk: memory_file("state")?, device: None, at: watch::directory("state")?, spent: Spent::default() })
    }

    /// Where the time went so far.
    pub fn spent(&self) -> Spent {
        self.spent
    }

    /// The device, and nothing is cached of it.
    fn empty_device(&mut self) -> Result<Loop> {
        let Some(device) = self.device.take() else { return Ok(Loop::attach(&self.disk, false)?) };
        let (device, is_another) = device.emptied(&self.disk)?;
        self.spent.replaced += u32::from(is_another);
        Ok(device)
    }

    /// Mounts the image for a moment and calls `look` with its directory.
    pub fn with<T>(&mut self, fs: FileSystem, image: &Image, look: impl FnOnce(&Path) -> T) -> Result<Result<T>> {
        let mut begun = Instant::now();
        let mut since = || std::mem::replace(&mut begun, Instant::now()).elapsed();
        if self.disk.metadata()?.len() != image.bytes() {
            self.device = None;
            self.disk.set_len(image.bytes())?;
        }
        // First nothing may be left to be written over the new disk; then nothing may be left of the old one. The kernel
        // reads ahead in a file system's log: a page that it did not forget would end the next state's log early.
        self.device = Some(self.empty_device()?);
        image.restore(&self.disk)?;
        let device = self.empty_device()?;
        let device = self.device.insert(device);
        self.spent.states += 1;
        self.spent.making += since();
        let mounted = fs.mount_for_once(device.path(), &self.at);
        self.spent.mounting += since();
        if let Err(e) = mounted {
            return Ok(Err(e));
        }
        let found = look(&self.at);
        self.spent.checking += since();
        unmount_now(&self.at)?;
        self.spent.unmounting += since();
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
