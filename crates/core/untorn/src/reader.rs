//! Reading a store that another process may have open, as of one commit and without writing.

pub(crate) mod followed;
pub(crate) mod locate_store;
pub(crate) mod lost;
pub(crate) mod points;
pub(crate) mod read_map;
pub(crate) mod slot;
pub(crate) mod watch;

use crate::engine::paths::error_paths::{check_outside, error_in_store};
pub use crate::reader::followed::{Change, ChangeKind, Commit, Followed};
use crate::reader::locate_store::locate;
pub use crate::reader::slot::{Slot, SlotLock, SlotStatus};
pub use crate::reader::watch::{Figures, Histogram, Stage, Watch};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use untorn_journal::directories::store_dir::{STORE_DIR, StoreDir};
use untorn_journal::readers::follower::Follower;
use untorn_journal::readers::known_log::Known;
use untorn_journal::readers::snapshot::{Entry, Snapshot as Files, SnapshotFile as FileOfSnapshot};
pub use untorn_journal::slots::epochs::{EpochStart, Point};
pub use untorn_journal::slots::slot_dir::Acknowledged;
use untorn_journal::{Context, Error, Result};
use untorn_os::{Linux, Listener, Storage};

/// Longest wait for a commit before the next check whether the owner lives.
const WAIT_MAX: Duration = Duration::from_millis(20);

/// A store opened for reading only. Any number of processes can read while one writes, and none waits for another.
///
/// Nothing is created or changed, and no write permission is needed; the store may be on a read-only mount. The data
/// shown is durable, and of one commit. `docs/READERS.md` describes this in full.
///
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path();
/// use untorn::{Reader, Store};
///
/// let store = Store::open_or_create(path)?;
/// let file = store.open_or_create_file("settings")?;
/// file.write_at(b"dark", 0)?;
/// file.commit()?;
///
/// let reader = Reader::open(path)?; // here, or in another process
/// assert_eq!(reader.read("settings")?, b"dark");
/// # store.close()?;
/// # Ok::<(), untorn::Error>(())
/// ```
#[derive(Clone)]
pub struct Reader {
    shared: Arc<Shared>,
}

struct Shared {
    storage: Arc<dyn Storage>,
    store_dir: StoreDir,
    path: PathBuf,
    /// LSN of the newest commit that was shown. Nothing older is shown after it.
    last_lsn: AtomicU64,
    known: Arc<Known>,
}

impl Shared {
    fn error(&self, e: Error) -> Error {
        match e {
            Error::Unsupported { path, detail } if path == self.store_dir.dir => {
                Error::Unsupported { path: self.path.clone(), detail }
            }
            Error::Busy { path, pid, detail } if path == self.store_dir.dir => {
                Error::Busy { path: self.path.clone(), pid, detail }
            }
            Error::SnapshotExpired { path, lsn } if path == self.store_dir.dir => {
                Error::SnapshotExpired { path: self.path.clone(), lsn }
            }
            Error::SnapshotEnded { path, lsn } if path == self.store_dir.dir => {
                Error::SnapshotEnded { path: self.path.clone(), lsn }
            }
            e => error_in_store(e, &self.path),
        }
    }
}

impl Reader {
    /// Opens a store for reading: a directory, or a file with its own store beside it.
    ///
    /// # Errors
    /// [`Error::Io`] with `NotFound` if there is no store; [`Error::Untrusted`] if it belongs to another user;
    /// [`Error::Unsupported`] if its owner works in class `process`; [`Error::Busy`] if the owner announces nothing to
    /// readers yet.
    pub fn open(path: impl AsRef<Path>) -> Result<Reader> {
        let path = path.as_ref();
        if path.is_dir() {
            check_outside(path)?;
        }
        let (storage, store_dir) = locate(path)?;
        Reader::open_on(storage, store_dir, path.to_owned())
    }

    /// Opens a store on any storage.
    pub(crate) fn open_on(storage: Arc<dyn Storage>, store_dir: StoreDir, path: PathBuf) -> Result<Reader> {
        let (last_lsn, known) = (AtomicU64::new(0), Arc::default());
        let shared = Arc::new(Shared { storage, store_dir, path, last_lsn, known });
        let reader = Reader { shared };
        reader.snapshot()?.files.check_header().map_err(|e| reader.shared.error(e))?;
        Ok(reader)
    }

    /// Opens, for reading, the store that contains a file or directory. Also returns the path's name in the store.
    ///
    /// # Errors
    /// Those of [`Reader::open`].
    pub fn open_containing(path: impl AsRef<Path>) -> Result<(Reader, PathBuf)> {
        let path = path.as_ref();
        let whole = whole_path(path)?;
        if let (Some(parent), Some(name)) = (whole.parent(), whole.file_name()) {
            let alone = StoreDir::of_file(Path::new(name)).dir;
            if parent.join(alone).symlink_metadata().is_ok() {
                return Ok((Reader::open(&whole)?, name.into()));
            }
        }
        match whole.ancestors().find(|dir| dir.join(STORE_DIR).symlink_metadata().is_ok()) {
            Some(top) => {
                let name = whole.strip_prefix(top).expect("an ancestor").to_owned();
                Ok((Reader::open(top)?, name))
            }
            None => Err(Error::io("find a store above", path, ErrorKind::NotFound.into())),
        }
    }

    /// Creates a file without a name in the store's directory, if this user may do so.
    pub(crate) fn unnamed_file(&self) -> Option<Arc<dyn untorn_os::File>> {
        self.shared.storage.create_unnamed(Path::new("")).ok()
    }

    /// The path with which the store was opened.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// The name of the file, if this is the store of a standalone file.
    pub fn standalone(&self) -> Option<&Path> {
        self.shared.store_dir.standalone.as_deref()
    }

    /// A snapshot of the files as of the last durable commit; never older than an earlier one. The owner keeps the
    /// data of the snapshot until the snapshot and its files are dropped.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let Shared { storage, store_dir, last_lsn, known, .. } = &*self.shared;
        let at_least = last_lsn.load(SeqCst);
        let taken =
            store_dir.check_may_read(&**storage).and_then(|()| Files::take(storage, store_dir, known, at_least));
        let files = taken.map_err(|e| self.shared.error(e))?;
        last_lsn.fetch_max(files.lsn(), SeqCst);
        Ok(Snapshot { reader: self.clone(), files })
    }

    /// Calls `act` with a snapshot of the last durable commit.
    ///
    /// # Errors
    /// Those of `act` and of [`Reader::snapshot`].
    pub fn with_snapshot<T>(&self, act: impl FnOnce(&Snapshot) -> Result<T>) -> Result<T> {
        act(&self.snapshot()?)
    }

    /// The contents of a file, as of the last durable commit.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        self.with_snapshot(|snapshot| {
            let file = snapshot.open(path)?;
            let len = file.len()?;
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(usize::try_from(len).unwrap_or(usize::MAX)).map_err(|_| Error::NoMemory {
                path: path.to_owned(),
                detail: format!("it has {len} bytes, which memory cannot hold; read it in pieces with a snapshot"),
            })?;
            bytes.resize(len as usize, 0);
            let n = file.read_at(&mut bytes, 0)?;
            bytes.truncate(n);
            Ok(bytes)
        })
    }

    /// Waits until a commit is durable, for at most this long. Returns false if it is not durable yet.
    pub fn wait_for(&self, lsn: u64, at_most: Duration) -> Result<bool> {
        let start = Instant::now();
        let mut at = self.follow()?;
        while at.lsn() < lsn {
            if !at.wait(at_most.saturating_sub(start.elapsed()))? {
                return Ok(false);
            }
            at.go_on()?;
        }
        self.shared.last_lsn.fetch_max(at.lsn(), SeqCst);
        Ok(true)
    }

    /// Follows the commits after the last durable one.
    pub fn follow(&self) -> Result<Follow> {
        let Shared { storage, store_dir, last_lsn, known, .. } = &*self.shared;
        let at = Follower::at_end(storage, store_dir, &known.page, last_lsn.load(SeqCst));
        let at = at.map_err(|e| self.shared.error(e))?;
        let returned = at.part.lsn;
        Ok(Follow { reader: self.clone(), at, listener: None, ready: VecDeque::new(), returned })
    }

    /// Follows the commits after this one. If the log no longer has all of them, the first result is
    /// [`Followed::Missed`].
    ///
    /// # Errors
    /// [`Error::Conflict`] if the store has no such commit yet.
    pub fn follow_from(&self, lsn: u64) -> Result<Follow> {
        let Shared { storage, store_dir, known, .. } = &*self.shared;
        let at = Follower::behind(storage, store_dir, &known.page, lsn).map_err(|e| self.shared.error(e))?;
        let mut follow = Follow { reader: self.clone(), at, listener: None, ready: VecDeque::new(), returned: lsn };
        follow.take_found(lsn);
        Ok(follow)
    }
}

/// The files of a store as of one commit.
///
/// It is held until it and its files are dropped, or this process ends: the owner keeps its data, also across
/// checkpoints, closes and kills, and so does the next owner. Nobody waits for anybody. It ends earlier only if the kept
/// data takes too much space ([`Error::SnapshotExpired`], [`crate::StoreOptions::readers_space`]), or if the store is ejected
/// or repaired ([`Error::SnapshotEnded`]). It never shows contents of another commit.
pub struct Snapshot {
    reader: Reader,
    files: Arc<Files>,
}

/// A file of a [`Snapshot`].
pub struct SnapshotFile {
    reader: Reader,
    file: FileOfSnapshot,
}

/// Metadata of the file or directory under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// A directory.
    pub is_directory: bool,
    /// Length in bytes; 0 for a directory.
    pub len: u64,
    /// Permission bits.
    pub mode: u32,
}

impl Snapshot {
    fn map<T>(&self, done: Result<T>) -> Result<T> {
        done.map_err(|e| self.reader.shared.error(e))
    }

    /// LSN of the commit that it shows.
    pub fn lsn(&self) -> u64 {
        self.files.lsn()
    }

    /// Advances to the last durable commit.
    pub fn refresh(&mut self) -> Result<()> {
        *self = self.reader.snapshot()?;
        Ok(())
    }

    /// Opens a file, by its name relative to the store's directory.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<SnapshotFile> {
        let file = self.map(self.files.open(path.as_ref()))?;
        Ok(SnapshotFile { reader: self.reader.clone(), file })
    }

    /// Names in a directory, sorted; the empty path is the store itself. Untorn's own directories are left out.
    pub fn list(&self, dir: impl AsRef<Path>) -> Result<Vec<OsString>> {
        self.map(self.files.list(dir.as_ref()))
    }

    /// The metadata of the file or directory under a name.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        let Entry { is_directory, len, mode } = self.map(self.files.entry(path.as_ref()))?;
        Ok(Metadata { is_directory, len, mode })
    }

    /// Checks that everything that was read so far is of this one commit, and that more can be read.
    pub fn check(&self) -> Result<()> {
        self.map(self.files.check())
    }
}

impl SnapshotFile {
    fn map<T>(&self, done: Result<T>) -> Result<T> {
        done.map_err(|e| self.reader.shared.error(e))
    }

    /// Length in bytes.
    pub fn len(&self) -> Result<u64> {
        self.map(self.file.len())
    }

    /// Whether the file is empty.
    pub fn is_empty(&self) -> Result<bool> {
        self.map(self.file.is_empty())
    }

    /// Permission bits.
    pub fn mode(&self) -> Result<u32> {
        self.map(self.file.mode())
    }

    /// Copies the contents to a new, empty file, and returns the length. Blocks are shared where the file system
    /// supports that (`FICLONERANGE`); zeros become holes. `progress` gets the bytes done. After an error the file may
    /// hold anything.
    ///
    /// # Errors
    /// [`Error::SnapshotExpired`]
    pub fn copy_to(&self, to: &std::fs::File, progress: &mut dyn FnMut(u64)) -> Result<u64> {
        let to = to.try_clone().and_then(|to| Linux::file_of(to.into()));
        self.copy_into(&*to.context("copy into a file", self.file.path())?, progress)
    }

    /// The data file, opened again for reading: for metadata such as times and owner. `None` if it does not exist yet.
    /// Its contents are not those of this commit.
    pub fn data_file(&self) -> Result<Option<std::fs::File>> {
        let data = self.file.data().and_then(|data| data.duplicate().ok());
        Ok(data.map(std::fs::File::from))
    }

    pub(crate) fn copy_into(&self, to: &dyn untorn_os::File, progress: &mut dyn FnMut(u64)) -> Result<u64> {
        self.map(self.file.copy_to(to, progress))
    }

    /// Reads as many bytes as there are, up to the length of `buf`.
    ///
    /// # Errors
    /// [`Error::SnapshotExpired`]: `buf` may hold anything then.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.map(self.file.read_at(buf, offset))
    }
}

/// Commits as they become durable, each once, in order. [`Iterator::next`] waits for the next one.
pub struct Follow {
    reader: Reader,
    /// The place in the log. All commits before it were returned, or are in `ready`.
    at: Follower,
    /// Waits for commits behind the place; `None` until the first wait.
    listener: Option<Box<dyn Listener>>,
    ready: VecDeque<Followed>,
    /// LSN up to which commits were returned.
    returned: u64,
}

impl Follow {
    /// LSN of the last commit before the next one: up to it, every commit was returned, or reported as missed.
    pub fn lsn(&self) -> u64 {
        if self.ready.is_empty() { self.at.part.lsn } else { self.returned }
    }

    /// The next commit, if there is one within this time.
    pub fn next_within(&mut self, at_most: Duration) -> Result<Option<Followed>> {
        let start = Instant::now();
        loop {
            if let Some(next) = self.ready.pop_front() {
                self.returned = match &next {
                    Followed::Commit(commit) => commit.lsn,
                    Followed::Missed { last_lsn, .. } => *last_lsn,
                };
                return Ok(Some(next));
            }
            if !self.wait(at_most.saturating_sub(start.elapsed()))? {
                return Ok(None);
            }
            let before = self.at.part.lsn;
            self.go_on()?;
            self.take_found(before);
        }
    }

    /// Queues the commits behind this one that the last look found.
    fn take_found(&mut self, before: u64) {
        if let Some((first_lsn, last_lsn)) = self.at.part.missed {
            self.ready.push_back(Followed::Missed { first_lsn, last_lsn });
        }
        let store: Arc<Path> = self.reader.path().into();
        let commits = self.at.part.found.iter().filter(|a| a.lsn > before && !a.record.restates());
        self.ready.extend(commits.map(|accepted| Followed::Commit(Commit::of(accepted, &store))));
    }

    /// Waits until the place is stale. Returns false if it is not yet.
    fn wait(&mut self, at_most: Duration) -> Result<bool> {
        let Shared { storage, store_dir, .. } = &*self.reader.shared;
        let start = Instant::now();
        loop {
            if self.at.is_stale(storage, store_dir).map_err(|e| self.reader.shared.error(e))? {
                return Ok(true);
            }
            let left = at_most.saturating_sub(start.elapsed());
            match &self.listener {
                _ if left.is_zero() => return Ok(false),
                Some(listener) => listener.wait(left.min(WAIT_MAX)),
                // Earlier commits do not trigger the new listener, so check again.
                None => self.listener = Some(self.at.listen()),
            }
        }
    }

    /// Advances to newer commits.
    fn go_on(&mut self) -> Result<()> {
        let Shared { storage, store_dir, known, .. } = &*self.reader.shared;
        if !self.at.go_on(storage, store_dir, &known.page).map_err(|e| self.reader.shared.error(e))? {
            self.listener = None;
        }
        Ok(())
    }
}

impl Iterator for Follow {
    type Item = Result<Followed>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_within(Duration::MAX).transpose()
    }
}

/// The absolute path of a file that may be in the log only.
fn whole_path(path: &Path) -> Result<PathBuf> {
    if let Ok(whole) = path.canonicalize() {
        return Ok(whole);
    }
    let whole = std::path::absolute(path).context("look at", path)?;
    let there = whole.ancestors().find_map(|dir| Some((dir, dir.canonicalize().ok()?)));
    Ok(there.map_or(whole.clone(), |(dir, real)| real.join(whole.strip_prefix(dir).expect("an ancestor"))))
}
