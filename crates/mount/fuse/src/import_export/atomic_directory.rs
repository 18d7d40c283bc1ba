//! Makes a directory as a whole or not at all: under another name beside its place, renamed when all of it is durable.

use crate::mounts::{mount_point, store_files};
use crate::plain_trees::copying::path_of;
use crate::plain_trees::deep_paths::remove_all;
use anyhow::{Context, Result, bail, ensure};
use parking_lot::Mutex;
use rustix::fd::AsFd;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_terminal::{signals, tell};

/// Progress, as an interruption finds it.
enum State {
    /// Nothing was made yet.
    Nothing,
    /// An unfinished directory, which an interruption removes.
    Unfinished(PathBuf),
    /// The directory has its place, or is removed.
    Done,
}

/// A directory that is being made. It is removed if it is dropped before [`finish`](AtomicDirectory::finish), or if
/// Ctrl-C, SIGTERM or SIGHUP ends the process.
pub struct AtomicDirectory {
    place: PathBuf,
    path: PathBuf,
    /// Locked, so that no other process takes it for the rest of a killed process.
    directory: File,
    state: Arc<Mutex<State>>,
}

impl AtomicDirectory {
    /// Begins a directory for a place where nothing is, or an empty directory.
    pub fn begin(place: &Path) -> Result<AtomicDirectory> {
        let place = mount_point::absolute(place)?;
        let shown = place.display();
        match fs::symlink_metadata(&place) {
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(e).with_context(|| format!("cannot look at {shown}")),
            Ok(about) => {
                ensure!(about.is_dir(), "{shown} exists, but is not a directory; give another name");
                let mut entries = fs::read_dir(&place).with_context(|| format!("cannot read {shown}"))?;
                ensure!(entries.next().is_none(), "{shown} is not empty; give a new or an empty directory");
            }
        }
        AtomicDirectory::beside(&place)
    }

    /// Begins a directory that will [exchange](AtomicDirectory::exchange) its place with an existing one.
    pub fn beside(place: &Path) -> Result<AtomicDirectory> {
        let (place, path) = (place.to_owned(), unfinished(place)?);
        let state = Arc::new(Mutex::new(State::Nothing));
        remove_on_interrupt(&state)?;
        let directory = {
            let mut state = state.lock();
            let directory = locked(&path, &place)?;
            *state = State::Unfinished(path.clone());
            directory
        };
        let made = AtomicDirectory { place, path, directory, state };
        let path = &made.path;
        for list in ["system.posix_acl_access", "system.posix_acl_default"] {
            // Access lists inherited from the directory above are not part of the copy.
            let _ = rustix::fs::removexattr(path, list);
        }
        Ok(made)
    }

    /// The final path of the directory.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// The present path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the directory durable with all its contents, and gives it its place.
    pub fn finish(self) -> Result<()> {
        let shown = self.place.display();
        rustix::fs::syncfs(&self.directory)
            .with_context(|| format!("cannot make {shown} durable; nothing was made"))?;
        // An interruption waits for this lock.
        let mut state = self.state.lock();
        match rustix::fs::rename(&self.path, &self.place) {
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {
                bail!("somebody else has made {shown} meanwhile; nothing was made")
            }
            renamed => renamed.with_context(|| format!("cannot give {shown} its name; nothing was made"))?,
        }
        *state = State::Done;
        self.name_is_durable().with_context(|| format!("{shown} is made, but its name may not be durable"))
    }

    /// Makes the directory durable, and exchanges it with the directory at its place. Returns when both names are
    /// durable.
    pub fn exchange(self) -> Result<Replaced> {
        let shown = self.place.display();
        rustix::fs::syncfs(&self.directory)
            .with_context(|| format!("cannot make the new {shown} durable; nothing was changed"))?;
        let mut state = self.state.lock();
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
            format!("{shown} is plain now, but the change may not be durable, so {} is kept", self.path.display())
        })?;
        Ok(Replaced(self.path.clone()))
    }

    fn name_is_durable(&self) -> Result<()> {
        let parent = self.place.parent().context("it has a parent")?;
        Ok(File::open(parent).and_then(|parent| parent.sync_all())?)
    }
}

/// The store that was at a directory's place before the exchange.
pub struct Replaced(PathBuf);

impl Replaced {
    /// Removes the store, and nothing that anybody else has put there.
    pub fn remove(self) -> Result<()> {
        store_files::remove(&self.0)
    }
}

/// Removes the rest of a store that was replaced by the directory at `place`. False if there is none.
pub fn remove_left(place: &Path) -> Result<bool> {
    let path = unfinished(place)?;
    if !path.is_dir() {
        return Ok(false);
    }
    let Some(_lock) = lock_there(&path, place)? else { return Ok(false) };
    Replaced(path).remove().with_context(|| format!("cannot remove what was left beside {}", place.display()))?;
    Ok(true)
}

/// The path under which the directory for `place` is made.
fn unfinished(place: &Path) -> Result<PathBuf> {
    let (Some(parent), Some(name)) = (place.parent(), place.file_name()) else {
        bail!("{} has no name", place.display())
    };
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(".untorn-unfinished");
    Ok(parent.join(hidden))
}

impl Drop for AtomicDirectory {
    fn drop(&mut self) {
        if let State::Unfinished(path) = std::mem::replace(&mut *self.state.lock(), State::Done)
            && let Err(e) = remove_all(&path)
        {
            tell!("untorn-mount: cannot remove {}, which is unfinished: {e}", path.display());
        }
    }
}

fn remove_on_interrupt(state: &Arc<Mutex<State>>) -> Result<()> {
    let state = Arc::clone(state);
    let clean_up = move || {
        if !clean_up(&state) {
            // The directory is made: the process ends in the normal way, and prints the result.
            loop {
                std::thread::park();
            }
        }
    };
    signals::on_interrupt("untorn-mount", "interrupted; nothing was made", clean_up).context("cannot watch for Ctrl-C")
}

/// Cleans up after an interruption; returns whether the process must end, because nothing was made.
fn clean_up(state: &Mutex<State>) -> bool {
    let held = state.lock();
    match &*held {
        State::Nothing => {}
        State::Unfinished(path) => {
            signals::remove_meanwhile_by(path, || drop(remove_all(path)));
        }
        State::Done => return false,
    }
    // Keeps the lock, so that the directory gets no place while the process ends.
    std::mem::forget(held);
    true
}

/// Makes a new directory at `path`, accessible to this user alone, and locks it. A directory that is already there is
/// removed first.
fn locked(path: &Path, place: &Path) -> Result<File> {
    let shown = path.display();
    loop {
        let is_new = match DirBuilder::new().mode(0o700).create(path) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                return Err(e).with_context(|| format!("cannot make a directory beside {}", place.display()));
            }
            made => made.is_ok(),
        };
        let Some(directory) = lock_there(path, place)? else { continue };
        let is_ours = is_mine(&directory)?;
        if is_new {
            ensure!(
                is_ours,
                "{shown} belongs to another user as soon as it is made, and that user could change it; use another \
                 directory"
            );
            return Ok(directory);
        }
        // Not reused: another user may have made it, and could change the contents. The rest of an ejected store may
        // contain files of other programs, so only the store's own files are removed.
        if store_files::is_tree(path) {
            store_files::remove(path)?;
            continue;
        }
        remove_all(path).with_context(|| format!("cannot remove what was left in {shown}"))?;
    }
}

fn is_mine(directory: impl AsFd) -> Result<bool> {
    Ok(rustix::fs::fstat(directory).context("stat")?.st_uid == rustix::process::geteuid().as_raw())
}

/// Opens and locks the directory at `path`; `None` if it was removed or renamed meanwhile.
fn lock_there(path: &Path, place: &Path) -> Result<Option<File>> {
    let shown = path.display();
    let open = |path: &Path, flags| rustix::fs::open(path, flags | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let found = match open(path, OFlags::PATH | OFlags::NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::NOTDIR | Errno::LOOP) => bail!("{shown} is in the way, and is not a directory; remove it"),
        opened => opened.with_context(|| format!("cannot open {shown}"))?,
    };
    let is_ours = is_mine(&found)?;
    ensure!(is_ours || mount_point::is_root(), "{shown} is another user's, and in the way; have it removed");
    let itself = path_of(&found).join(".");
    if is_ours {
        // A killed process may have left a directory with a closed mode, copied from the original.
        let _ = fs::set_permissions(path_of(&found), Permissions::from_mode(0o700));
    }
    let directory = File::from(open(&itself, OFlags::RDONLY).with_context(|| format!("cannot open {shown}"))?);
    match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => bail!("another process is making {}; wait for it", place.display()),
        result => result.with_context(|| format!("cannot lock {shown}"))?,
    }
    // The process that had the lock may meanwhile have removed the directory, or renamed it to its place.
    let ours = directory.metadata().context("stat")?;
    let is_there = fs::symlink_metadata(path).is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino()));
    Ok(is_there.then_some(directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interruption_after_all_is_made_takes_nothing_back_and_holds_nobody_up() {
        let state = Mutex::new(State::Done);
        assert!(!clean_up(&state), "the process ends by itself");
        assert!(state.try_lock().is_some(), "which needs the lock");
        let dir = tempfile::tempdir().unwrap();
        let unfinished = dir.path().join("unfinished");
        fs::create_dir(&unfinished).unwrap();
        let state = Mutex::new(State::Unfinished(unfinished.clone()));
        assert!(clean_up(&state) && !unfinished.exists());
        assert!(state.try_lock().is_none(), "it gets no place any more");
    }

    #[test]
    fn what_was_left_is_not_taken_over_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (place, left) = (dir.path().join("store"), dir.path().join(".store.untorn-unfinished"));
        fs::create_dir(&left).unwrap();
        fs::set_permissions(&left, Permissions::from_mode(0o777)).unwrap();
        fs::write(left.join("old"), "").unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&left, Some(65534), Some(65534)).unwrap();
        }
        let made = locked(&left, &place).unwrap();
        let about = made.metadata().unwrap();
        assert_eq!((about.uid(), about.mode() & 0o777), (rustix::process::geteuid().as_raw(), 0o700));
        assert!(fs::read_dir(&left).unwrap().next().is_none());
        drop(made);
        fs::remove_dir(&left).unwrap();
        let victim = dir.path().join("victim");
        fs::create_dir(&victim).unwrap();
        fs::set_permissions(&victim, Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(&victim, &left).unwrap();
        assert!(locked(&left, &place).unwrap_err().to_string().contains("is in the way"));
        assert_eq!(victim.metadata().unwrap().mode() & 0o777, 0o755);
    }
}
