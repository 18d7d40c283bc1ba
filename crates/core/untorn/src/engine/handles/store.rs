//! The handle of an open store, and every way to open one.

use crate::engine::checkpoint::Checkpoint;
use crate::engine::commit::TxnPart;
use crate::engine::commit::capture::Threads;
use crate::engine::commit::ticket::Ticket;
use crate::engine::files::file_state::{SharedFile, check_kind};
use crate::engine::handles::file::File;
use crate::engine::handles::txn::Txn;
use crate::engine::lifecycle::open_store::OpenStore;
use crate::engine::lifecycle::open_stores;
use crate::engine::lifecycle::status::Status;
use crate::engine::options::{FailureClass, FileOptions, StoreOptions};
use crate::engine::paths::error_paths::check_outside;
use crate::engine::waiting::completion::Completion;
use crate::sync_point;
use std::collections::HashSet;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use untorn_journal::directories::store_dir::{STORE_DIR, StoreDir};
use untorn_journal::undo::kept_links::KeptLinks;
use untorn_journal::{Context, Error, Result};
use untorn_os::{Linux, Storage};

/// The pause between two tries to open a store that another process owns.
const WAIT_STEP: Duration = Duration::from_millis(10);

/// An open store: a directory whose files change all or nothing.
///
/// Cheap to clone. When the last clone and the last file handle are gone, the store closes by itself, and errors are
/// only logged: call [`Store::close`] to get them.
#[derive(Clone)]
pub struct Store {
    pub(crate) open: Arc<OpenStore>,
}

impl Store {
    /// Opens an existing store, with default options.
    ///
    /// # Errors
    /// Those of [`StoreOptions::open`]; [`Error::Io`] of kind `NotFound` if there is no store.
    pub fn open(path: impl AsRef<Path>) -> Result<Store> {
        StoreOptions::new().open(path)
    }

    /// Opens a directory as a store, with default options; creates the store, and the directory, if there is none.
    ///
    /// # Errors
    /// Those of [`StoreOptions::open`].
    pub fn open_or_create(path: impl AsRef<Path>) -> Result<Store> {
        StoreOptions::new().create(true).open(path)
    }

    /// The store of a directory, if this process has it open: for parts of a program that do not know each other. The
    /// store closes when the last of all handles is gone.
    pub fn find(path: impl AsRef<Path>) -> Option<Store> {
        open_stores::find(path.as_ref()).map(|open| Store { open })
    }

    /// Opens an existing file, by its name relative to the store's directory.
    pub fn open_file(&self, path: impl AsRef<Path>) -> Result<File> {
        FileOptions::new().open_in(self, path)
    }

    /// Opens a file; creates it, in a separate commit, if there is none (mode 0666 less the umask). An existing file
    /// keeps its contents.
    pub fn open_or_create_file(&self, path: impl AsRef<Path>) -> Result<File> {
        FileOptions::new().create(true).open_in(self, path)
    }

    /// Opens or creates a file according to its options.
    fn open_file_with(&self, path: &Path, options: &FileOptions) -> Result<File> {
        let store = &self.open;
        store.life.check_usable()?;
        let is_missing = |loaded: &Result<_>| loaded.as_ref().is_err_and(is_not_found);
        // Until a commit of names is written, its names lead to their old files.
        store.settle_name(path)?;
        let mut loaded = store.load(path, 1);
        if is_missing(&loaded) {
            // A commit on its way may create the file.
            store.drain();
            loaded = store.load(path, 1);
        }
        let shared = if is_missing(&loaded) && options.creates() {
            match self.create_file(path, options.mode & !untorn_os::umask()) {
                // Another thread was faster.
                Err(Error::Io { source, .. }) if !options.create_new && source.kind() == ErrorKind::AlreadyExists => {
                    store.load(path, 1)?
                }
                created => created?,
            }
        } else {
            if is_missing(&loaded) {
                return Err(Error::not_there(path));
            }
            let shared = loaded?;
            if options.create_new {
                store.remove_handle(&shared);
                return Err(Error::io("create", path, ErrorKind::AlreadyExists.into()));
            }
            shared
        };
        if !options.read_only && !store.is_writable(&shared) {
            store.remove_handle(&shared);
            return Err(Error::io("open for writing", path, ErrorKind::PermissionDenied.into()));
        }
        let file = File::counted(store.clone(), shared, options.read_only);
        if options.truncate && !options.read_only {
            file.set_len(0)?;
        }
        Ok(file)
    }

    /// Creates a file in a separate commit. The returned file has counted one handle.
    fn create_file(&self, path: &Path, mode: u32) -> Result<Arc<SharedFile>> {
        let mut txn = self.begin();
        let shared = txn.create_shared(path, mode)?;
        shared.write().handles += 1;
        txn.commit()?;
        Ok(shared)
    }

    /// Names in a directory of the store, sorted, as of the last commit; the empty path is the store itself.
    /// Untorn's own directories are left out.
    pub fn list(&self, dir: impl AsRef<Path>) -> Result<Vec<OsString>> {
        let store = &self.open;
        store.life.check_usable()?;
        store.drain();
        let _names = store.steady_names();
        let dir = dir.as_ref();
        let mut names = store.storage.list(dir).context("list", dir)?;
        names.retain(|name| !name.as_encoded_bytes().ends_with(STORE_DIR.as_bytes()));
        names.sort_unstable();
        Ok(names)
    }

    /// Renames a file in a separate commit; a file with the new name is replaced.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let mut txn = self.begin();
        txn.rename(from, to)?;
        txn.commit()
    }

    /// Begins a transaction over files and names.
    pub fn begin(&self) -> Txn {
        Txn::new(self.open.clone())
    }

    /// Commits the changes of many files as one commit: after a crash at any point, all of them are there, or none.
    pub fn syncv(&self, files: &[&File]) -> Result<()> {
        let completion = self.submit(files)?;
        self.open.finish(&completion)
    }

    /// Queues one commit of many files. Its changes are determined by this call.
    pub(crate) fn submit(&self, files: &[&File]) -> Result<Arc<Completion>> {
        self.open.submit(&self.distinct(files)?, None)
    }

    /// Submits like [`Self::submit`], with the stores to mappings captured in one of the [ways](Threads).
    pub(crate) fn submit_captured(&self, files: &[&File], threads: Threads<'_>) -> Result<Arc<Completion>> {
        self.open.submit_captured(&self.distinct(files)?, None, threads)
    }

    /// Commits the changes of many files as one commit, without waiting.
    pub fn syncv_async(&self, files: &[&File]) -> Result<Ticket> {
        let completion = self.open.submit_async(&self.distinct(files)?, None::<TxnPart>)?;
        Ok(self.open.ticket(completion))
    }

    /// Commits like [`Self::syncv_async`], but wakes no thread: the commit is written when a thread waits for its
    /// ticket, or for a later one.
    pub(crate) fn submit_unwritten(&self, files: &[&File]) -> Result<Ticket> {
        self.open.shorten_queue()?;
        let completion = self.submit(files)?;
        Ok(self.open.ticket(completion))
    }

    fn distinct(&self, files: &[&File]) -> Result<Vec<Arc<SharedFile>>> {
        self.open.life.check_usable()?;
        if files.iter().any(|f| !Arc::ptr_eq(&f.store, &self.open)) {
            return Err(Error::invalid(
                "a file belongs to another store; files that commit together live in one store",
            ));
        }
        files.iter().try_for_each(|file| file.check_not_heap())?;
        let mut known = HashSet::new();
        Ok(files.iter().filter(|f| known.insert(f.shared.id)).map(|f| f.shared.clone()).collect())
    }

    /// Brings the data files up to everything committed so far, and truncates the log. Without commits in between, the
    /// data files are plain and complete afterwards.
    pub fn checkpoint(&self) -> Result<()> {
        self.open.life.check_usable()?;
        self.open.checkpoint()
    }

    /// Waits for all commits that were started, also by other threads. Their tickets tell their results.
    ///
    /// # Errors
    /// With [`StoreOptions::in_order`], the reason why a commit cannot be written now.
    pub fn wait(&self) -> Result<()> {
        self.open.life.check_usable()?;
        self.open.wait_for_all()
    }

    /// Waits until all commits so far, also those of earlier openings, survive the failures of this class
    /// ([`Ticket::wait_for`]).
    ///
    /// # Errors
    /// Those of [`Ticket::wait_for`], and of [`Store::wait`].
    pub fn wait_for(&self, class: FailureClass) -> Result<()> {
        self.wait()?;
        let last = Arc::new(Completion::default());
        last.note_lsn(self.open.journal.lock().journal.last_commit_lsn());
        last.complete(Ok(()));
        self.open.ticket(last).wait_for(class)
    }

    /// A descriptor (an `eventfd`) for event loops: it becomes readable whenever commits have results, also when a slot
    /// acknowledges commits that were polled for class `remote`; once for each group. Read its 8 bytes, then poll the tickets. The store owns it.
    pub fn notification_fd(&self) -> Result<BorrowedFd<'_>> {
        self.open.life.check_usable()?;
        self.open.commits.notification.descriptor()
    }

    /// Runs only the first step of a checkpoint, for tests: it covers the next portion of the commits that the opening
    /// left unapplied, or everything committed so far.
    pub(crate) fn begin_checkpoint(&self) -> Result<Option<Checkpoint<'_>>> {
        self.open.life.check_usable()?;
        match self.open.begin_portion()? {
            Some(portion) => Ok(Some(portion)),
            None => self.open.begin_checkpoint(),
        }
    }

    /// Writes a durable mark, like the background thread after a while without commits.
    pub(crate) fn write_durable_mark(&self) -> Result<bool> {
        self.open.life.check_usable()?;
        self.open.journal.lock().journal.write_durable_mark()
    }

    /// Number of files visited by walks through the whole table, for tests: no commit, name change or checkpoint may
    /// cause a walk.
    pub(crate) fn files_walked(&self) -> u64 {
        self.open.files.lock().walked()
    }

    /// The store's state.
    pub fn status(&self) -> Status {
        Status::of(&self.open)
    }

    /// The path with which the store was opened.
    pub fn path(&self) -> PathBuf {
        self.open.path.clone()
    }

    /// Closes the store: finishes commits on their way, brings the data files up to them, and leaves them plain and
    /// complete. **Uncommitted changes are discarded.** Handles that are still open return [`Error::Closed`].
    pub fn close(self) -> Result<()> {
        self.open.close()
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("path", &self.open.path)
            .field("class", &self.open.options.class)
            .finish_non_exhaustive()
    }
}

impl File {
    /// Opens an existing file, to read and to write it. Its own store is beside it, `<path>.untorn/`, and is made if
    /// there is none.
    ///
    /// # Errors
    /// Those of [`FileOptions::open`]; [`Error::Io`] of kind `NotFound` if there is no file.
    pub fn open(path: impl AsRef<Path>) -> Result<File> {
        FileOptions::new().open(path)
    }

    /// Opens a file like [`File::open`]; creates it if there is none, with mode 0666 less the umask. An existing file
    /// keeps its contents.
    pub fn open_or_create(path: impl AsRef<Path>) -> Result<File> {
        FileOptions::new().create(true).open(path)
    }

    /// The store of the file.
    pub fn store(&self) -> Store {
        Store { open: self.store.clone() }
    }
}

impl StoreOptions {
    /// Opens a directory as a store. With `create`, a missing store is created, and so is the directory (mode 0777 less
    /// the umask) if its parent exists.
    ///
    /// # Errors
    /// [`Error::Io`] of kind `NotFound` if there is no store and `create` is off, [`Error::Busy`] if another process
    /// owns the store, [`Error::Untrusted`], [`Error::Corrupt`], [`Error::UnknownState`], [`Error::NewerVersion`],
    /// [`Error::Foreign`], [`Error::Io`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Store> {
        let path = path.as_ref();
        self.check()?;
        if self.create {
            make_directory(path)?;
        }
        let opened = check_outside(path)
            .and_then(|()| Linux::open(path).context("open", path))
            .and_then(|storage| self.open_on(storage, StoreDir::of_directory(), path.to_owned()));
        if let Ok(store) = &opened {
            open_stores::note(path, &store.open);
        }
        match opened {
            Err(e) if !self.create && is_not_found(&e) && !path.join(STORE_DIR).exists() => Err(Error::not_there(path)),
            opened => opened,
        }
    }

    /// Opens a store on any storage.
    pub(crate) fn open_on(&self, storage: Arc<dyn Storage>, store_dir: StoreDir, path: PathBuf) -> Result<Store> {
        let progress = |done, all| {
            if let Some(f) = &self.progress {
                f(done, all);
            }
        };
        let started = Instant::now();
        loop {
            match OpenStore::open(storage.clone(), store_dir.clone(), path.clone(), self, &progress) {
                Err(Error::Busy { .. }) if started.elapsed() < self.wait_most => std::thread::sleep(WAIT_STEP),
                opened => return Ok(Store { open: opened? }),
            }
        }
    }
}

impl FileOptions {
    /// Opens a file of a store, by its name relative to the store's directory.
    ///
    /// # Errors
    /// [`Error::Io`] of kind `NotFound` if there is no file and it is not to be created; otherwise those of
    /// [`StoreOptions::open`], and [`Error::NeedsJournal`].
    pub fn open_in(&self, store: &Store, path: impl AsRef<Path>) -> Result<File> {
        store.open_file_with(path.as_ref(), self)
    }

    /// Opens a standalone file. Its own store is beside it, `<path>.untorn/`, is made if there is none, and closes with
    /// the file's last handle.
    ///
    /// # Errors
    /// Those of [`FileOptions::open_in`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        let path = path.as_ref();
        let name = path.file_name().ok_or_else(|| Error::invalid(format!("{} names no file", path.display())))?;
        let dir = path.parent().unwrap_or(Path::new(""));
        check_outside(dir)?;
        let storage = Linux::open(dir).context("open", dir)?;
        self.open_on(storage, Path::new(name), path.to_owned())
    }

    /// Opens a standalone file on any storage.
    pub(crate) fn open_on(&self, storage: Arc<dyn Storage>, name: &Path, path: PathBuf) -> Result<File> {
        let store_dir = StoreDir::of_file(name);
        // Check the name before a store is made for it. If there is a store, a missing file may have been created by a
        // commit that only its journal holds.
        match storage.stat(name) {
            Ok(_) if self.create_new => {
                return Err(Error::io("create", &path, ErrorKind::AlreadyExists.into()));
            }
            Ok(meta) => {
                let kept_links = KeptLinks::found(&*storage, &store_dir.undo());
                check_kind(&meta, kept_links.own_links(&meta), name)?;
            }
            Err(e) if e.kind() == ErrorKind::NotFound && (self.creates() || storage.stat(&store_dir.dir).is_ok()) => {}
            Err(e) if e.kind() == ErrorKind::NotFound => return Err(Error::not_there(&path)),
            Err(e) => return Err(Error::io("open", &path, e)),
        }
        self.store.open_on(storage, store_dir, path)?.open_file_with(name, self)
    }
}

fn is_not_found(e: &Error) -> bool {
    matches!(e, Error::Io { source, .. } if source.kind() == ErrorKind::NotFound)
}

/// Makes a store's directory, durably, if there is none. A directory without a journal may have been created by a
/// killed process, and not flushed.
fn make_directory(path: &Path) -> Result<()> {
    let Some(name) = path.file_name().filter(|_| !path.join(STORE_DIR).join("journal").exists()) else { return Ok(()) };
    let parent = path.parent().unwrap_or(Path::new(""));
    let storage = match Linux::open(parent) {
        // If this user cannot even read the parent directory, another user made the store's directory.
        Err(e) if e.kind() == ErrorKind::PermissionDenied && path.exists() => return Ok(()),
        done => done.context("open", parent)?,
    };
    if !path.exists() {
        match storage.mkdir(Path::new(name), 0o777 & !untorn_os::umask()) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(Error::io("make", path, e)),
            _ => {}
        }
    }
    storage.sync_dir(Path::new(""), sync_point::CREATE_STORE_NAME).context("flush", parent)
}
