//! A store's condition as data.

use crate::map::MapStatus;
use crate::options::FailureClass;
use crate::store::{Inner, lock};
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
pub use untorn_journal::recovery::Recovered;

/// A store's condition.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct Status {
    /// The path that the store was opened by.
    pub path: PathBuf,
    /// Identity, in hexadecimal digits.
    pub store_id: String,
    /// What commits survive.
    pub class: FailureClass,
    /// Whole pages are logged at their first change after a checkpoint began.
    pub full_page: bool,
    /// Most bytes of journal.
    pub journal_bytes_max: u64,
    /// Bytes of journal on disk.
    pub journal_bytes_allocated: u64,
    /// Bytes of journal that a checkpoint would free.
    pub journal_bytes_pending: u64,
    /// The journal is written past the page cache.
    pub journal_direct: bool,
    /// Commits since the store was opened.
    pub commits: u64,
    /// Groups of commits that shared a flush.
    pub commit_groups: u64,
    /// Commits that had to wait for a checkpoint.
    pub commits_waited: u64,
    /// Checkpoints since the store was opened.
    pub checkpoints: u64,
    /// Number of the last commit.
    pub sequence: u64,
    /// Flushes of any kind since the store was opened.
    pub syncs: u64,
    /// Bytes written since the store was opened: journal, data files, everything.
    pub bytes_written: u64,
    /// Bytes written to the journal and its extents alone.
    pub journal_bytes_written: u64,
    /// Files in the store's table.
    pub open_files: u64,
    /// Memory that changes not yet in the data files take, in bytes.
    pub memory_bytes: u64,
    /// The failure that keeps the store from taking commits, if there is one.
    pub failed: Option<String>,
    /// Files set aside, and why.
    pub quarantined: Vec<Quarantined>,
    /// Files that are mapped.
    pub maps: Vec<MapStatus>,
    /// What recovery did when the store was opened.
    pub recovered: Recovered,
}

/// A file whose committed changes could not be brought into it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Quarantined {
    /// Its name in the store.
    pub path: PathBuf,
    /// Why, and what to do.
    pub reason: String,
}

impl Status {
    pub(crate) fn of(inner: &Inner) -> Status {
        let mut quarantined: Vec<Quarantined> = inner
            .quarantined
            .iter()
            .map(|q| Quarantined { path: q.path.clone(), reason: q.reason.to_string() })
            .collect();
        let side = lock(&inner.side);
        let files = lock(&inner.files);
        let (mut memory_bytes, mut maps) = (0, Vec::new());
        for file in files.values() {
            let view = file.read();
            memory_bytes += view.memory_bytes();
            maps.extend(MapStatus::of(&view));
            if let Some(reason) = &view.quarantine {
                quarantined.push(Quarantined { path: view.path.clone(), reason: reason.to_string() });
            }
        }
        let (journal, totals) = (&side.journal, inner.storage.counters());
        let counted = journal.counters();
        Status {
            path: inner.path.clone(),
            store_id: untorn_journal::format::hex(&inner.store_id),
            class: inner.options.class,
            full_page: inner.options.full_page,
            journal_bytes_max: inner.options.journal.journal_bytes,
            journal_bytes_allocated: journal.allocated_bytes(),
            journal_bytes_pending: journal.pending_bytes(),
            journal_direct: journal.is_direct(),
            commits: counted.commits,
            commit_groups: counted.groups,
            commits_waited: inner.commits_waited.load(Relaxed),
            checkpoints: inner.checkpoints.load(Relaxed),
            sequence: journal.last(),
            syncs: totals.syncs,
            bytes_written: totals.bytes_written,
            journal_bytes_written: counted.bytes_written,
            open_files: files.len() as u64,
            memory_bytes,
            failed: journal.failure().map(|e| e.to_string()),
            quarantined,
            maps,
            recovered: inner.recovered.clone(),
        }
    }
}
