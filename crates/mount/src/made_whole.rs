//! A directory that is made whole or not at all: beside its place, under another name, and renamed when all of it is
//! durable.

use crate::mount_point;
use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{CWD, FlockOperation, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use untorn_terminal::signals;

/// What an interruption finds.
enum State {
    /// Nothing was made yet.
    Nothing,
    /// An unfinished directory.
    Unfinished(PathBuf),
    /// It has its place, or is removed.
    Done,
}

/// A directory on the way. Dropped before [`finish`](MadeWhole::finish), or by Ctrl-C, SIGTERM or SIGHUP, which end the
/// process, it is removed.
pub struct MadeWhole {
    place: PathBuf,
    path: PathBuf,
    /// Locked, so that nobody else takes it for what a killed process left.
    directory: File,
    state: Arc<Mutex<State>>,
}

impl MadeWhole {
    /// Begins a directory that is to have its place at `place`: where nothing is, or an empty directory.
    pub fn begin(place: &Path) -> Result<MadeWhole> {
        let place = mount_point::absolute(place)?;
        let shown = place.display();
        match fs::symlink_metadata(&place) {
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(e).with_context(|| format!("cannot look at {shown}")),
            Ok(about) => {
                ensure!(about.is_dir(), "{shown} is there, and no directory; give another name");
                let mut entries = fs::read_dir(&place).with_context(|| format!("cannot read {shown}"))?;
                ensure!(entries.next().is_none(), "{shown} is not empty; give a new or an empty directory");
            }
        }
        MadeWhole::beside(&place)
    }

    /// Begins a directory beside another one, with which it is to [exchange](MadeWhole::exchange) its place.
    pub fn beside(place: &Path) -> Result<MadeWhole> {
        let (place, path) = (place.to_owned(), unfinished(place)?);
        let state = Arc::new(Mutex::new(State::Nothing));
        remove_on_interrupt(&state)?;
        let directory = {
            let mut state = held(&state);
            let directory = locked(&path, &place)?;
            *state = State::Unfinished(path.clone());
            directory
        };
        let made = MadeWhole { place, path, directory, state };
        let path = &made.path;
        empty(path).with_context(|| format!("cannot remove what was left in {}", path.display()))?;
        for list in ["system.posix_acl_access", "system.posix_acl_default"] {
            // What the directory above passes on is not part of the copy.
            let _ = rustix::fs::removexattr(path, list);
        }
        Ok(made)
    }

    /// Where it will be.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Where it is made.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes all of it durable, and gives it its place.
    pub fn finish(self) -> Result<()> {
        let shown = self.place.display();
        rustix::fs::syncfs(&self.directory)
            .with_context(|| format!("cannot make {shown} durable; nothing was made"))?;
        // An interruption waits.
        let mut state = held(&self.state);
        match rustix::fs::rename(&self.path, &self.place) {
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {
                bail!("somebody else has made {shown} meanwhile; nothing was made")
            }
            renamed => renamed.with_context(|| format!("cannot give {shown} its name; nothing was made"))?,
        }
        *state = State::Done;
        self.name_is_durable().with_context(|| format!("{shown} is made, and its name is perhaps not durable"))
    }

    /// Makes all of it durable, and exchanges it with the directory at its place. Both names are durable then.
    pub fn exchange(self) -> Result<Replaced> {
        let shown = self.place.display();
        rustix::fs::syncfs(&self.directory)
            .with_context(|| format!("cannot make the new {shown} durable; nothing was changed"))?;
        let mut state = held(&self.state);
        match renameat_with(CWD, &self.path, CWD, &self.place, RenameFlags::EXCHANGE) {
            Err(Errno::BUSY | Errno::XDEV) => bail!("{shown} is a mount point, or in use; nothing was changed"),
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => bail!(
                "the file system of {shown} cannot exchange two names; nothing was changed. `untorn export` makes a plain \
                 tree elsewhere"
            ),
            exchanged => exchanged.with_context(|| format!("cannot give {shown} its name; nothing was changed"))?,
        }
        *state = State::Done;
        self.name_is_durable().with_context(|| {
            format!("{shown} is plain now, but that is perhaps not durable: {} is kept", self.path.display())
        })?;
        Ok(Replaced(self.path.clone()))
    }

    fn name_is_durable(&self) -> Result<()> {
        let parent = self.place.parent().context("it has a parent")?;
        Ok(File::open(parent).and_then(|parent| parent.sync_all())?)
    }
}

/// What was in the place of a directory before.
pub struct Replaced(PathBuf);

impl Replaced {
    /// Removes it.
    pub fn remove(self) -> std::io::Result<()> {
        open_up(&self.0);
        fs::remove_dir_all(&self.0)
    }
}

/// Removes what is beside a place, unfinished or replaced. False: nothing is.
pub fn remove_left(place: &Path) -> Result<bool> {
    let path = unfinished(place)?;
    if !path.is_dir() {
        return Ok(false);
    }
    let _lock = locked(&path, place)?;
    Replaced(path).remove().with_context(|| format!("cannot remove what was left beside {}", place.display()))?;
    Ok(true)
}

/// Where a directory is made that is to have its place at `place`.
fn unfinished(place: &Path) -> Result<PathBuf> {
    let (Some(parent), Some(name)) = (place.parent(), place.file_name()) else {
        bail!("{} has no name", place.display())
    };
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(".untorn-unfinished");
    Ok(parent.join(hidden))
}

impl Drop for MadeWhole {
    fn drop(&mut self) {
        if let State::Unfinished(path) = std::mem::replace(&mut *held(&self.state), State::Done) {
            open_up(&path);
            if let Err(e) = fs::remove_dir_all(&path) {
                eprintln!("untorn-mount: cannot remove {}, which is unfinished: {e}", path.display());
            }
        }
    }
}

fn held(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn remove_on_interrupt(state: &Arc<Mutex<State>>) -> Result<()> {
    let state = Arc::clone(state);
    let clean_up = move || {
        let held = held(&state);
        match &*held {
            State::Nothing => {}
            State::Unfinished(path) => {
                open_up(path);
                signals::remove_meanwhile(path);
            }
            // The process is about to end anyhow.
            State::Done => std::thread::sleep(Duration::from_secs(60)),
        }
        // So that it gets no place while the process ends.
        std::mem::forget(held);
    };
    signals::on_interrupt("untorn-mount", "interrupted; nothing was made", clean_up).context("cannot watch for Ctrl-C")
}

/// The directory at `path`, made if need be, and locked.
fn locked(path: &Path, place: &Path) -> Result<File> {
    loop {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                return Err(e).with_context(|| format!("cannot make a directory beside {}", place.display()));
            }
            _ => {}
        }
        // A killed process may have left one that is closed, as a model was.
        let _ = fs::set_permissions(path, Permissions::from_mode(0o700));
        let directory = match File::open(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            opened => opened.with_context(|| format!("cannot open {}", path.display()))?,
        };
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => bail!("another process is making {}; wait for it", place.display()),
            result => result.with_context(|| format!("cannot lock {}", path.display()))?,
        }
        // The process that had it may have removed it, or given it its place, meanwhile.
        let ours = directory.metadata().context("stat")?;
        if fs::symlink_metadata(path).is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
            return Ok(directory);
        }
    }
}

fn empty(path: &Path) -> std::io::Result<()> {
    open_up(path);
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

/// Lets the owner remove what is in directories that are closed as their models are.
fn open_up(path: &Path) {
    let _ = fs::set_permissions(path, Permissions::from_mode(0o700));
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_up(&entry.path());
        }
    }
}
