//! Last cuts of live heaps, made from outside: before the machine goes down.

use super::live_head::LiveHead;
use super::open::HeapOptions;
use crate::options::StoreOptions;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use untorn_journal::{Context, Error, Result};
use untorn_os::{LiveMemory, live_memory_path, wait_shared, wake_shared};

/// What became of a live heap.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rescued {
    /// Its process is gone; what it had stored is in the heap's file now.
    Committed {
        /// Bytes of its memory.
        bytes: u64,
    },
    /// Its process has made a cut, since it was asked to.
    Answered,
    /// Its process makes cuts of its own accord alone, or has not answered in time.
    Silent,
    /// There is nothing to be made of it, and why.
    Nothing(String),
}

/// A file in memory that may be a live heap's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The memory.
    pub memory: PathBuf,
    /// The user whose it is.
    pub user: u32,
    /// And the group.
    pub group: u32,
}

/// The live memory of all users, as far as this one can see it.
pub(crate) fn candidates() -> Vec<Candidate> {
    let any = live_memory_path(0, 0, 0);
    let top = any.ancestors().nth(2).unwrap_or(Path::new("/"));
    let mut found = Vec::new();
    for dir in std::fs::read_dir(top).into_iter().flatten().flatten() {
        if !dir.file_name().as_encoded_bytes().starts_with(b"untorn-") {
            continue;
        }
        for memory in std::fs::read_dir(dir.path()).into_iter().flatten().flatten() {
            let Ok(meta) = memory.metadata() else { continue };
            if meta.is_file() && memory.file_name().as_encoded_bytes().starts_with(b"heap-") {
                found.push(Candidate { memory: memory.path(), user: meta.uid(), group: meta.gid() });
            }
        }
    }
    found.sort_by(|a, b| a.memory.cmp(&b.memory));
    found
}

/// Commits what a live heap has in memory: of a process that is gone, or by asking the process. The memory stays, so that the
/// program goes on from it if the machine does not go down.
pub(crate) fn rescue(memory: &Path, wait: Duration) -> Result<(Option<PathBuf>, Rescued)> {
    let user = rustix::process::geteuid().as_raw();
    let live = match LiveMemory::open(memory, user) {
        Ok(live) => live,
        Err(e) if e.kind() == std::io::ErrorKind::InvalidData => {
            return Ok((None, Rescued::Nothing("it is no live memory of this user's".to_owned())));
        }
        Err(e) => return Err(Error::io("open", memory, e)),
    };
    // SAFETY: mapped by the memory, for ever.
    let head = unsafe { LiveHead::at(live.head()) };
    let Some(place) = head.place() else {
        return Ok((None, Rescued::Nothing("it is of another version of Untorn's, or nobody's yet".to_owned())));
    };
    let path = place.path();
    let is_there = std::fs::metadata(&path).is_ok_and(|meta| head.is_of(meta.dev(), meta.ino()));
    if !is_there {
        let why = "its file is not there any more: it was moved or removed".to_owned();
        return Ok((Some(path), Rescued::Nothing(why)));
    }
    let bytes = live.body_bytes().context("look at", memory)?;
    let options = HeapOptions::new().create(false).live(true);
    let opened = match &place.name {
        None => options.open(&place.store),
        Some(name) => {
            StoreOptions::new().create(false).open(&place.store).and_then(|store| options.open_in(&store, name))
        }
    };
    let heap = match opened {
        Ok(heap) => heap,
        Err(Error::Busy { .. }) => return Ok((Some(path), ask(head, wait))),
        Err(e) => return Err(e),
    };
    let start = heap.live().map(|live| live.start);
    if let Some(super::live::LiveStart::LastCut(why)) = start {
        return Ok((Some(path), Rescued::Nothing(format!("it is at its last cut: {why}"))));
    }
    heap.commit()?;
    Ok((Some(path), Rescued::Committed { bytes }))
}

/// Asks the process that has a heap for a cut.
fn ask(head: LiveHead, wait: Duration) -> Rescued {
    let wanted = head.ask();
    let until = Instant::now() + wait;
    loop {
        let answered = head.answered();
        // Numbers go on behind the largest one.
        if answered.load(std::sync::atomic::Ordering::Acquire).wrapping_sub(wanted) as i32 >= 0 {
            return Rescued::Answered;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Rescued::Silent;
        }
        wait_shared(
            answered,
            answered.load(std::sync::atomic::Ordering::Acquire),
            left.min(Duration::from_millis(100)),
        );
        wake_shared(head.asked());
    }
}
