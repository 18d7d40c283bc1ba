//! Figures of a store that another process has open.

use crate::engine::paths::error_paths::error_in_store;
use crate::reader::locate_store::locate;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use untorn_journal::Result;
use untorn_journal::directories::store_dir::StoreDir;
use untorn_journal::readers::closed_store::is_owned;
pub use untorn_journal::statistics::figures::Stage;
use untorn_journal::statistics::figures::{self, Figure};
pub use untorn_journal::statistics::histogram::Histogram;
use untorn_journal::undo::page::WatchedPage;
use untorn_os::Linux;

/// The work of a store's owner right now, seen from any process that may read the store.
///
/// While a watch exists, the owner measures its commits and publishes figures about four times a second; otherwise it
/// measures nothing. It looks for watches when it commits, so an idle owner publishes nothing before its next commit.
/// An owner in class `process`, or without a background thread, publishes nothing.
///
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path();
/// use untorn::Store;
/// use untorn::reader::{Stage, Watch};
///
/// let store = Store::open_or_create(path)?;
/// let file = store.open_or_create_file("a")?;
///
/// let watch = Watch::open(path)?; // here, or in another process
/// let figures = loop {
///     file.write_at(b"hello", 0)?;
///     file.commit()?;
///     if let Some(figures) = watch.figures()?.filter(|figures| figures.stage(Stage::Flush).count() > 0) {
///         break figures;
///     }
/// };
/// println!("{} commits, half of the flushes below {:?}", figures.commits, figures.stage(Stage::Flush).quantile(0.5));
/// # store.close()?;
/// # Ok::<(), untorn::Error>(())
/// ```
pub struct Watch {
    storage: Arc<Linux>,
    store_dir: StoreDir,
    /// The path with which the store was named.
    path: PathBuf,
    seen: Mutex<Seen>,
}

/// The page through which the owner is asked, and its figures so far.
#[derive(Default)]
struct Seen {
    page: Option<WatchedPage>,
    /// Epoch and number of the last publication that was seen, or 0 if there was none.
    last: Option<(u64, u64)>,
    /// When another one took its place.
    changed: Option<Instant>,
}

/// A watched owner that lives publishes in less time.
const OLD: Duration = Duration::from_secs(2);

/// Figures of an open store. The counts are those since its owner opened it; the durations of the stages are those that
/// were measured, while somebody watched.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Figures {
    /// How often the owner has published figures since it opened the store.
    pub publication: u64,
    /// The owner's process, as it sees itself.
    pub pid: u32,
    /// The owner's opening of the store.
    pub epoch: u64,
    /// The time from the opening to this publication.
    #[serde(rename = "open_seconds", serialize_with = "in_seconds")]
    pub open_for: Duration,
    /// Commits.
    pub commits: u64,
    /// Groups of commits that shared a flush.
    pub commit_groups: u64,
    /// Commits that had to wait for a checkpoint.
    pub commits_waited: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Flushes of any kind.
    pub syncs: u64,
    /// Bytes written: journal, data files, everything.
    pub bytes_written: u64,
    /// Bytes written to the journal and its spill files alone.
    pub journal_bytes_written: u64,
    /// LSN of the last durable commit.
    pub lsn: u64,
    /// Limit for the bytes of the journal.
    pub journal_bytes_max: u64,
    /// Bytes of journal on disk.
    pub journal_bytes_allocated: u64,
    /// Bytes of journal that a checkpoint would free.
    pub journal_bytes_pending: u64,
    /// Files in the store's table.
    pub open_files: u64,
    /// Memory, in bytes, of files with commits that are not yet in the data files.
    pub memory_bytes: u64,
    /// Quarantined files and directories.
    pub quarantined: u64,
    /// Commits that readers hold.
    pub held: u64,
    /// Bytes that are kept for readers of older commits.
    pub kept_bytes: u64,
    /// Whether the store takes no more commits, because its journal failed.
    pub failed: bool,
    #[serde(skip)]
    stages: figures::Figures,
}

fn in_seconds<S: serde::Serializer>(time: &Duration, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.serialize_f64(time.as_secs_f64())
}

impl Figures {
    fn new(found: figures::Figures) -> Figures {
        let of = |figure| found.number(figure);
        Figures {
            publication: of(Figure::Publication),
            pid: of(Figure::Pid) as u32,
            epoch: of(Figure::Epoch),
            open_for: Duration::from_nanos(of(Figure::OpenNs)),
            commits: of(Figure::Commits),
            commit_groups: of(Figure::Groups),
            commits_waited: of(Figure::Waited),
            checkpoints: of(Figure::Checkpoints),
            syncs: of(Figure::Syncs),
            bytes_written: of(Figure::BytesWritten),
            journal_bytes_written: of(Figure::JournalBytesWritten),
            lsn: of(Figure::Lsn),
            journal_bytes_max: of(Figure::JournalBytesMax),
            journal_bytes_allocated: of(Figure::JournalBytesAllocated),
            journal_bytes_pending: of(Figure::JournalBytesPending),
            open_files: of(Figure::OpenFiles),
            memory_bytes: of(Figure::MemoryBytes),
            quarantined: of(Figure::Quarantined),
            held: of(Figure::Held),
            kept_bytes: of(Figure::KeptBytes),
            failed: of(Figure::Failed) != 0,
            stages: found,
        }
    }

    /// The durations of a stage.
    pub fn stage(&self, stage: Stage) -> &Histogram {
        self.stages.stage(stage)
    }
}

impl Watch {
    /// Watches a store: a directory, or a file with its own store beside it. It need not be open yet.
    ///
    /// # Errors
    /// There is no store; the user may not read it.
    pub fn open(path: impl AsRef<Path>) -> Result<Watch> {
        let path = path.as_ref();
        let (storage, store_dir) = locate(path)?;
        let watch = Watch { storage, store_dir, path: path.to_owned(), seen: Mutex::default() };
        watch.published().map_err(|e| error_in_store(e, &watch.path))?;
        Ok(watch)
    }

    /// The process that has the store open, as that process sees itself (0: its id is unknown).
    pub fn owner(&self) -> Result<Option<u32>> {
        let (is_owned, pid) = is_owned(&*self.storage, &self.store_dir).map_err(|e| error_in_store(e, &self.path))?;
        Ok(is_owned.then(|| pid.unwrap_or(0)))
    }

    /// The figures that the owner published last. `None` if no process has the store open, the owner has published
    /// nothing since this watch began, or nothing for two seconds.
    pub fn figures(&self) -> Result<Option<Figures>> {
        let found = self.published().map_err(|e| error_in_store(e, &self.path))?.map(Figures::new);
        let Some(owner) = self.owner()? else { return Ok(None) };
        Ok(found.filter(|figures| owner == 0 || figures.pid == owner))
    }

    /// The last figures, if they are new.
    fn published(&self) -> Result<Option<figures::Figures>> {
        let mut seen = self.seen.lock();
        if !seen.page.as_ref().is_some_and(|page| page.is_current(&*self.storage)) {
            seen.page = WatchedPage::open(&*self.storage, &self.store_dir)?;
        }
        let found = seen.page.as_ref().map_or(Ok(None), |page| page.figures(&*self.storage))?;
        let of = |found: &figures::Figures| (found.number(Figure::Epoch), found.number(Figure::Publication));
        let now = Some(found.as_ref().map_or((0, 0), of));
        if seen.last != now {
            // Those that were there before this watch may be of any age.
            seen.changed = seen.last.is_some().then(Instant::now);
            seen.last = now;
        }
        let is_new = seen.changed.is_some_and(|changed| changed.elapsed() < OLD);
        Ok(found.filter(|_| is_new))
    }
}
