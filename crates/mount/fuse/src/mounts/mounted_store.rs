//! The store behind a mount: opens it, or makes a new one.

use crate::error_line::in_one_line;
use crate::mounts::awaited_slot::AwaitedSlot;
use crate::mounts::mount_point::{self, Mounted};
use crate::mounts::store_files::{self, JOURNAL, OBJECTS};
use crate::plain_trees::trial_below::SizeTrial;
use anyhow::{Context, Error, Result, bail, ensure};
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use untorn::Store;
use untorn_terminal::tell;
use untorn_tree::{
    CommitMode, FileTree, HandoverLog, Limits, PACK, ROOT, StoreTree, TABLE, TreeOptions, missing_table,
};

/// How long a daemon may take to close a store that nobody uses any more.
const CLOSING_MAX: Duration = Duration::from_secs(60);
const TELL_AFTER: Duration = Duration::from_secs(2);

/// Opens the tree in a store, or makes a new one in a directory that is empty or missing, and says so.
///
/// Without `limits`, those of the store's own file system apply. With `remote`, syncs wait for that slot.
pub fn open(
    path: &Path,
    commit: CommitMode,
    kept: Option<Arc<dyn HandoverLog>>,
    limits: Option<Arc<dyn Limits>>,
    remote: Option<&AwaitedSlot>,
) -> Result<Arc<dyn FileTree>> {
    let goes_on = kept.as_ref().is_some_and(|kept| kept.len().is_ok_and(|len| len > 0));
    ensure!(
        !goes_on || is_there(path),
        "the store {} no longer exists: it was renamed or removed while it was mounted",
        path.display()
    );
    if is_new(path)? {
        tell!("untorn-mount: a new store is made in {}", path.display());
    }
    let limits = limits.unwrap_or_else(|| Arc::new(SizeTrial::of(path)));
    let options = TreeOptions { commit, kept, limits, ..TreeOptions::default() };
    Ok(Arc::new(open_tree(path, options, remote)?))
}

/// A path that is missing or an empty directory: if the mount fails, no new store is left there.
pub struct NewStore<'a> {
    path: &'a Path,
    has_directory: bool,
}

impl NewStore<'_> {
    /// Takes a path, if nothing or an empty directory is there; else `None`.
    pub fn look(path: &Path) -> Option<NewStore<'_>> {
        let entries = fs::read_dir(path);
        match &entries {
            Err(e) if e.kind() != ErrorKind::NotFound => return None,
            _ => {}
        }
        let has_directory = entries.is_ok();
        let is_empty = entries.into_iter().flatten().next().is_none();
        is_empty.then_some(NewStore { path, has_directory })
    }

    /// Removes the new store after an error prevented the mount.
    ///
    /// Another process may have made the store meanwhile: a store with files, or in use, stays. A tree that was opened
    /// is still open, so that no other process has it.
    pub fn remove(&self, tree: Option<&Arc<dyn FileTree>>, why: &Error) {
        let is_empty = match tree {
            Some(tree) => tree.read_dir(ROOT, 0, 1).is_ok_and(|names| names.is_empty()),
            // The error left a half-made store.
            None => why.chain().any(|cause| cause.is::<untorn::Error>()) && !self.path.join(TABLE).exists(),
        };
        if !is_empty || !self.path.exists() {
            return;
        }
        if let Some(tree) = tree {
            tree.abandon();
        }
        let removed =
            if self.has_directory { store_files::remove_from(self.path) } else { store_files::remove(self.path) };
        if let Err(e) = removed {
            tell!("untorn-mount: the new store in {} is not removed: {}", self.path.display(), in_one_line(&e));
        }
    }
}

/// Whether a store is at a path.
pub fn is_there(path: &Path) -> bool {
    path.join(JOURNAL).exists()
}

/// Opens the tree of an existing store that nobody uses, to copy its committed files.
pub fn open_to_export(path: &Path) -> Result<StoreTree> {
    let shown = path.display();
    let is_store = match fs::metadata(path.join(JOURNAL)) {
        Ok(journal) => journal.is_dir() && !is_new(path)?,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => false,
        Err(e) => return Err(e).with_context(|| format!("cannot read the store {shown}")),
    };
    ensure!(
        is_store,
        "there is no store in {shown}; give the directory that `untorn mount` or `untorn import` made one in"
    );
    if mounted(path).is_some() {
        bail!("{shown} is mounted; unmount it first (untorn umount), or copy from the mount (cp -a)");
    }
    open_tree(path, TreeOptions::default(), None)
}

fn open_tree(path: &Path, options: TreeOptions, remote: Option<&AwaitedSlot>) -> Result<StoreTree> {
    let shown = path.display();
    let (opened, mounted) = open_when_closed(path, remote);
    let opened = opened.and_then(|store| {
        // From its first commit on, a tree has both files.
        match path.join(PACK).exists() && !path.join(TABLE).exists() {
            true => Err(missing_table()),
            false => StoreTree::open(store, options),
        }
    });
    match opened {
        Err(untorn::Error::Busy { pid, .. }) => bail!("{}", busy(path, pid, mounted)),
        Err(untorn::Error::Io { source, .. }) if source.kind() == ErrorKind::ReadOnlyFilesystem => bail!(
            "{shown} is on a file system that is read-only, and a store is brought up to date when it is opened; remount that \
             file system for writing, or copy the store elsewhere (cp -a)"
        ),
        done => done.with_context(|| format!("cannot open {shown}")),
    }
}

/// Opens a store, and waits for a daemon that is closing it.
///
/// `umount` and `fusermount3 -u` do not wait for the daemon, which then still closes the store; a daemon that is being
/// killed still holds it. If the store is still mounted, the wait ends soon, and the mount is returned.
fn open_when_closed(path: &Path, remote: Option<&AwaitedSlot>) -> (untorn::Result<Store>, Option<Mounted>) {
    let (started, mut told) = (Instant::now(), false);
    let options = match remote {
        Some(slot) => StoreTree::store_options().remote(&*slot.name, slot.how),
        None => StoreTree::store_options(),
    };
    loop {
        let opened = options.open(path);
        let is_busy = matches!(opened, Err(untorn::Error::Busy { .. }));
        let elapsed = started.elapsed();
        // Checked late, because the check of a mount may take some seconds.
        let mounted = if is_busy && elapsed >= mount_point::DYING_MAX { mounted(path) } else { None };
        if !is_busy || mounted.is_some() || elapsed >= CLOSING_MAX {
            return (opened, mounted);
        }
        if !told && started.elapsed() > TELL_AFTER {
            told = true;
            tell!("untorn-mount: waiting until the last daemon of {} has closed the store", path.display());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Says which process has the store, and how to free it.
fn busy(path: &Path, process: Option<u32>, mounted: Option<Mounted>) -> String {
    let of = process.map_or_else(String::new, |process| format!(" by process {process}"));
    let shown = path.display();
    match mounted {
        Some(Mounted { at, .. }) => format!(
            "{shown} is in use{of}: it is mounted at {0}; use it there, or unmount it first (untorn umount {0})",
            at.display()
        ),
        None => format!(
            "{shown} is in use{of}, but this process sees no mount of it: another program has opened it, or it is \
             mounted in another mount namespace (untorn run, a container); end that program or mount first"
        ),
    }
}

/// A mount of the store with a daemon that has not ended.
fn mounted(path: &Path) -> Option<Mounted> {
    let shows = |m: &Mounted| m.is_ours() && m.source == path && !mount_point::is_dead(&m.at);
    mount_point::mounts().ok()?.into_iter().find(shows)
}

fn is_new(path: &Path) -> Result<bool> {
    let shown = path.display();
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            store_files::check_place(path)?;
            DirBuilder::new().mode(0o700).create(path).with_context(|| format!("cannot make the directory {shown}"))?;
            return Ok(true);
        }
        Err(e) if e.kind() == ErrorKind::NotADirectory => {
            bail!("{shown} is not a directory; only a store that is a directory can be mounted")
        }
        Err(e) => return Err(e).with_context(|| format!("cannot read the store {shown}")),
    };
    let names = entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<std::io::Result<Vec<_>>>();
    let names = names.with_context(|| format!("cannot read the store {shown}"))?;
    let (journal, table) = (names.iter().any(|name| name == JOURNAL), names.iter().any(|name| name == TABLE));
    match (journal, table) {
        (true, true) => Ok(false),
        // A crash may have left an empty journal, or the names that recovery makes.
        (true, false) if names.iter().all(|name| [JOURNAL, OBJECTS, PACK].iter().any(|known| name == known)) => {
            Ok(false)
        }
        (true, false) => {
            bail!("{shown} is a store with files of programs, which cannot be mounted; use another directory")
        }
        (false, _) if names.is_empty() => store_files::check_place(path).map(|()| true),
        (false, _) => bail!("{shown} is not empty, and is not a store; use a new or an empty directory"),
    }
}
