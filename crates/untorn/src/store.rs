//! An open store: its parts, its files, its end.

use crate::background::Background;
use crate::checkpoint::{After, Side};
use crate::file::File;
use crate::group::Queue;
use crate::options::{FailureClass, FileOptions, StoreOptions};
use crate::status::Status;
use crate::sync::{AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard};
use crate::ticket::{Slot, Ticket};
use crate::txn::Txn;
use crate::view::{FileShared, Life, View, check_kind};
use std::collections::{BTreeMap, HashSet};
use std::io::ErrorKind;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use untorn_journal::apply::open_for_writing;
use untorn_journal::extent::Extent;
use untorn_journal::format::{Attribute, AttributeFound};
use untorn_journal::home::{Home, Ownership};
use untorn_journal::record::check_path;
use untorn_journal::recovery::{OpenOptions, Opened, Quarantined, Recovered, clear_flag, open};
use untorn_journal::{Context, Error, Result};
use untorn_os::{Open, Step, Storage, process_generation};

/// An open store: a directory whose files change all or nothing.
///
/// Cheap to clone. When the last clone and the last file handle are gone it closes by itself, and
/// errors are lost: call [`Store::close`] to hear of them.
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Arc<Owned>,
}

/// What the handles share.
///
/// Locks, in the order in which they may be taken: `closing`, `checkpoint_turn`, `side`, `renaming`,
/// `queue`, `files`, a file's view.
pub(crate) struct Inner {
    pub storage: Arc<dyn Storage>,
    pub home: Home,
    pub path: PathBuf,
    pub options: StoreOptions,
    pub session: u64,
    pub store_id: [u8; 16],
    generation: u64,
    ownership: Mutex<Option<Ownership>>,
    pub recovered: Recovered,
    /// Files that recovery could not serve.
    pub quarantined: Vec<Quarantined>,
    pub checkpoint_turn: Mutex<()>,
    pub side: Mutex<Side>,
    /// Held while the store closes, so that whoever else closes it waits for the end.
    closing: Mutex<()>,
    /// The store is closed, and the journal is the next owner's: set in turn with checkpoints.
    pub over: AtomicBool,
    /// Held for writing while committed names and names on disk differ.
    pub renaming: RwLock<()>,
    pub queue: Mutex<Queue>,
    pub queue_changed: Condvar,
    pub files: Mutex<Files>,
    pub background: Background,
    pub closed: AtomicBool,
    /// The journal failed for good; `side.journal` tells how.
    pub failed: AtomicBool,
    next_txn: AtomicU64,
    pub commits_waited: AtomicU64,
    pub checkpoints: AtomicU64,
}

/// The files that are open, by name.
type Files = BTreeMap<PathBuf, Arc<FileShared>>;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Inner {
    pub(crate) fn open(
        storage: Arc<dyn Storage>,
        home: Home,
        path: PathBuf,
        options: &StoreOptions,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Arc<Owned>> {
        let opened = open(
            &storage,
            &home,
            &OpenOptions {
                journal: options.journal,
                create: options.create,
                wait: options.wait,
                accept_unknown: options.accept_unknown,
                salvage: options.salvage,
                progress,
            },
        )
        .map_err(|e| at_path(e, &path))?;
        let Opened { journal, ownership, recovered, quarantined } = opened;
        for q in &quarantined {
            tracing::warn!(file = %q.path.display(), reason = %q.reason, "file quarantined");
        }
        let inner = Arc::new(Inner {
            storage,
            home,
            path,
            options: options.clone(),
            session: journal.session(),
            store_id: journal.store(),
            generation: process_generation(),
            ownership: Mutex::new(Some(ownership)),
            recovered,
            quarantined,
            checkpoint_turn: Mutex::new(()),
            side: Mutex::new(Side::new(journal)),
            closing: Mutex::new(()),
            over: AtomicBool::new(false),
            renaming: RwLock::default(),
            queue: Mutex::default(),
            queue_changed: Condvar::new(),
            files: Mutex::default(),
            background: Background::default(),
            closed: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            next_txn: AtomicU64::new(1),
            commits_waited: AtomicU64::new(0),
            checkpoints: AtomicU64::new(0),
        });
        if options.background {
            Background::start(&inner)?;
        }
        Ok(Arc::new(Owned { inner }))
    }

    /// Handles of the parent are of no use in a forked child.
    pub(crate) fn check_fork(&self) -> Result<()> {
        if self.generation == process_generation() { Ok(()) } else { Err(Error::Forked) }
    }

    pub(crate) fn check_usable(&self) -> Result<()> {
        self.check_fork()?;
        if self.closed.load(SeqCst) { Err(Error::Closed) } else { Ok(()) }
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.options.class == FailureClass::Power
    }

    pub(crate) fn new_txn_id(&self) -> u64 {
        self.next_txn.fetch_add(1, SeqCst)
    }

    pub(crate) fn new_file_id(&self) -> Result<u64> {
        let mut id = [0; 8];
        self.storage.random(&mut id).context("draw an identity in", &self.path)?;
        Ok(u64::from_le_bytes(id).max(1))
    }

    pub(crate) fn create_extent(&self) -> Result<Arc<Extent>> {
        match Extent::create(&self.storage, &self.home.journal()) {
            Err(Error::Io { source, .. }) if matches!(source.raw_os_error(), Some(23 | 24)) => {
                // The caller has a file's view, which comes after the table: no waiting for that.
                if let Ok(files) = self.files.try_lock() {
                    self.save_descriptors(&files, 0);
                }
                Extent::create(&self.storage, &self.home.journal())
            }
            done => done,
        }
    }

    /// Until the guard goes, every file is where its view says.
    pub(crate) fn steady_names(&self) -> RwLockReadGuard<'_, ()> {
        self.renaming.read().unwrap_or_else(|e| e.into_inner())
    }

    /// A name that this store may hold.
    pub(crate) fn check_name(&self, path: &Path) -> Result<()> {
        check_path(path).map_err(|why| Error::invalid(format!("{}: {why}", path.display())))?;
        if self.home.lone.as_deref().is_some_and(|lone| lone != path) {
            return Err(Error::invalid(format!("{} is not the file of this store", path.display())));
        }
        Ok(())
    }

    /// Whoever comes here late, with the table of files locked, must not open what may be the next
    /// owner's.
    fn check_not_over(&self) -> Result<()> {
        if self.over.load(SeqCst) { Err(Error::Closed) } else { Ok(()) }
    }

    /// A name whose file recovery could not serve stays that file's.
    pub(crate) fn check_quarantine(&self, path: &Path) -> Result<()> {
        match self.quarantined.iter().find(|q| q.path == path) {
            Some(q) => Err(at_path(q.reason.clone(), &self.path)),
            None => Ok(()),
        }
    }

    /// The shared file of a name, opening it if it is not open yet. It counts so many new handles: one
    /// without any may leave the table at any moment.
    pub(crate) fn load(&self, path: &Path, handles: usize) -> Result<Arc<FileShared>> {
        self.check_name(path)?;
        self.check_quarantine(path)?;
        let mut files = lock(&self.files);
        self.check_not_over()?;
        if let Some(known) = files.get(path) {
            if handles > 0 {
                known.write().handles += handles;
            }
            return Ok(known.clone());
        }
        self.save_descriptors(&files, self.storage.open_files_max());
        let (file, writable) = match self.with_descriptors(&files, || self.storage.open(path, Open::WRITE)) {
            Err(e) if matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
                (self.storage.open(path, Open::READ).context("open", path)?, false)
            }
            done => (done.map_err(|e| open_error(path, e))?, true),
        };
        let meta = file.meta().context("look at", path)?;
        check_kind(&meta, path)?;
        if writable && !file.try_claim().context("claim", path)? {
            return Err(Error::Busy { path: path.to_owned(), pid: None });
        }
        let attribute = file.attribute().context("read the attribute of", path)?;
        self.check_attribute(path, Attribute::decode(attribute.as_deref()))?;
        let mut view = View::new(path.to_owned(), Life::Named, 0);
        view.base_size = meta.size;
        view.data = Some(file);
        view.writable = writable;
        view.seen = Some(meta);
        view.handles = handles;
        let shared = FileShared::new(self.new_file_id()?, view);
        files.insert(path.to_owned(), shared.clone());
        Ok(shared)
    }

    /// A file whose commits are still in some journal must not be taken for whole.
    fn check_attribute(&self, path: &Path, found: AttributeFound) -> Result<()> {
        let a = match found {
            AttributeFound::None => return Ok(()),
            AttributeFound::Unreadable => {
                return Err(Error::Foreign {
                    path: path.to_owned(),
                    detail: "its attribute user.untorn is not one that this version understands".into(),
                });
            }
            AttributeFound::Valid(a) if !a.pending => return Ok(()),
            AttributeFound::Valid(a) => a,
        };
        let needs = |detail: String| Err(Error::NeedsJournal { path: path.to_owned(), detail });
        if a.store != self.store_id {
            return needs(format!(
                "it belongs to the store {}, which was not closed",
                untorn_journal::format::hex(&a.store)
            ));
        }
        if a.session == self.session {
            return needs("it is a copy of a file that is in use in this store, or was moved here".into());
        }
        if a.place != Attribute::place_of(path) {
            return needs("it was moved or copied from elsewhere in this store while changes were pending".into());
        }
        Ok(())
    }

    /// Closes data files when there are many; they are opened again when they are needed.
    fn save_descriptors(&self, files: &Files, most: usize) {
        if files.len() <= most {
            return;
        }
        // A file that is in use this moment keeps its descriptor: nothing is waited for here. Whoever has
        // a clone of it, as a checkpoint does, has the claim on the file, and nobody could open it anew.
        let unused = |view: &View| view.data.as_ref().is_some_and(|data| Arc::strong_count(data) == 1);
        let open: Vec<_> = files.values().filter_map(|f| f.try_write()).filter(|view| unused(view)).collect();
        let close = if open.len() > most { open.len() - most / 2 } else { 0 };
        open.into_iter().take(close).for_each(|mut view| view.data = None);
    }

    /// Opens something; if there are no descriptors left, closes data files and tries again.
    fn with_descriptors<T>(&self, files: &Files, open: impl Fn() -> std::io::Result<T>) -> std::io::Result<T> {
        match open() {
            // EMFILE and ENFILE have no stable names in ErrorKind.
            Err(e) if matches!(e.raw_os_error(), Some(23 | 24)) => {
                self.save_descriptors(files, 0);
                open()
            }
            done => done,
        }
    }

    /// Opens a data file again that was closed to save descriptors.
    pub(crate) fn reopen(&self, shared: &FileShared) -> Result<()> {
        let _names = self.steady_names();
        let files = lock(&self.files);
        self.check_not_over()?;
        self.save_descriptors(&files, self.storage.open_files_max());
        let (path, writable) = {
            let view = shared.read();
            (view.path.clone(), view.writable)
        };
        let open = || match writable {
            true => open_for_writing(&*self.storage, &path),
            false => self.storage.open(&path, Open::READ),
        };
        let file = self.with_descriptors(&files, open).context("open", &path)?;
        let mut view = shared.write();
        if view.data.is_some() || view.life != Life::Named {
            return Ok(());
        }
        let found = Attribute::decode(file.attribute().context("read the attribute of", &path)?.as_deref());
        let same = if view.flagged {
            matches!(found, AttributeFound::Valid(a) if a.store == self.store_id && a.file == shared.id)
        } else {
            self.check_attribute(&path, found)?;
            let meta = file.meta().context("look at", &path)?;
            view.seen.is_some_and(|seen| seen.inode == meta.inode && seen.device == meta.device)
        };
        if !same {
            return Err(Error::Conflict { path, detail: "somebody replaced the file while it was in use".into() });
        }
        if view.writable && !file.try_claim().context("claim", &path)? {
            return Err(Error::Busy { path, pid: None });
        }
        view.data = Some(file);
        Ok(())
    }

    /// Whether a file can be changed; one that could only be read when it was opened may have another mode now.
    fn is_writable(&self, shared: &FileShared) -> bool {
        let _names = self.steady_names();
        let mut view = shared.write();
        if !view.writable
            && let Ok(file) = self.storage.open(&view.path, Open::WRITE)
            && let (Ok(meta), Some(seen)) = (file.meta(), view.seen)
            && (meta.inode, meta.device) == (seen.inode, seen.device)
            && file.try_claim().unwrap_or(false)
        {
            view.data = Some(file);
            view.writable = true;
        }
        view.writable
    }

    /// Takes back a handle that never came to be.
    fn let_go(&self, shared: &Arc<FileShared>) {
        shared.write().handles -= 1;
        self.forget_if_idle(shared);
    }

    /// Drops a file from the table that has nothing to remember.
    pub(crate) fn forget_if_idle(&self, shared: &Arc<FileShared>) {
        let mut files = lock(&self.files);
        let mut view = shared.write();
        let idle = view.handles == 0 && !view.flagged && !view.is_pending() && view.staged.is_empty();
        if idle && view.txn.is_none() && files.get(&view.path).is_some_and(|f| Arc::ptr_eq(f, shared)) {
            files.remove(&view.path);
            // Whoever opens it anew must not meet our claim on it.
            view.data = None;
        }
    }

    /// Closes: finishes commits, checkpoints, leaves plain, whole files.
    pub(crate) fn close(&self) -> Result<()> {
        self.check_fork()?;
        let _closing = lock(&self.closing);
        if self.closed.swap(true, SeqCst) {
            return Ok(());
        }
        self.drain();
        self.background.stop();
        let done = {
            let _turn = lock(&self.checkpoint_turn);
            let done = self.close_journal();
            self.over.store(true, SeqCst);
            done
        };
        for file in std::mem::take(&mut *lock(&self.files)).into_values() {
            // Handles and maps may stay; the claims on the files end here.
            let mut view = file.write();
            view.data = None;
            if let Some(region) = &mut view.region {
                region.release();
            }
        }
        // Whatever happened, the store is free for the next owner, who recovers it if need be.
        if let (Some(ownership), Ok(())) = (lock(&self.ownership).take(), &done) {
            ownership.release();
        }
        done
    }

    /// The caller has the turn.
    fn close_journal(&self) -> Result<()> {
        if let Some(e) = lock(&self.side).journal.failure() {
            // The failed group must not be applied: the journal stays pending.
            return Err(e);
        }
        if !lock(&self.side).journal.is_dirty() {
            return Ok(());
        }
        if let Some(checkpoint) = self.cut()? {
            checkpoint.apply_before(After::Clean)?;
        }
        let flagged: Vec<_> = lock(&self.files).values().filter(|f| f.read().flagged).cloned().collect();
        if !self.is_durable() {
            self.storage.sync_everything(Step::RecoverData).context("flush", &self.path)?;
        }
        lock(&self.side).journal.empty(true)?;
        for file in flagged {
            let is_open = file.read().data.is_some();
            if (is_open || self.reopen(&file).is_ok())
                && let Some(data) = &file.read().data
            {
                clear_flag(&**data, self.store_id, file.id);
            }
        }
        Ok(())
    }
}

/// What handles hold. When the last one goes, the store closes then and there, whatever the background
/// thread is doing.
pub(crate) struct Owned {
    inner: Arc<Inner>,
}

impl Deref for Owned {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if self.check_fork().is_err() {
            // In a forked child everything of ours is closed already.
            return;
        }
        if let Err(e) = self.close() {
            tracing::error!(store = %self.path.display(), error = %e, "closing failed");
        }
    }
}

/// Says which store an error of a path inside it is about.
fn at_path(e: Error, store: &Path) -> Error {
    let inside = |path: PathBuf| if store.as_os_str().is_empty() { path } else { join(store, &path) };
    match e {
        Error::Busy { path, pid } => Error::Busy { path: inside(path), pid },
        Error::Corrupt { path, detail, advice } => Error::Corrupt { path: inside(path), detail, advice },
        Error::Foreign { path, detail } => Error::Foreign { path: inside(path), detail },
        Error::Untrusted { path, detail } => Error::Untrusted { path: inside(path), detail },
        Error::UnknownState { path } => Error::UnknownState { path: inside(path) },
        Error::NewerVersion { path, found, supported } => Error::NewerVersion { path: inside(path), found, supported },
        Error::Conflict { path, detail } => Error::Conflict { path: inside(path), detail },
        Error::NeedsJournal { path, detail } => Error::NeedsJournal { path: inside(path), detail },
        Error::Io { action, path, source } => Error::Io { action, path: inside(path), source },
        other => other,
    }
}

/// A lone store's path names its file; what is Untorn's stands beside it.
fn join(store: &Path, inside: &Path) -> PathBuf {
    if store.is_dir() { store.join(inside) } else { store.parent().unwrap_or(Path::new("")).join(inside) }
}

fn open_error(path: &Path, e: std::io::Error) -> Error {
    let because = |what: &str| Error::invalid(format!("{}: {what}", path.display()));
    match e.kind() {
        ErrorKind::IsADirectory => because("it is a directory, not a regular file"),
        ErrorKind::CrossesDevices => because("a mount point lies on the way; a store is on one file system"),
        // ELOOP has no stable name in ErrorKind.
        _ if e.raw_os_error() == Some(40) => because("a symbolic link lies on the way; links are never followed"),
        // What opening a socket or a device without a driver says.
        _ if e.raw_os_error() == Some(6) => because("it is a device, a pipe or a socket, not a regular file"),
        _ => Error::io("open", path, e),
    }
}

impl Store {
    /// Opens a directory as a store, with default options; makes the store if there is none.
    pub fn open(path: impl AsRef<Path>) -> Result<Store> {
        StoreOptions::default().open(path)
    }

    /// Opens an existing file, by its name relative to the store's directory.
    pub fn file(&self, path: impl AsRef<Path>) -> Result<File> {
        self.file_with(path, &FileOptions::default())
    }

    /// Opens a file; makes it, as a commit of its own, if there is none (mode 0666 less the umask).
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        self.file_with(path, &FileOptions { create: Some(0o666), ..FileOptions::default() })
    }

    /// Opens or creates a file.
    pub fn file_with(&self, path: impl AsRef<Path>, options: &FileOptions) -> Result<File> {
        self.inner.check_usable()?;
        let path = path.as_ref();
        let mut loaded = self.inner.load(path, 1);
        if matches!(&loaded, Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound) {
            // A commit that is on its way may make the file.
            self.inner.drain();
            loaded = self.inner.load(path, 1);
        }
        let shared = match loaded {
            Err(Error::Io { source, .. }) if options.create.is_some() && source.kind() == ErrorKind::NotFound => {
                match self.create_now(path, options.create.unwrap_or(0o666) & !untorn_os::umask()) {
                    // Somebody else was faster.
                    Err(Error::Io { source, .. })
                        if !options.exclusive && source.kind() == ErrorKind::AlreadyExists =>
                    {
                        self.inner.load(path, 1)?
                    }
                    done => done?,
                }
            }
            Ok(shared) if options.create.is_some() && options.exclusive => {
                self.inner.let_go(&shared);
                return Err(Error::io("create", path, ErrorKind::AlreadyExists.into()));
            }
            done => done?,
        };
        if !options.read_only && !self.inner.is_writable(&shared) {
            self.inner.let_go(&shared);
            return Err(Error::io("open for writing", path, ErrorKind::PermissionDenied.into()));
        }
        let file = File::counted(self.inner.clone(), shared, options.read_only);
        if options.truncate && !options.read_only {
            file.truncate(0)?;
        }
        Ok(file)
    }

    /// Makes a file in a commit of its own. It counts one handle.
    fn create_now(&self, path: &Path, mode: u32) -> Result<Arc<FileShared>> {
        let mut txn = self.begin();
        let shared = txn.create_shared(path, mode)?;
        shared.write().handles += 1;
        txn.commit()?;
        Ok(shared)
    }

    /// Begins a transaction over files and names.
    pub fn begin(&self) -> Txn {
        Txn::new(self.inner.clone())
    }

    /// Commits the changes of many files as one: after any crash, all or none.
    pub fn syncv(&self, files: &[&File]) -> Result<()> {
        let slot = self.submit(files)?;
        self.inner.finish(&slot)
    }

    /// The first half of that: what belongs to the commit is settled.
    pub(crate) fn submit(&self, files: &[&File]) -> Result<Arc<Slot>> {
        self.inner.submit(&self.distinct(files)?, None)
    }

    /// The same without waiting.
    pub fn syncv_async(&self, files: &[&File]) -> Result<Ticket> {
        let slot = self.inner.submit_async(&self.distinct(files)?, None)?;
        Ok(Ticket { slot, inner: self.inner.clone() })
    }

    fn distinct(&self, files: &[&File]) -> Result<Vec<Arc<FileShared>>> {
        self.inner.check_usable()?;
        if files.iter().any(|f| !Arc::ptr_eq(&f.inner.inner, &self.inner.inner)) {
            return Err(Error::invalid(
                "a file belongs to another store; files that commit together live in one store",
            ));
        }
        let mut known = HashSet::new();
        Ok(files.iter().filter(|f| known.insert(f.shared.id)).map(|f| f.shared.clone()).collect())
    }

    /// Brings the data files up to everything committed so far, and gives the journal's space back.
    /// With no commits in between, the data files are plain and whole afterwards.
    pub fn checkpoint(&self) -> Result<()> {
        self.inner.check_usable()?;
        self.inner.checkpoint()
    }

    /// The first step of a checkpoint alone: everything committed so far is its part.
    #[doc(hidden)]
    pub fn cut(&self) -> Result<Option<crate::checkpoint::Checkpoint<'_>>> {
        self.inner.check_usable()?;
        self.inner.cut()
    }

    /// What the background thread does when nothing was committed for a while.
    #[doc(hidden)]
    pub fn mark(&self) -> Result<bool> {
        self.inner.check_usable()?;
        lock(&self.inner.side).journal.mark()
    }

    /// The store's condition.
    pub fn status(&self) -> Status {
        Status::of(&self.inner)
    }

    /// The path that the store was opened by.
    pub fn path(&self) -> PathBuf {
        self.inner.path.clone()
    }

    /// Closes the store: finishes commits that are on their way, brings the data files up to them and
    /// leaves them plain and whole. **Uncommitted changes are discarded.** Handles that are still
    /// open get [`Error::Closed`].
    pub fn close(self) -> Result<()> {
        self.inner.close()
    }
}
