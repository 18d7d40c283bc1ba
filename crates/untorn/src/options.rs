//! How stores and files are opened.

use crate::file::File;
use crate::store::{Inner, Store};
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_journal::home::{HOME, Home};
use untorn_journal::journal::Options as JournalOptions;
use untorn_journal::{Context, Error, Result};
use untorn_os::{Linux, Step, Storage};

/// What a commit survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FailureClass {
    /// The end of the process, however sudden; not the end of the kernel. Commits are not flushed.
    Process,
    /// Kernel crashes and power cuts, too. One flush a commit.
    #[default]
    Power,
}

/// Least journal size in bytes.
pub const JOURNAL_BYTES_MIN: u64 = 64 << 10;
/// Largest journal size in bytes: recovery reads it whole.
pub const JOURNAL_BYTES_MAX: u64 = 4 << 30;
/// Journal size in bytes unless another is asked for.
pub const JOURNAL_BYTES_DEFAULT: u64 = 64 << 20;

type Progress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// How to open a store.
///
/// ```no_run
/// use untorn::{FailureClass, StoreOptions};
/// let store = StoreOptions::default().class(FailureClass::Power).journal_bytes(16 << 20).open("data")?;
/// # Ok::<(), untorn::Error>(())
/// ```
#[derive(Clone)]
pub struct StoreOptions {
    pub(crate) class: FailureClass,
    pub(crate) journal: JournalOptions,
    pub(crate) full_page: bool,
    pub(crate) create: bool,
    pub(crate) wait: bool,
    pub(crate) accept_unknown: bool,
    pub(crate) salvage: bool,
    pub(crate) background: bool,
    pub(crate) progress: Option<Progress>,
}

impl fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreOptions")
            .field("class", &self.class)
            .field("journal", &self.journal)
            .field("full_page", &self.full_page)
            .field("create", &self.create)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

impl Default for StoreOptions {
    fn default() -> Self {
        let options = StoreOptions {
            class: FailureClass::Power,
            journal: JournalOptions {
                durable: true,
                journal_bytes: 0,
                segment_bytes_first: 16 << 10,
                inline_bytes_max: 0,
            },
            full_page: false,
            create: true,
            wait: false,
            accept_unknown: false,
            salvage: false,
            background: true,
            progress: None,
        };
        options.journal_bytes(JOURNAL_BYTES_DEFAULT)
    }
}

impl StoreOptions {
    /// What commits survive. Default: [`FailureClass::Power`].
    pub fn class(mut self, class: FailureClass) -> Self {
        self.class = class;
        self.journal.durable = class == FailureClass::Power;
        self
    }

    /// Most bytes of journal before commits wait for a checkpoint; one segment more in rare cases.
    /// Default 64 MiB, least 64 KiB, most 4 GiB. The journal starts at 16 KiB and grows as it is used.
    pub fn journal_bytes(mut self, bytes: u64) -> Self {
        let bytes = bytes.clamp(JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX);
        self.journal.journal_bytes = bytes;
        self.journal.inline_bytes_max = self.journal.segment_bytes_max() / 2;
        self
    }

    /// Log the whole 4 KiB page at its first change after a checkpoint began, for disks that may
    /// damage more than the sectors being written when the power fails. Default: off.
    pub fn full_page(mut self, on: bool) -> Self {
        self.full_page = on;
        self
    }

    /// Make the store if there is none (default), or fail with `NotFound`.
    pub fn create(mut self, on: bool) -> Self {
        self.create = on;
        self
    }

    /// Wait for another owner to close, instead of [`Error::Busy`]. Default: off.
    pub fn wait(mut self, on: bool) -> Self {
        self.wait = on;
        self
    }

    /// Take the files of a class `process` store as they are after a machine crash. Default: off.
    pub fn accept_unknown(mut self, on: bool) -> Self {
        self.accept_unknown = on;
        self
    }

    pub(crate) fn salvage(mut self, on: bool) -> Self {
        self.salvage = on;
        self
    }

    /// Called during a long recovery with bytes done and bytes in all.
    pub fn progress(mut self, f: impl Fn(u64, u64) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(f));
        self
    }

    /// No thread of our own: asynchronous commits and checkpoints happen in calls only. For tests
    /// that replay the same steps.
    #[doc(hidden)]
    pub fn background(mut self, on: bool) -> Self {
        self.background = on;
        self
    }

    /// Exact sizes, below what [`StoreOptions::journal_bytes`] allows. For tests of small journals.
    #[doc(hidden)]
    pub fn sizes(mut self, journal_bytes: u64, segment_bytes_first: u64, inline_bytes_max: u64) -> Self {
        self.journal.journal_bytes = journal_bytes;
        self.journal.segment_bytes_first = segment_bytes_first;
        self.journal.inline_bytes_max = inline_bytes_max;
        self
    }

    /// Opens a directory as a store; with `create`, makes the directory (mode 0777 less the umask) if its
    /// parent exists.
    ///
    /// # Errors
    /// [`Error::Busy`] if somebody owns it, [`Error::Untrusted`], [`Error::Corrupt`],
    /// [`Error::UnknownState`], [`Error::NewerVersion`], [`Error::Foreign`], [`Error::Io`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Store> {
        let path = path.as_ref();
        if self.create {
            make_directory(path)?;
        }
        check_outside(path)?;
        let storage = Linux::open(path).context("open", path)?;
        self.open_on(storage, Home::of_directory(), path.to_owned())
    }

    /// Opens one file that has a store of its own beside it, `<path>.untorn/`; with `create`, makes
    /// the file (mode 0666 less the umask) if there is none. Closing the last handle closes the store.
    pub fn open_file(&self, path: impl AsRef<Path>) -> Result<File> {
        let create = self.create.then_some(0o666);
        self.open_file_with(path, &FileOptions { create, ..FileOptions::default() })
    }

    /// The same; the file's own options say whether and how it is made.
    pub fn open_file_with(&self, path: impl AsRef<Path>, options: &FileOptions) -> Result<File> {
        let path = path.as_ref();
        let name = path.file_name().ok_or_else(|| Error::invalid(format!("{} names no file", path.display())))?;
        let dir = path.parent().unwrap_or(Path::new(""));
        check_outside(dir)?;
        let storage = Linux::open(dir).context("open", dir)?;
        self.open_file_on(storage, Path::new(name), path.to_owned(), options)
    }

    /// The same on any storage.
    #[doc(hidden)]
    pub fn open_on(&self, storage: Arc<dyn Storage>, home: Home, path: PathBuf) -> Result<Store> {
        let progress = |done, all| {
            if let Some(f) = &self.progress {
                f(done, all);
            }
        };
        Ok(Store { inner: Inner::open(storage, home, path, self, &progress)? })
    }

    /// The same on any storage.
    #[doc(hidden)]
    pub fn open_file_on(
        &self,
        storage: Arc<dyn Storage>,
        name: &Path,
        path: PathBuf,
        options: &FileOptions,
    ) -> Result<File> {
        let home = Home::of_file(name);
        // What is wrong with the name shows before a store is made for it. If there is a store, a missing
        // file may have been created by a commit that only its journal holds.
        match storage.stat(name) {
            Ok(_) if options.create.is_some() && options.exclusive => {
                return Err(Error::io("create", &path, ErrorKind::AlreadyExists.into()));
            }
            Ok(meta) => crate::view::check_kind(&meta, name)?,
            Err(e)
                if e.kind() == ErrorKind::NotFound && (options.create.is_some() || storage.stat(&home.dir).is_ok()) => {
            }
            Err(e) => return Err(Error::io("open", &path, e)),
        }
        self.open_on(storage, home, path)?.file_with(name, options)
    }
}

/// Makes a store's directory, durably, if there is none. One without a journal may be what a killed
/// process made and did not flush.
fn make_directory(path: &Path) -> Result<()> {
    let Some(name) = path.file_name().filter(|_| !path.join(HOME).join("journal").exists()) else { return Ok(()) };
    let parent = path.parent().unwrap_or(Path::new(""));
    let storage = match Linux::open(parent) {
        // Of a directory that we may not even read, ours is no entry of our making.
        Err(e) if e.kind() == ErrorKind::PermissionDenied && path.exists() => return Ok(()),
        done => done.context("open", parent)?,
    };
    if !path.exists() {
        match storage.mkdir(Path::new(name), 0o777 & !untorn_os::umask()) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(Error::io("make", path, e)),
            _ => {}
        }
    }
    storage.sync_dir(Path::new(""), Step::CreateStoreName).context("flush", parent)
}

/// Untorn's own directories hold no data.
fn check_outside(dir: &Path) -> Result<()> {
    let whole = std::fs::canonicalize(if dir.as_os_str().is_empty() { Path::new(".") } else { dir });
    let whole = whole.context("open", dir)?;
    match whole.iter().find(|part| part.as_encoded_bytes().ends_with(b".untorn")) {
        Some(_) => Err(Error::invalid(format!("{} is inside a directory of Untorn's own", dir.display()))),
        None => Ok(()),
    }
}

/// How to open a file in a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileOptions {
    /// A handle for reading only.
    pub read_only: bool,
    /// If the file is missing, create it with this mode less the umask, as a commit of its own.
    pub create: Option<u32>,
    /// With `create`: fail if the file exists.
    pub exclusive: bool,
    /// Start at length 0, uncommitted.
    pub truncate: bool,
}
