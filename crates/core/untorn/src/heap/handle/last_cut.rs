//! Last cuts of live heaps, requested by another process before the machine shuts down.

use super::open::HeapOptions;
use crate::engine::handles::store::Store;
use crate::heap::live::lost_memory::{self, Fate};
use crate::heap::log::live_head::{LiveHead, Said};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use untorn_journal::{Context, Error, Result};
use untorn_os::{FoundMemory, LiveMemory, live_memory_top, wait_shared, wake_shared};

/// The outcome of saving a live heap.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rescued {
    /// Its process is gone; everything that the process had stored is in the heap's file now.
    Committed {
        /// Bytes of its memory.
        bytes: u64,
    },
    /// Its process has made a cut after it was asked to.
    Answered,
    /// Its process makes cuts only on its own schedule, or has not answered in time.
    Silent,
    /// Its file was not found, and the memory was removed as well.
    Removed {
        /// The bytes that the memory took.
        bytes: u64,
    },
    /// Its file was not found: it was moved or removed.
    Lost {
        /// Whether the file still exists. None: unknown. False is the kernel's answer, which it also gives for a file
        /// that it cannot read.
        exists: Option<bool>,
    },
    /// It has no data: a program was killed while it made this memory, and no heap needs it.
    Unfinished,
    /// Nothing can be saved; the text says why.
    Nothing(String),
}

/// A file in memory that may belong to a live heap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The memory.
    pub memory: PathBuf,
    /// The user that owns it.
    pub user: u32,
    /// The group that owns it.
    pub group: u32,
}

/// The live memory of all users, as far as this one can see it.
pub(crate) fn candidates() -> Vec<Candidate> {
    let mut found = Vec::new();
    for dir in std::fs::read_dir(live_memory_top()).into_iter().flatten().flatten() {
        // Anybody may create a symbolic link there.
        let is_one = dir.file_type().is_ok_and(|kind| kind.is_dir());
        if !is_one || !dir.file_name().as_encoded_bytes().starts_with(b"untorn-") {
            continue;
        }
        for memory in std::fs::read_dir(dir.path()).into_iter().flatten().flatten() {
            let Ok(meta) = memory.metadata() else { continue };
            if meta.is_file() && memory.file_name().as_encoded_bytes().starts_with(b"heap-") {
                found.push(Candidate { memory: memory.path(), user: meta.uid(), group: meta.gid() });
            }
        }
    }
    found.sort_unstable_by(|a, b| a.memory.cmp(&b.memory));
    found
}

/// Commits the memory of a live heap: directly if its process is gone, otherwise by asking the process. The memory
/// stays, so that the program can continue from it if the machine does not go down after all.
pub(crate) fn rescue(memory: &Path, wait: Duration) -> Result<(Option<PathBuf>, Rescued)> {
    let found = match FoundMemory::open(memory) {
        Ok(found) => found,
        Err(e) if e.kind() == ErrorKind::InvalidData => return Ok((None, not_one())),
        Err(e) => return Err(Error::io("open", memory, e)),
    };
    let whose = match Said::read(&found).context("read", memory)? {
        Said::Of(whose) => whose,
        Said::Unfinished if found.is_used().context("look at", memory)? => {
            return Ok((None, Rescued::Nothing("a program is making this memory now".to_owned())));
        }
        Said::Unfinished => return Ok((None, Rescued::Unfinished)),
        Said::Nothing(why) => return Ok((None, Rescued::Nothing(why.to_owned()))),
    };
    let place = match lost_memory::fate(&whose) {
        Fate::At(place) => place,
        fate => return Ok((Some(whose.place.path()), Rescued::Lost { exists: fate.exists() })),
    };
    let path = place.path();
    let live = match LiveMemory::open(memory, rustix::process::geteuid().as_raw()) {
        Ok(live) => live,
        Err(e) if e.kind() == ErrorKind::InvalidData => return Ok((None, not_one())),
        Err(e) => return Err(Error::io("open", memory, e)),
    };
    // SAFETY: mapped by the memory, for ever.
    let head = unsafe { LiveHead::at(live.head()) };
    let bytes = live.body_bytes().context("look at", memory)?;
    let options = HeapOptions::new().live(true);
    let opened = match &place.name {
        None => options.open(&place.store),
        Some(name) => Store::open(&place.store).and_then(|store| options.open_in(&store, name)),
    };
    let heap = match opened {
        Ok(heap) => heap,
        Err(Error::Busy { .. }) => return Ok((Some(path), ask(head, wait))),
        Err(e) => return Err(e),
    };
    let start = heap.live().map(|live| live.start);
    if let Some(crate::heap::live::LiveStart::LastCut(why)) = start {
        return Ok((Some(path), Rescued::Nothing(format!("the heap is at its last cut: {why}"))));
    }
    heap.commit()?;
    Ok((Some(path), Rescued::Committed { bytes }))
}

fn not_one() -> Rescued {
    Rescued::Nothing("it is not live memory of this user".to_owned())
}

/// Removes a memory that has no data, or whose heap's file is not found; the caller has confirmed that the file was
/// removed. None: the file exists, here or elsewhere, or a program uses the memory.
pub(crate) fn remove_lost(memory: &Path) -> Result<Option<Rescued>> {
    let found = FoundMemory::open(memory).context("open", memory)?;
    match Said::read(&found).context("read", memory)? {
        Said::Nothing(_) => return Ok(None),
        Said::Unfinished => {}
        Said::Of(whose) => match lost_memory::fate(&whose) {
            Fate::At(_) | Fate::Elsewhere => return Ok(None),
            Fate::Removed | Fate::Unknown => {}
        },
    }
    let bytes = found.bytes().context("look at", memory)?;
    let removed = found.remove_unused().context("remove", memory)?;
    Ok(removed.then_some(Rescued::Removed { bytes }))
}

/// Asks the process that owns a heap for a cut.
fn ask(head: LiveHead, wait: Duration) -> Rescued {
    let wanted = head.ask();
    let until = Instant::now() + wait;
    loop {
        let answered = head.answered();
        // A wrapping comparison: the numbers continue at 0 after the largest one.
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
