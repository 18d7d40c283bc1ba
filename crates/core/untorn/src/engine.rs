//! The shared state of an open store, and functions that all parts of it need.

pub(crate) mod checkpoint;
pub(crate) mod commit;
pub(crate) mod content;
pub(crate) mod files;
pub(crate) mod handles;
pub(crate) mod lifecycle;
pub(crate) mod options;
pub(crate) mod parts;
pub(crate) mod paths;
pub(crate) mod region;
pub(crate) mod table;
pub(crate) mod waiting;

use crate::engine::content::{Content, SpillSink};
use crate::engine::files::file_state::SharedFile;
use crate::engine::files::open_files::FileTable;
use crate::engine::options::{FailureClass, StoreOptions};
use crate::engine::parts::checkpoints::Checkpoints;
use crate::engine::parts::commit_queue::CommitQueue;
use crate::engine::parts::file_system_flush::FileSystemFlush;
use crate::engine::parts::life::Life;
use crate::engine::parts::opening::Opening;
use crate::engine::parts::shared_spill::SharedSpill;
use crate::engine::parts::statistics::Statistics;
use crate::engine::waiting::concurrency::{Mutex, RwLock, RwLockReadGuard};
use crate::engine::waiting::remote_slot::RemoteSlot;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_journal::commits::final_state::FinalState;
use untorn_journal::commits::record::check_path;
use untorn_journal::commits::spill::{Spill, SpillSpace};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_journal::journal::Journal;
use untorn_journal::undo::keep::UndoHandle;
use untorn_journal::{Context, Error, Result};
use untorn_os::{Storage, SyncPoint};

/// The shared state of an open store.
///
/// Locks, in the order in which they may be taken: `life.closing`, `checkpoints.lock`, `journal`, `renaming`,
/// `files`, a file's `writing` (without `files`), a file's state (of several files in the order of their ids),
/// `commits.queue`, that of `remote`, those of `statistics`.
pub(crate) struct Engine {
    pub storage: Arc<dyn Storage>,
    pub store_dir: StoreDir,
    /// The path with which the store was opened.
    pub path: PathBuf,
    pub options: StoreOptions,
    /// The largest file of the file system, in bytes.
    pub file_bytes_max: u64,
    pub epoch: u64,
    pub store_id: [u8; 16],
    pub opening: Opening,
    pub life: Life,
    pub checkpoints: Checkpoints,
    pub journal: Mutex<JournalState>,
    /// The data kept for readers of older commits; `None` if the store does not serve readers.
    pub undo: Option<UndoHandle>,
    /// Held for writing while committed names and names on disk differ.
    pub renaming: RwLock<()>,
    pub files: Mutex<FileTable>,
    pub commits: CommitQueue,
    pub flush: FileSystemFlush,
    pub shared_spill: SharedSpill,
    pub statistics: Arc<Statistics>,
    /// The slot whose acknowledgements make commits remote.
    pub remote: Option<Arc<RemoteSlot>>,
}

/// The journal, and the commits that are to be applied.
pub(crate) struct JournalState {
    pub journal: Journal,
    /// Files with commits since the last checkpoint began.
    pub dirty: BTreeMap<u64, Arc<SharedFile>>,
    /// Directories whose entries changed since then.
    pub dirs: BTreeSet<PathBuf>,
    /// LSNs at which the log can be truncated before all commits that the opening left unapplied are applied, in order.
    pub portions: VecDeque<u64>,
    /// Committed names that could not be applied.
    pub unapplied: Vec<Unapplied>,
    /// How often unapplied names could be applied later.
    pub names_healed: u64,
}

/// Committed names that could not be applied.
pub(crate) struct Unapplied {
    pub names: FinalState,
    /// The files to which they belong.
    pub files: Vec<Arc<SharedFile>>,
    /// Why they could not be applied.
    pub reason: Error,
}

impl JournalState {
    pub(crate) fn new(journal: Journal) -> JournalState {
        JournalState {
            journal,
            dirty: BTreeMap::new(),
            dirs: BTreeSet::new(),
            portions: VecDeque::new(),
            unapplied: Vec::new(),
            names_healed: 0,
        }
    }

    /// Checks that nothing waits for a checkpoint, because the header of a closed store says so.
    pub(crate) fn assert_applied(&self) {
        debug_assert!(self.dirty.is_empty(), "{} files wait in a store that closes", self.dirty.len());
        debug_assert!(
            self.unapplied.is_empty(),
            "names wait in a store that closes: {:?}",
            self.unapplied.iter().map(|unapplied| &unapplied.reason).collect::<Vec<_>>()
        );
    }
}

/// Limit for spill files. Large commits take little room in the journal, but one descriptor each until they are
/// applied.
const SPILL_FILES_MAX: usize = 64;

/// Limit for the bytes of spill files, as a multiple of those of the journal. An opening reads them.
const SPILLED_TIMES_MAX: u64 = 8;

/// Limit for unused files, which take memory until a checkpoint forgets them.
const IDLE_FILES_MAX: usize = 4096;

impl Engine {
    pub(crate) fn is_durable(&self) -> bool {
        self.options.class != FailureClass::Process
    }

    /// Size from which blocks of a file are shared with a spill file. `None` in class `process`: the kernel writes out
    /// blocks before it shares them, whereas a copy reaches the disk at most once.
    pub(crate) fn clone_bytes_least(&self) -> Option<u64> {
        self.is_durable().then_some(self.options.journal.clone_bytes_least)
    }

    pub(crate) fn new_file_id(&self) -> Result<u64> {
        let mut id = [0; 8];
        self.storage.random(&mut id).context("draw an identity in", &self.path)?;
        Ok(u64::from_le_bytes(id).max(1))
    }

    /// While the guard lives, every file is under the name in its state.
    pub(crate) fn steady_names(&self) -> RwLockReadGuard<'_, ()> {
        self.renaming.read()
    }

    /// Checks that this store may hold this name.
    pub(crate) fn check_name(&self, path: &Path) -> Result<()> {
        check_path(path).map_err(|why| Error::invalid(format!("{}: {why}", path.display())))?;
        if self.store_dir.standalone.as_deref().is_some_and(|file| file != path) {
            return Err(Error::invalid(format!("{} is not the file of this store", path.display())));
        }
        Ok(())
    }

    /// Permission bits of the store directory, which may be changed while the store is open.
    pub(crate) fn dir_mode(&self) -> u32 {
        self.storage.stat(&self.store_dir.dir).map_or(0o700, |meta| meta.mode)
    }

    /// Flushes all files of the store's file system.
    pub(crate) fn sync_file_system(&self, point: SyncPoint) -> Result<()> {
        self.flush.flush(&*self.storage, point, &self.path)
    }

    /// Whether the journal or the table of files is filling up. A checkpoint now saves commits from waiting for one.
    pub(crate) fn wants_checkpoint(&self, state: &JournalState) -> bool {
        let journal = &state.journal;
        let full = journal.pending_bytes() * 2 > self.options.journal.journal_bytes;
        let spilled = || {
            journal.pending_spills() >= SPILL_FILES_MAX
                || journal.pending_spill_bytes() / SPILLED_TIMES_MAX > self.options.journal.journal_bytes
        };
        let many = || spilled() || self.files.lock().idle() >= IDLE_FILES_MAX;
        journal.failure().is_none() && (full || many())
    }
}

impl SpillSink for Engine {
    fn create_spill(&self) -> Result<Arc<Spill>> {
        match Spill::create(&self.storage, &self.store_dir.journal()) {
            Err(Error::Io { source, .. }) if out_of_descriptors(&source) => {
                // The caller holds a file's state, which comes after the table in the lock order, so do not wait for
                // the table.
                if let Some(mut files) = self.files.try_lock() {
                    files.close_descriptors(0);
                }
                Spill::create(&self.storage, &self.store_dir.journal())
            }
            done => done,
        }
    }

    fn create_spill_space(&self) -> Result<SpillSpace> {
        let options = &self.options.journal;
        Ok(SpillSpace::new(self.create_spill()?, options.inline_bytes_max, options.clone_bytes_least))
    }

    fn inline_bytes_max(&self) -> u64 {
        self.options.journal.inline_bytes_max
    }

    fn check_end(&self, content: &Content, end: u64, action: &'static str) -> Result<()> {
        let (here, process) =
            (content.size_possible(end).unwrap_or(self.file_bytes_max), self.storage.file_size_limit());
        if end <= here.min(process) {
            return Ok(());
        }
        let (most, whose) = match process < here {
            true => (process, "the limit of this process (RLIMIT_FSIZE, `ulimit -f`)"),
            false => (here, "the limit of the file system"),
        };
        let detail = format!("it would have {end} bytes, and {whose} is {most} bytes. Nothing was committed");
        Err(Error::too_large(action, &content.path, detail))
    }
}

/// Whether the process or the system has no descriptors left.
pub(crate) fn out_of_descriptors(e: &io::Error) -> bool {
    matches!(Errno::from_io_error(e), Some(Errno::MFILE | Errno::NFILE))
}
