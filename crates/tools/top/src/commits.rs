//! The last commits of a store, and the files that they changed, as far as a screen shows them.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime};
use untorn::Reader;
use untorn::reader::{ChangeKind, Commit, Followed};

/// Commits that are kept to be shown.
const COMMITS_MAX: usize = 200;
/// Files that are counted: the first ones since somebody looked.
const FILES_MAX: usize = 1000;
/// Names that are kept of a commit.
const NAMES_MAX: usize = 20;

/// A commit, as it is shown.
pub struct Shown {
    /// Its number.
    pub lsn: u64,
    /// When it was seen here.
    pub seen: SystemTime,
    /// The files that it changed, or some of them.
    pub files: Vec<PathBuf>,
    /// The bytes that it wrote.
    pub bytes: u64,
}

/// The commits of a file since somebody looked.
#[derive(Clone, Copy, Default)]
pub struct FileCommits {
    /// Their number.
    pub commits: u64,
    /// The bytes that they wrote.
    pub bytes: u64,
}

/// The commits that were followed so far.
#[derive(Default)]
pub struct Seen {
    /// The newest commits, the last one at the end.
    pub commits: VecDeque<Shown>,
    /// The files by their names.
    pub files: BTreeMap<PathBuf, FileCommits>,
    /// Commits that were applied before they could be read.
    pub missed: u64,
    /// Why nothing more comes.
    pub ended: Option<String>,
}

/// Follows a store in a thread of its own, which ends when this is dropped.
pub struct Following {
    path: PathBuf,
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
}

impl Following {
    /// Follows the commits of a store from now on.
    pub fn start(path: &Path) -> Following {
        let following = Following { path: path.to_owned(), seen: Arc::default(), stop: Arc::default() };
        let (path, seen, stop) = (path.to_owned(), following.seen.clone(), following.stop.clone());
        let end = |seen: &Mutex<Seen>, why| seen.lock().ended = Some(why);
        let run = move || {
            if let Err(e) = follow(&path, &seen, &stop) {
                end(&seen, e.to_string());
            }
        };
        if let Err(e) = std::thread::Builder::new().name("commits".into()).spawn(run) {
            end(&following.seen, format!("no thread can be started: {e}"));
        }
        following
    }

    /// The path with which the store was named.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The commits so far.
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock()
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

fn follow(path: &Path, seen: &Mutex<Seen>, stop: &AtomicBool) -> untorn::Result<()> {
    let mut commits = Reader::open(path)?.follow()?;
    while !stop.load(Relaxed) {
        match commits.next_within(Duration::from_millis(100))? {
            Some(Followed::Commit(commit)) => seen.lock().note(&commit),
            Some(Followed::Missed { first_lsn, last_lsn }) => seen.lock().missed += last_lsn + 1 - first_lsn,
            _ => {}
        }
    }
    Ok(())
}

impl Seen {
    fn note(&mut self, commit: &Commit) {
        let mut files: BTreeMap<PathBuf, u64> = BTreeMap::new();
        for change in &commit.changes {
            let bytes = match &change.kind {
                ChangeKind::Written(range) | ChangeKind::Zeroed(range) => range.end - range.start,
                _ => 0,
            };
            *files.entry(change.path.clone()).or_default() += bytes;
        }
        for (path, bytes) in &files {
            if self.files.len() < FILES_MAX || self.files.contains_key(path) {
                let file = self.files.entry(path.clone()).or_default();
                (file.commits, file.bytes) = (file.commits + 1, file.bytes + bytes);
            }
        }
        let bytes = files.values().sum();
        let files = files.into_keys().take(NAMES_MAX).collect();
        self.commits.push_back(Shown { lsn: commit.lsn, seen: SystemTime::now(), files, bytes });
        if self.commits.len() > COMMITS_MAX {
            self.commits.pop_front();
        }
    }
}
