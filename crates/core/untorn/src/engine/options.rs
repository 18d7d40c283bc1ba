//! Options for opening stores and files, as plain data.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use untorn_journal::journal::Options as JournalOptions;
use untorn_journal::slots::slot_dir::check_slot_name;
use untorn_journal::{Error, Result};
use untorn_os::BLOCK_BYTES;

/// Least size of a shared range of a spill file. For smaller ranges, sharing costs more than copying: changes of
/// metadata, and fragmented contents. Stores with a small journal, which have smaller large commits, use a smaller
/// limit.
const CLONE_BYTES_LEAST: u64 = 64 << 10;

/// Default of [`StoreOptions::shared_bytes`].
const SHARED_BYTES_DEFAULT: u64 = 512 << 10;

/// The failures that a commit survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FailureClass {
    /// The end of the process, however sudden, but not that of the kernel. Commits are not flushed.
    Process,
    /// Also kernel crashes and power cuts. One flush per commit.
    #[default]
    Power,
    /// The class of a live heap's memory that survives kernel crashes and power cuts without a commit, because it is
    /// byte-addressable memory ([`crate::heap::HeapOptions::live_class`]). No class of a store.
    Memory,
    /// Also the loss of the machine. The commits of a store are of class `power` first, and of this one when the slot of
    /// [`StoreOptions::remote`] has acknowledged them: [`crate::Ticket::wait_for`] and [`crate::Gate::output_when`] wait
    /// for that.
    Remote,
}

/// The action when a slot does not acknowledge a commit in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnTimeout {
    /// Everything that waits for the slot is held, for as long as it takes. The log and [`crate::Status`] tell that.
    #[default]
    Hold,
    /// Commits that are durable on this machine count as remote until the slot has caught up. The loss of the machine
    /// then loses them, although somebody was told of them. The log and [`crate::Status`] tell that.
    Degrade,
}

/// How commits wait for the acknowledgements of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// How long the slot may take. A commit's time begins when it is first waited for.
    pub timeout: Duration,
    /// The action after that.
    pub on_timeout: OnTimeout,
}

impl Default for Remote {
    /// Five seconds, and [`OnTimeout::Hold`].
    fn default() -> Remote {
        Remote { timeout: Duration::from_secs(5), on_timeout: OnTimeout::Hold }
    }
}

/// Users that may read a store besides its owner ([`crate::Reader::open`]).
///
/// The journal holds bytes of all files: with read access to it, a user sees the committed contents of every file, even
/// of one that only its owner may read. Contents that are already in the data files have the permissions of these
/// files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Readers {
    /// The user of the store, and root.
    #[default]
    Owner,
    /// The group of the store directory, too.
    Group,
    /// Everybody.
    All,
}

impl Readers {
    /// Permission bits of the store directory.
    pub(crate) fn dir_mode(self) -> u32 {
        match self {
            Readers::Owner => 0o700,
            Readers::Group => 0o750,
            Readers::All => 0o755,
        }
    }

    /// The users that get access by these permission bits of the store directory.
    pub(crate) fn of(dir_mode: u32) -> Readers {
        match (dir_mode & 0o050 == 0o050, dir_mode & 0o005 == 0o005) {
            (_, true) => Readers::All,
            (true, false) => Readers::Group,
            (false, false) => Readers::Owner,
        }
    }
}

/// Least journal size in bytes.
pub const JOURNAL_BYTES_MIN: u64 = 64 << 10;
/// Largest journal size in bytes. Recovery reads the whole journal.
pub const JOURNAL_BYTES_MAX: u64 = 4 << 30;
/// Default journal size in bytes.
pub const JOURNAL_BYTES_DEFAULT: u64 = 64 << 20;

type Progress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// Options for opening a store.
///
/// ```no_run
/// use untorn::{FailureClass, StoreOptions};
/// let store = StoreOptions::new().create(true).class(FailureClass::Power).journal_bytes(16 << 20).open("data")?;
/// # Ok::<(), untorn::Error>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct StoreOptions {
    pub(crate) class: FailureClass,
    pub(crate) journal: JournalOptions,
    pub(crate) full_page: bool,
    pub(crate) create: bool,
    pub(crate) wait: bool,
    pub(crate) wait_most: Duration,
    pub(crate) accept_unknown: bool,
    pub(crate) salvage: bool,
    pub(crate) redo: bool,
    pub(crate) background: bool,
    pub(crate) in_order: bool,
    pub(crate) progress: Option<Progress>,
    pub(crate) remote: Option<(String, Remote)>,
    /// The most threads of a checkpoint.
    pub(crate) checkpoint_threads: usize,
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
                shared_bytes_least: SHARED_BYTES_DEFAULT,
                clone_bytes_least: CLONE_BYTES_LEAST,
                in_memory_max: 64,
                window_bytes: 4 << 20,
                index_bytes_least: 4 << 20,
                spare: true,
                memory: true,
                readers: true,
                readers_space: None,
                dir_mode: 0o700,
            },
            full_page: false,
            create: false,
            wait: false,
            wait_most: Duration::ZERO,
            accept_unknown: false,
            salvage: false,
            redo: false,
            background: true,
            in_order: false,
            progress: None,
            remote: None,
            checkpoint_threads: usize::MAX,
        };
        options.journal_bytes(JOURNAL_BYTES_DEFAULT)
    }
}

impl StoreOptions {
    /// The default options.
    pub fn new() -> StoreOptions {
        StoreOptions::default()
    }

    /// The failures that commits survive. Default: [`FailureClass::Power`].
    pub fn class(mut self, class: FailureClass) -> Self {
        self.class = class;
        self.journal.durable = class != FailureClass::Process;
        self
    }

    /// The slot whose acknowledgements make commits remote ([`FailureClass::Remote`]). A commit is acknowledged when the
    /// consumer of the slot has it in another place, and the store holds that very commit; an acknowledgement of another
    /// store, or of a state before the store was put back to the past, does not count. Commits themselves never wait for
    /// it. Default: none.
    pub fn remote(mut self, slot: impl Into<String>, how: Remote) -> Self {
        self.remote = Some((slot.into(), how));
        self
    }

    /// Checks that the options agree.
    pub(crate) fn check(&self) -> Result<()> {
        match (self.class, &self.remote) {
            (FailureClass::Memory, _) => Err(Error::invalid(
                "class `memory` is one of live heaps: commits of a store are of class `power`, also where its journal is on \
                 byte-addressable memory",
            )),
            (FailureClass::Remote, _) => Err(Error::invalid(
                "commits of a store are of class `power` first: name a slot by `remote`, and wait for class `remote` where \
                 that matters",
            )),
            (FailureClass::Process, Some((slot, _))) => Err(Error::invalid(format!(
                "class `process` has no slot {slot}: only commits of class `power` can become remote"
            ))),
            (_, Some((slot, _))) => check_slot_name(slot),
            _ => Ok(()),
        }
    }

    /// Limit for the bytes of journal before commits wait for a checkpoint; in rare cases one segment more. Default 64
    /// MiB, least 64 KiB, most 4 GiB. The journal starts at 16 KiB and grows as it is used.
    pub fn journal_bytes(mut self, bytes: u64) -> Self {
        let bytes = bytes.clamp(JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX);
        self.journal.journal_bytes = bytes;
        self.journal.inline_bytes_max = self.journal.segment_bytes_max() / 2;
        self.journal.clone_bytes_least = self.journal.inline_bytes_max.min(CLONE_BYTES_LEAST);
        self
    }

    /// Least size, in bytes, of a range that a commit writes to a spill file, with which the data file will share blocks,
    /// so that it is written once. It applies to class `power`, and to file systems that share blocks (XFS, btrfs). Larger
    /// commits than an eighth of [`StoreOptions::journal_bytes`] are written to spill
    /// files in any case. Default 512 KiB, least 64 KiB.
    pub fn shared_bytes(mut self, bytes: u64) -> Self {
        self.journal.shared_bytes_least = bytes.max(CLONE_BYTES_LEAST);
        self
    }

    /// Log the whole 4 KiB page at its first change after a checkpoint began, for disks that may damage more than the
    /// sectors being written when the power fails. Default: off.
    pub fn full_page(mut self, on: bool) -> Self {
        self.full_page = on;
        self
    }

    /// Create the store if there is none. Default: off; opening then fails with `NotFound`.
    pub fn create(mut self, on: bool) -> Self {
        self.create = on;
        self
    }

    /// Wait for another owner to close, instead of [`crate::Error::Busy`]. Default: off.
    pub fn wait(mut self, on: bool) -> Self {
        self.wait = on;
        self
    }

    /// Wait for another owner to close, for at most this long; then [`crate::Error::Busy`]. Default: zero.
    pub fn wait_for(mut self, at_most: Duration) -> Self {
        self.wait_most = at_most;
        self
    }

    /// Keep commits in order. A commit that finds no room, or fails for a reason other than a flush, keeps its place
    /// before all later ones, which fail with it. It is tried again whenever a thread waits for a commit. So files that
    /// are committed together in different groups stay consistent. A transaction that cannot be committed, and is not
    /// aborted, leaves the changes of its files uncommitted. Default: off: changes of a failed commit become
    /// uncommitted again, and those of a failed transaction are dropped.
    pub fn in_order(mut self, on: bool) -> Self {
        self.in_order = on;
        self
    }

    /// Store commits of class [`FailureClass::Power`] without calls, where the journal lies in byte-addressable memory
    /// (`docs/MEDIA.md`). Off: they are written and flushed by calls, as on a disk. Default: on.
    pub fn memory(mut self, on: bool) -> Self {
        self.journal.memory = on;
        self
    }

    /// Take the files of a class `process` store as they are after a machine crash. Default: off.
    pub fn accept_unknown(mut self, on: bool) -> Self {
        self.accept_unknown = on;
        self
    }

    /// The users that may read the store, if this opening creates it: default [`Readers::Owner`]. An existing store
    /// keeps its setting; [`crate::admin::offline::set_readers`] changes that.
    pub fn readers(mut self, who: Readers) -> Self {
        self.journal.dir_mode = who.dir_mode();
        self
    }

    /// Limit, in bytes, for the old data that the store keeps for readers of older commits
    /// ([`crate::Reader::snapshot`]). Beyond it, or if the disk has no room, the oldest reader is given up: nobody ever
    /// waits for readers. With 0 nothing is kept, and a snapshot lasts until the next checkpoint; any other limit is at
    /// least twice [`StoreOptions::journal_bytes`]. Default: 1 GiB, or a tenth of the free space if that is less.
    pub fn readers_space(mut self, bytes: u64) -> Self {
        self.journal.readers_space = Some(bytes);
        self
    }

    pub(crate) fn salvage(mut self, on: bool) -> Self {
        self.salvage = on;
        self
    }

    /// Apply everything that a crash left in the journal before the store is opened to callers.
    pub(crate) fn redo(mut self, on: bool) -> Self {
        self.redo = on;
        self
    }

    /// Called during a long recovery with the bytes done and the total.
    pub fn progress(mut self, f: impl Fn(u64, u64) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(f));
        self
    }

    /// Whether the store has a thread of its own, which writes asynchronous commits, makes checkpoints, and merges large
    /// commits. Without it, all of that happens in calls, as for a test that repeats the same steps. Default: on.
    pub fn background(mut self, on: bool) -> Self {
        self.background = on;
        self
    }

    /// Set exact sizes, below the limits of [`StoreOptions::journal_bytes`], without a spare journal and without
    /// readers. For tests of small journals.
    pub(crate) fn sizes(mut self, journal_bytes: u64, segment_bytes_first: u64, inline_bytes_max: u64) -> Self {
        self.journal.spare = false;
        self.journal.readers = false;
        self.journal.journal_bytes = journal_bytes;
        self.journal.segment_bytes_first = segment_bytes_first;
        self.journal.inline_bytes_max = inline_bytes_max;
        self.journal.shared_bytes_least = u64::MAX;
        self.journal.clone_bytes_least = BLOCK_BYTES as u64;
        self.journal.in_memory_max = 0;
        self.journal.window_bytes = BLOCK_BYTES;
        self.journal.index_bytes_least = u64::MAX;
        self
    }

    /// Spill ranges of at least this many bytes where the file system shares blocks, in tests that set sizes.
    pub(crate) fn shared_bytes_least(mut self, bytes: u64) -> Self {
        self.journal.shared_bytes_least = bytes;
        self
    }

    /// Recover by the index of each segment of more than this many bytes, in tests that set sizes.
    pub(crate) fn index_bytes_least(mut self, bytes: u64) -> Self {
        self.journal.index_bytes_least = bytes;
        self
    }

    /// Keep a page for readers, in tests that set sizes.
    pub(crate) fn page(mut self, on: bool) -> Self {
        self.journal.readers = on;
        self
    }

    /// Reserve space for another journal, in tests that set sizes.
    pub(crate) fn spare(mut self, on: bool) -> Self {
        self.journal.spare = on;
        self
    }
}

/// Options for opening a file: one of a store ([`FileOptions::open_in`]), or a standalone one ([`FileOptions::open`]).
///
/// ```no_run
/// use untorn::{FileOptions, Store};
/// let store = Store::open("data")?;
/// let file = FileOptions::new().create(true).mode(0o600).open_in(&store, "log")?;
/// # Ok::<(), untorn::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct FileOptions {
    pub(crate) read_only: bool,
    pub(crate) create: bool,
    pub(crate) create_new: bool,
    pub(crate) mode: u32,
    pub(crate) truncate: bool,
    pub(crate) store: StoreOptions,
}

impl Default for FileOptions {
    fn default() -> Self {
        let store = StoreOptions::new().create(true);
        FileOptions { read_only: false, create: false, create_new: false, mode: 0o666, truncate: false, store }
    }
}

impl FileOptions {
    /// Opens an existing file for reading and writing.
    pub fn new() -> FileOptions {
        FileOptions::default()
    }

    /// Make a handle for reading only. Default: off.
    pub fn read_only(mut self, on: bool) -> Self {
        self.read_only = on;
        self
    }

    /// Create the file, in a separate commit, if there is none. Default: off.
    pub fn create(mut self, on: bool) -> Self {
        self.create = on;
        self
    }

    /// Create the file, in a separate commit, and fail if it exists. Default: off.
    pub fn create_new(mut self, on: bool) -> Self {
        self.create_new = on;
        self
    }

    /// Permission bits of a file that is created, less the umask. Default: 0666.
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// Start at length 0, as an uncommitted change. Default: off.
    pub fn truncate(mut self, on: bool) -> Self {
        self.truncate = on;
        self
    }

    /// How the store beside a standalone file is opened: failure class, journal size, waiting. A missing one is
    /// made, also without [`StoreOptions::create`].
    pub fn store(mut self, options: StoreOptions) -> Self {
        self.store = options.create(true);
        self
    }

    /// Like [`FileOptions::store`], but the store beside the file must exist.
    pub(crate) fn existing_store(mut self, options: StoreOptions) -> Self {
        self.store = options.create(false);
        self
    }

    pub(crate) fn creates(&self) -> bool {
        self.create || self.create_new
    }
}
