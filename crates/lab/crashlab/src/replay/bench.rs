//! Makes the disk of a crash state, mounts it, and runs a check on it.

use super::recording::Recording;
use crate::device::{FileSystem, Image, Loop, memory_file, unmount_now, watch};
use anyhow::Result;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// An oracle: checks the state after a crash.
pub trait Check {
    /// Checks a mounted file system; `said` has the acknowledgements before the cut. The error describes a violation.
    fn check(&self, dir: &Path, said: &[String]) -> Result<(), String>;
}

/// The result of checking a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Everything that was promised is there.
    Sound,
    /// Something that was promised is missing or wrong.
    Broken(String),
    /// The kernel could not mount it.
    Unmountable(String),
}

/// The time spent on checking states, by part.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// States, including repeated looks at one state.
    pub states: u32,
    /// Loop devices that were replaced because parts of an earlier disk stayed in their caches.
    pub replaced: u32,
    /// The time for making disks.
    pub making: Duration,
    /// The time for mounts, in which the kernel recovers.
    pub mounting: Duration,
    /// The time for checks: the program's recovery and the rest.
    pub checking: Duration,
    /// The time for unmounts.
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

    /// The time spent so far.
    pub fn spent(&self) -> Spent {
        self.spent
    }

    /// The device, with nothing in its page cache.
    fn empty_device(&mut self) -> Result<Loop> {
        let Some(device) = self.device.take() else { return Ok(Loop::attach(&self.disk, false)?) };
        let (device, is_another) = device.emptied(&self.disk)?;
        self.spent.replaced += u32::from(is_another);
        Ok(device)
    }

    /// Mounts the image briefly, and calls `look` with its directory.
    pub fn with<T>(&mut self, fs: FileSystem, image: &Image, look: impl FnOnce(&Path) -> T) -> Result<Result<T>> {
        let mut begun = Instant::now();
        let mut since = || std::mem::replace(&mut begun, Instant::now()).elapsed();
        if self.disk.metadata()?.len() != image.bytes() {
            self.device = None;
            self.disk.set_len(image.bytes())?;
        }
        // First nothing may be left that could be written over the new disk, then nothing of the old disk may be left.
        // The kernel reads ahead in a file system's log: a page that stayed in the cache would end the next state's log
        // early.
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

    /// Checks an image, the state after a cut.
    pub fn judge(&mut self, recording: &Recording, cut: usize, image: &Image, check: &dyn Check) -> Result<Verdict> {
        let said = recording.said(cut);
        Ok(match self.with(recording.fs, image, |dir| check.check(dir, &said))? {
            Ok(Ok(())) => Verdict::Sound,
            Ok(Err(why)) => Verdict::Broken(why),
            Err(e) => Verdict::Unmountable(format!("{e:#}")),
        })
    }
}
