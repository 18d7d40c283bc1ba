//! The directory of a session, beside the plain one: holds its store, and records its progress.
//!
//! `manifest` exists when the store has all of the plain tree; `staged` when the set of changes to put back is fixed;
//! `done` when they are put back, and the directory can be removed.

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

/// State of a session, by its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// No session, or one that never began.
    None,
    /// A session that runs, or is being put back.
    Running,
    /// A session that was killed, or met a conflict: some or all of its changes exist only here.
    Left,
}

/// A session's directory, locked.
pub struct SessionDir {
    of: PathBuf,
    at: PathBuf,
    _lock: File,
}

/// Path of the session's directory for a plain directory, whose path must have no symbolic links.
fn place(of: &Path) -> Result<PathBuf> {
    let (Some(parent), Some(name)) = (of.parent(), of.file_name()) else {
        bail!("a session cannot work on the root directory; name another one")
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

/// Locks a session's directory; `None` if another process has it locked.
fn locked(at: &Path) -> Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = rustix::fs::open(at, flags, Mode::empty()).with_context(|| format!("cannot open {}", at.display()))?;
    let open = File::from(open);
    match rustix::fs::flock(&open, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Ok(None),
        done => done.map(|()| Some(open)).with_context(|| format!("cannot lock {}", at.display())),
    }
}

/// Finds the state of a directory's session.
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
    /// Begins a new session of a directory.
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
                "a session on {0} was killed, or met a conflict; `untorn recover {0}` puts its changes back, or lists \
                 the conflicts; `untorn recover --discard {0}` throws them away",
                session.of.display()
            );
        }
        session.clear()?;
        // Makes the directory's own name durable, so that the program's commits are not lost with it.
        let parent = session.at.parent().context("it has a parent")?;
        let durable = File::open(parent).and_then(|parent| parent.sync_all());
        durable.with_context(|| format!("cannot make {} durable", session.at.display()))?;
        Ok(session)
    }

    /// Opens the session that was left on a directory. If all its changes are put back, or it never began, removes the
    /// remains of its directory and returns none.
    pub fn left(of: &Path) -> Result<Option<SessionDir>> {
        let of = canonical(of)?;
        let at = place(&of)?;
        ensure!(at.exists(), "no session on {} was left; there is nothing to recover", of.display());
        let session = SessionDir::lock(of, at)?;
        if !session.manifest().exists() || session.done().exists() {
            session.remove()?;
            return Ok(None);
        }
        Ok(Some(session))
    }

    fn lock(of: PathBuf, at: PathBuf) -> Result<SessionDir> {
        let Some(lock) = locked(&at)? else { bail!("another session works on {}; wait for its end", of.display()) };
        let ours = lock.metadata().context("stat")?;
        // A user who can change the contents of this directory could choose the files that are put back.
        ensure!(
            ours.uid() == rustix::process::geteuid().as_raw() && ours.mode() & 0o077 == 0,
            "{} belongs to another user, or others have access to it, so no session keeps its files there; find out \
             who owns it (user {}), and remove it, or do this as that user",
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

    /// The list of the plain tree's files at the start.
    pub fn manifest(&self) -> PathBuf {
        self.at.join("manifest")
    }

    /// New versions of files.
    pub fn new_files(&self) -> PathBuf {
        self.at.join("new")
    }

    /// The list of the new versions.
    pub fn staged(&self) -> PathBuf {
        self.at.join("staged")
    }

    /// The list of the directories that are temporarily open, with their modes.
    pub fn widened(&self) -> PathBuf {
        self.at.join("widened")
    }

    /// Exists when everything is put back.
    pub fn done(&self) -> PathBuf {
        self.at.join("done")
    }

    fn clear(&self) -> Result<()> {
        let entries = fs::read_dir(&self.at).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        let mut paths: Vec<_> =
            entries.context("cannot read the session's directory")?.into_iter().map(|e| e.path()).collect();
        // Removed last: as long as there is a manifest, `done` says that it does not count.
        paths.sort_by_key(|path| *path == self.done());
        for path in paths {
            let removed = if path.is_dir() { remove_all(&path) } else { fs::remove_file(&path) };
            removed.with_context(|| format!("cannot remove {}", path.display()))?;
        }
        Ok(())
    }

    /// Removes the session's directory.
    pub fn remove(self) -> Result<()> {
        self.clear()?;
        fs::remove_dir(&self.at).with_context(|| format!("cannot remove {}", self.at.display()))
    }
}

/// Refuses a directory that spans file systems, because changes are put back by renames.
fn check(of: &Path) -> Result<()> {
    let shown = of.display();
    if let Some(mounted) = mount_point::mounts()?.into_iter().find(|mounted| mounted.at.starts_with(of)) {
        bail!(
            "{} is a mount point, and {shown} must not contain one for a session; name another directory",
            mounted.at.display()
        );
    }
    let device = |path: &Path| path.metadata().map(|about| about.dev());
    let parent = of.parent().context("it has a parent")?;
    ensure!(
        device(of).context("stat")? == device(parent).context("stat")?,
        "{shown} is on another file system than its parent directory; name a directory inside of it"
    );
    Ok(())
}
