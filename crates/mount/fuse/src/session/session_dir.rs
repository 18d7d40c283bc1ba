//! The directory that a session has beside the plain one: its store, and how far it is.
//!
//! `manifest` is there when the store has all of the plain tree; `staged` when what is put back is settled; `done` when it
//! is put back, and all of this can go.

use crate::mounts::mount_point;
use crate::plain_trees::deep_paths::remove_all;
use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What a session's directory says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// No session, or one that never began.
    None,
    /// One that runs, or is being put back.
    Running,
    /// One that was killed, or met a conflict: what it did is here alone, or put back in part.
    Left,
}

/// A session's directory, locked.
pub struct SessionDir {
    of: PathBuf,
    at: PathBuf,
    _lock: File,
}

/// Where the session of a directory, without links in its path, would be.
fn place(of: &Path) -> Result<PathBuf> {
    let (Some(parent), Some(name)) = (of.parent(), of.file_name()) else {
        bail!("a session on the root directory cannot be; name another")
    };
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(".untorn-run");
    Ok(parent.join(hidden))
}

fn canonical(of: &Path) -> Result<PathBuf> {
    let path = of.canonicalize().with_context(|| format!("cannot open {}", of.display()))?;
    ensure!(path.is_dir(), "{} is no directory", of.display());
    Ok(path)
}

/// None if somebody else has it.
fn locked(at: &Path) -> Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = rustix::fs::open(at, flags, Mode::empty()).with_context(|| format!("cannot open {}", at.display()))?;
    let open = File::from(open);
    match rustix::fs::flock(&open, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Ok(None),
        done => done.map(|()| Some(open)).with_context(|| format!("cannot lock {}", at.display())),
    }
}

/// How the session of a directory is.
pub fn condition(of: &Path) -> Result<(Condition, PathBuf)> {
    let at = place(&canonical(of)?)?;
    if !at.exists() {
        return Ok((Condition::None, at));
    }
    let condition = match (locked(&at)?, at.join("manifest").exists(), at.join("done").exists()) {
        (None, ..) => Condition::Running,
        (Some(_), true, false) => Condition::Left,
        (Some(_), ..) => Condition::None,
    };
    Ok((condition, at))
}

impl SessionDir {
    /// A new session of a directory.
    pub fn begin(of: &Path) -> Result<SessionDir> {
        let of = canonical(of)?;
        let at = place(&of)?;
        check(&of)?;
        match DirBuilder::new().mode(0o700).create(&at) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                return Err(e)
                    .with_context(|| format!("cannot make {}, where the session keeps its files", at.display()));
            }
            _ => {}
        }
        let session = SessionDir::lock(of, at)?;
        if session.manifest().exists() && !session.done().exists() {
            bail!(
                "a session on {0} was killed, or met a conflict; `untorn recover {0}` puts back what it did, or says what is in conflict; \
                 `untorn recover --discard {0}` throws it away",
                session.of.display()
            );
        }
        session.clear()?;
        // What the program commits must not be lost with the name of this directory.
        let parent = session.at.parent().context("it has a parent")?;
        let durable = File::open(parent).and_then(|parent| parent.sync_all());
        durable.with_context(|| format!("cannot make {} durable", session.at.display()))?;
        Ok(session)
    }

    /// One that was left.
    pub fn left(of: &Path) -> Result<SessionDir> {
        let of = canonical(of)?;
        let at = place(&of)?;
        ensure!(at.exists(), "no session on {} was left; there is nothing to recover", of.display());
        let session = SessionDir::lock(of, at)?;
        if !session.manifest().exists() || session.done().exists() {
            let of = session.of.display().to_string();
            session.remove()?;
            bail!("no session on {of} was left; there is nothing to recover");
        }
        Ok(session)
    }

    fn lock(of: PathBuf, at: PathBuf) -> Result<SessionDir> {
        let Some(lock) = locked(&at)? else { bail!("another session works on {}; wait for its end", of.display()) };
        let ours = lock.metadata().context("stat")?;
        // Whoever else may change what is in it would choose what is put back.
        ensure!(
            ours.uid() == rustix::process::geteuid().as_raw() && ours.mode() & 0o077 == 0,
            "{} is another user's, or open to others, so no session keeps its files there; see whose it is (user {}), and \
             remove it, or do this as that user",
            at.display(),
            ours.uid()
        );
        let is_there =
            fs::symlink_metadata(&at).is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino()));
        ensure!(is_there, "another session on {} ended just now; try again", of.display());
        Ok(SessionDir { of, at, _lock: lock })
    }

    /// The plain directory.
    pub fn of(&self) -> &Path {
        &self.of
    }

    /// The session's store.
    pub fn store(&self) -> PathBuf {
        self.at.join("store")
    }

    /// What the session was made of.
    pub fn manifest(&self) -> PathBuf {
        self.at.join("manifest")
    }

    /// New versions of files.
    pub fn new_files(&self) -> PathBuf {
        self.at.join("new")
    }

    /// Which of them there are.
    pub fn staged(&self) -> PathBuf {
        self.at.join("staged")
    }

    /// Which directories are open for the moment, and their modes.
    pub fn widened(&self) -> PathBuf {
        self.at.join("widened")
    }

    /// Everything is put back.
    pub fn done(&self) -> PathBuf {
        self.at.join("done")
    }

    fn clear(&self) -> Result<()> {
        let entries = fs::read_dir(&self.at).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        let mut paths: Vec<_> =
            entries.context("cannot read the session's directory")?.into_iter().map(|e| e.path()).collect();
        // As long as there is a manifest, this says that it does not count.
        paths.sort_by_key(|path| *path == self.done());
        for path in paths {
            let removed = if path.is_dir() { remove_all(&path) } else { fs::remove_file(&path) };
            removed.with_context(|| format!("cannot remove {}", path.display()))?;
        }
        Ok(())
    }

    /// Removes it.
    pub fn remove(self) -> Result<()> {
        self.clear()?;
        fs::remove_dir(&self.at).with_context(|| format!("cannot remove {}", self.at.display()))
    }
}

/// What is put back comes by renames: all of it is on one file system.
fn check(of: &Path) -> Result<()> {
    let shown = of.display();
    if let Some(mounted) = mount_point::mounts()?.into_iter().find(|mounted| mounted.at.starts_with(of)) {
        bail!(
            "{} is a mount point, and a session on {shown} has none in it; name another directory",
            mounted.at.display()
        );
    }
    let device = |path: &Path| path.metadata().map(|about| about.dev());
    let parent = of.parent().context("it has a parent")?;
    ensure!(
        device(of).context("stat")? == device(parent).context("stat")?,
        "{shown} is on another file system than the directory that it is in; name a directory in it"
    );
    Ok(())
}
