//! A store's state as data.

use crate::engine::Engine;
use crate::engine::files::file_state::FileState;
use crate::engine::options::FailureClass;
pub use crate::engine::waiting::remote_slot::RemoteStatus;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
pub use untorn_journal::recovery::Recovered;

/// A store's state.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct Status {
    /// The path with which the store was opened.
    #[serde(serialize_with = "crate::engine::paths::path_text::path")]
    pub path: PathBuf,
    /// Identity, in hexadecimal digits.
    pub store_id: String,
    /// The failures that commits survive.
    pub class: FailureClass,
    /// Whether whole pages are logged at their first change after a checkpoint began.
    pub full_page: bool,
    /// Limit for the bytes of the journal.
    pub journal_bytes_max: u64,
    /// Bytes of journal on disk.
    pub journal_bytes_allocated: u64,
    /// Bytes of journal that a checkpoint would free.
    pub journal_bytes_pending: u64,
    /// Whether the journal is written past the page cache.
    pub journal_direct: bool,
    /// Whether commits are stored to byte-addressable memory, without calls. Known from the first one on.
    pub journal_in_memory: bool,
    /// Commits since the store was opened.
    pub commits: u64,
    /// Groups of commits that shared a flush.
    pub commit_groups: u64,
    /// Commits that had to wait for a checkpoint.
    pub commits_waited: u64,
    /// Checkpoints since the store was opened.
    pub checkpoints: u64,
    /// LSN of the last durable commit.
    pub lsn: u64,
    /// Flushes of any kind since the store was opened.
    pub syncs: u64,
    /// Bytes written since the store was opened: journal, data files, everything.
    pub bytes_written: u64,
    /// Bytes written to the journal and its spill files alone.
    pub journal_bytes_written: u64,
    /// Files in the store's table.
    pub open_files: u64,
    /// Memory, in bytes, of changes that are not yet in the data files.
    pub memory_bytes: u64,
    /// The failure that keeps the store from taking commits, if there is one.
    pub failed: Option<String>,
    /// Quarantined files, and why.
    pub quarantined: Vec<Quarantined>,
    /// Commits that readers hold.
    pub held: Vec<u64>,
    /// Bytes that are kept for readers of older commits: old contents, names, and segments of the journal.
    pub kept_bytes: u64,
    /// Files that are mapped.
    pub maps: Vec<MapStatus>,
    /// The slot that makes commits remote ([`crate::StoreOptions::remote`]).
    pub remote: Option<RemoteStatus>,
    /// The results of recovery when the store was opened.
    pub recovered: Recovered,
}

/// A file or directory to which committed changes could not be applied.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Quarantined {
    /// Its name in the store.
    #[serde(serialize_with = "crate::engine::paths::path_text::path")]
    pub path: PathBuf,
    /// Why, and the next step for the user.
    pub reason: String,
}

impl Quarantined {
    /// The problem, with the name once, and the next step for the user.
    pub fn problem(&self) -> String {
        let name = self.path.display().to_string();
        let reason = match self.reason.contains(&name) {
            true => self.reason.clone(),
            false => format!("{name}: {}", self.reason),
        };
        format!(
            "{reason}. Its commits are kept; once the cause is gone, `untorn recover` or the next opening redoes them"
        )
    }
}

impl Status {
    pub(crate) fn of(engine: &Engine) -> Status {
        let mut quarantined: Vec<Quarantined> = engine
            .opening
            .quarantined
            .iter()
            .map(|q| Quarantined { path: q.path.clone(), reason: q.reason.to_string() })
            .collect();
        let state = engine.journal.lock();
        let mut files = engine.files.lock();
        let (mut memory_bytes, mut maps) = (0, Vec::new());
        for file in files.all() {
            let state = file.read();
            memory_bytes += state.content.memory_bytes();
            maps.extend(MapStatus::of(&state));
            if let Some(reason) = &state.quarantine {
                quarantined.push(Quarantined { path: state.path().to_owned(), reason: reason.to_string() });
            }
        }
        let undo = engine.undo.as_deref();
        let (journal, totals) = (&state.journal, engine.storage.counters());
        let counted = journal.counters();
        Status {
            path: engine.path.clone(),
            store_id: untorn_journal::format::hex(&engine.store_id),
            class: engine.options.class,
            full_page: engine.options.full_page,
            journal_bytes_max: engine.options.journal.journal_bytes,
            journal_bytes_allocated: journal.allocated_bytes(),
            journal_bytes_pending: journal.pending_bytes(),
            journal_direct: journal.is_direct(),
            journal_in_memory: journal.is_in_memory(),
            commits: counted.commits,
            commit_groups: counted.groups,
            commits_waited: engine.commits.waited.load(Relaxed),
            checkpoints: engine.checkpoints.count.load(Relaxed),
            lsn: journal.last_commit_lsn(),
            syncs: totals.syncs,
            bytes_written: totals.bytes_written,
            journal_bytes_written: counted.bytes_written,
            open_files: files.len() as u64,
            memory_bytes,
            failed: journal.failure().map(|e| e.to_string()),
            quarantined,
            held: undo.and_then(|undo| undo.page().holds().ok()).map(|holds| holds.commits()).unwrap_or_default(),
            kept_bytes: undo.map_or(0, |undo| undo.bytes()),
            maps,
            remote: engine.remote.as_ref().map(|remote| remote.status(journal.last_commit_lsn())),
            recovered: engine.opening.recovered.clone(),
        }
    }
}

/// The mapping of a file, as [`crate::Status`] shows it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct MapStatus {
    /// The file's name in the store.
    #[serde(serialize_with = "crate::engine::paths::path_text::path")]
    pub path: PathBuf,
    /// The way of finding stores: `scan` or `pagemap`.
    pub tracker: &'static str,
    /// Bytes that can be accessed.
    pub mapped_bytes: u64,
    /// Bytes of address space reserved.
    pub address_space_bytes: u64,
    /// Bytes of pages that were stored to and not dropped, in memory or swap.
    pub private_bytes: u64,
    /// Bytes of copies kept to compare with at the next commit.
    pub copies_bytes: u64,
    /// The cap on private bytes.
    pub dirty_max_bytes: Option<u64>,
    /// Whether more bytes are private than the cap allows.
    pub over: bool,
    /// Whether commits may drop clean pages.
    pub quiet: bool,
    /// Maps that the program holds.
    pub maps: u64,
}

impl MapStatus {
    fn of(state: &FileState) -> Option<MapStatus> {
        let region = state.region.as_ref()?;
        Some(MapStatus {
            path: state.path().to_owned(),
            tracker: region.tracker().name(),
            mapped_bytes: region.accessible(),
            address_space_bytes: region.address_space(),
            private_bytes: region.private_bytes(),
            copies_bytes: region.copies_bytes(),
            dirty_max_bytes: region.dirty_max,
            over: region.is_over(),
            quiet: region.quiet,
            maps: region.maps as u64,
        })
    }
}
