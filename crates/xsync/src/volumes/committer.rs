//! Makes everything durable that the session has done so far: commits.

use crate::invariant::{COMMIT_OF_THE_JOURNAL, DATA_IN_THE_JOURNAL, OUTPUT_WAITS, WRITE_ERRORS_FOUND};
use crate::volumes::volume::Volume;
use anyhow::{Context, Result, bail};
use rustix::fs::{fsync, syncfs};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use untorn_os::holds;

/// The call that makes a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// `fsync` of the volume's directory: jbd2 commits the running transaction, and nothing else is flushed.
    Journal,
    /// `syncfs`, where `fsync` of the directory does not commit.
    All,
}

/// Makes commits of one volume.
#[derive(Debug)]
pub struct Committer {
    root: File,
    way: Way,
    /// A file on a volatile overlay, which reports every write error since it was mounted.
    canary: Option<Canary>,
    commits: AtomicU64,
    /// The error of the first commit that failed.
    failed: OnceLock<String>,
    when: Commits,
}

/// The moments of commits. All but the default are for measurements alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Commits {
    /// Before output.
    #[default]
    BeforeOutput,
    /// Also one after another, as long as something is changed.
    Eager,
    /// Never: output does not wait.
    Never,
}

#[derive(Debug)]
struct Canary {
    file: File,
    at: PathBuf,
}

/// The directory of the canary's overlay in a volume.
const CANARY: &str = "canary";

/// The parts of a file system that commits need.
#[derive(Clone, Copy, Debug)]
pub struct Ground<'a> {
    /// A directory of the file system, open.
    pub root: &'a File,
    /// A directory for the files that commits need. The session does not see them.
    pub at: &'a Path,
    /// The name of the file system's disk.
    pub disk: &'a str,
}

impl Committer {
    /// A committer for a mounted volume. `scratch` is a directory for mount points.
    pub fn new(volume: &Volume, scratch: &Path, when: Commits) -> Result<Committer> {
        let disk = volume.disk().path().file_name().unwrap_or_default().to_string_lossy();
        Committer::on(Ground { root: volume.root(), at: volume.at(), disk: &disk }, scratch, when)
    }

    /// A committer for a file system with data in its journal.
    pub fn on(ground: Ground<'_>, scratch: &Path, when: Commits) -> Result<Committer> {
        let canary = if holds(WRITE_ERRORS_FOUND) { Some(Canary::new(ground.at, scratch)?) } else { None };
        let root = ground.root.try_clone()?;
        let way = if holds(COMMIT_OF_THE_JOURNAL) && journal_is_enough(ground)? { Way::Journal } else { Way::All };
        let (commits, failed) = (AtomicU64::new(0), OnceLock::new());
        let when = if holds(OUTPUT_WAITS) { when } else { Commits::Never };
        Ok(Committer { root, way, canary, commits, failed, when })
    }

    /// Makes everything durable that the session has written before the call.
    ///
    /// After an error, every later call fails, too, because it is not known which changes are durable.
    pub fn commit(&self) -> Result<()> {
        if self.when == Commits::Never {
            return Ok(());
        }
        if let Some(why) = self.failed.get() {
            bail!("{why}");
        }
        let done = self.flush();
        self.commits.fetch_add(1, SeqCst);
        if let Err(e) = &done {
            let _ = self.failed.set(format!("{e:#}"));
        }
        done
    }

    /// Whether commits follow one another.
    pub fn is_eager(&self) -> bool {
        self.when == Commits::Eager
    }

    fn flush(&self) -> Result<()> {
        match self.way {
            Way::Journal => fsync(&self.root).context("the volume's journal cannot be committed")?,
            Way::All => syncfs(&self.root).context("the volume cannot be flushed")?,
        }
        match &self.canary {
            Some(canary) => fsync(&canary.file).context("the volume's disk has failed to write"),
            None => Ok(()),
        }
    }

    /// The number of requested commits.
    pub fn commits(&self) -> u64 {
        self.commits.load(SeqCst)
    }

    /// Whether a commit failed.
    pub fn has_failed(&self) -> bool {
        self.failed.get().is_some()
    }

    /// The call that commits, for messages.
    pub fn way(&self) -> &'static str {
        match self.way {
            Way::Journal => "fsync of the volume's directory",
            Way::All => "syncfs of the volume",
        }
    }

    /// Closes the volume's files.
    pub fn close(self) -> Result<()> {
        drop(self.root);
        match self.canary {
            Some(canary) => canary.close(),
            None => Ok(()),
        }
    }
}

impl Canary {
    fn new(volume: &Path, scratch: &Path) -> Result<Canary> {
        let (home, at) = (volume.join(CANARY), scratch.join(CANARY));
        // The kernel refuses to mount a volatile overlay twice, because a crash may have lost part of its contents.
        match fs::remove_dir_all(&home) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e).context("the volume's canary"),
            _ => {}
        }
        let part = |name: &str| -> Result<PathBuf> {
            let dir = home.join(name);
            fs::create_dir_all(&dir).context("the volume's canary")?;
            Ok(dir)
        };
        let [lower, upper, work] = [part("lower")?, part("upper")?, part("work")?];
        fs::create_dir_all(&at)?;
        let options =
            format!("lowerdir={},upperdir={},workdir={},volatile", lower.display(), upper.display(), work.display());
        mount("untorn-xsync", &at, "overlay", MountFlags::empty(), &*CString::new(options)?)
            .context("cannot mount an overlay with the option volatile; Linux 5.10 or newer has it")?;
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(at.join("file"))?;
        Ok(Canary { file, at })
    }

    fn close(self) -> Result<()> {
        drop(self.file);
        unmount(&self.at, UnmountFlags::DETACH).context("the volume's canary")
    }
}

/// Whether `fsync` of the directory also commits writes to another file. It tries that out, because ext4 does not
/// promise it.
fn journal_is_enough(ground: Ground<'_>) -> Result<bool> {
    let path = ground.at.join("probe");
    let mut probe = File::create(&path).context("cannot write to the volume")?;
    let Some(before) = transactions(ground.disk) else { return Ok(false) };
    for _ in 0..2 {
        probe.write_all(b"untorn-xsync").context("cannot write to the volume")?;
        fsync(ground.root.as_fd()).context("cannot flush the volume")?;
    }
    let after = transactions(ground.disk);
    drop(probe);
    fs::remove_file(path).context("cannot write to the volume")?;
    Ok(after.is_some_and(|after| after >= before + 2))
}

/// The number of transactions that the volume's journal has committed since the mount.
fn transactions(disk: &str) -> Option<u64> {
    let entries = fs::read_dir("/proc/fs/jbd2").ok()?.flatten();
    let mut ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&format!("{disk}-")));
    let info = fs::read_to_string(ours.next()?.path().join("info")).ok()?;
    info.split_whitespace().next()?.parse().ok()
}

/// Refuses a mount that does not keep the order of writes, or does not flush.
pub fn check_mount(at: &Path) -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("/proc/self/mounts")?;
    let line = mounts.lines().rfind(|line| line.split(' ').nth(1) == at.to_str()).unwrap_or_default();
    let options: Vec<&str> = line.split(' ').nth(3).unwrap_or_default().split(',').collect();
    for wrong in ["nobarrier", "barrier=0", "dax", "dax=always", "inlinecrypt", "test_dummy_encryption"] {
        if options.contains(&wrong) {
            bail!("the volume is mounted with {wrong}: a commit could not keep its promise");
        }
    }
    if holds(DATA_IN_THE_JOURNAL) && !options.contains(&"data=journal") {
        bail!("the volume is not mounted with data=journal ({line}): a crash would mix old and new");
    }
    Ok(())
}
