//! The slots of a store, seen by its path.

use crate::engine::paths::error_paths::error_in_store;
use crate::reader::locate_store::locate;
use std::path::Path;
use std::sync::Arc;
use untorn_journal::directories::store_dir::StoreDir;
use untorn_journal::readers::check_kept;
use untorn_journal::slots::epochs::{Epochs, Point};
use untorn_journal::slots::kept_files::KeptFiles;
use untorn_journal::slots::slot_dir::SlotDir;
use untorn_journal::{Error, Result};
use untorn_os::Storage;

/// Tries at a look at a kept log that changes meanwhile.
const LOOKS_MAX: usize = 100;

/// A slot of a store.
#[derive(Clone, Debug, serde::Serialize)]
pub struct SlotInfo {
    /// Its name.
    pub name: String,
    /// The last acknowledged commit; `None` if a power cut tore the acknowledgement.
    pub acknowledged: Option<Point>,
    /// When it was acknowledged, in nanoseconds since 1970; 0: never since the slot was made.
    pub acknowledged_ns: u64,
    /// Commits of the store behind the acknowledged one; `None` if the store does not hold that one, because it was put
    /// back to an older state, or went on from a copy.
    pub behind: Option<u64>,
    /// Bytes of the log behind the checkpoint that are kept for it. Slots share them.
    pub kept_bytes: u64,
    /// The most bytes that are kept for it.
    pub cap_bytes: u64,
    /// Up to this LSN, log that it needs is gone; `None` if it has all.
    pub lost_lsn: Option<u64>,
}

impl SlotInfo {
    /// The loss of a slot in a sentence, if there is one.
    pub fn loss(&self) -> Option<String> {
        self.lost_lsn.map(|lost| {
            format!(
                "slot {} has lost the log to commit {lost}, because of its cap or a full disk: its consumer needs a whole \
                 copy of the store",
                self.name
            )
        })
    }
}

/// The slots and the bytes of the kept log. `last_lsn`: the last commit.
pub(crate) fn look_at_slots(
    storage: &dyn Storage,
    store_dir: &StoreDir,
    epochs: &Epochs,
    checkpoint_lsn: u64,
    last_lsn: u64,
) -> Result<(Vec<SlotInfo>, u64)> {
    let kept = KeptFiles::find(storage, store_dir)?;
    let mut slots = Vec::new();
    for slot in SlotDir::all(storage, store_dir)? {
        let Some(found) = slot.look(storage)? else { continue };
        let point = found.acknowledged.map(|acknowledged| acknowledged.point);
        let of_store = point.filter(|point| epochs.contains(*point) || *point == Point::default());
        let after = of_store.map_or(0, |point| point.lsn).max(found.lost);
        slots.push(SlotInfo {
            acknowledged: point,
            acknowledged_ns: found.acknowledged.map_or(0, |acknowledged| acknowledged.time_ns),
            behind: of_store.map(|point| last_lsn.saturating_sub(point.lsn)),
            kept_bytes: kept.bytes_behind(after, checkpoint_lsn),
            cap_bytes: found.cap,
            lost_lsn: found.is_lost().then_some(found.lost),
            name: found.slot.name,
        });
    }
    Ok((slots, kept.bytes()))
}

/// Reads the log that is kept for slots, without changing a byte and without owning the store, and returns its problems.
/// They count only if the next look finds the same: an owner may free a part meanwhile.
pub fn check_kept_log(path: &Path) -> Result<Vec<String>> {
    let (linux, store_dir) = locate(path)?;
    let storage: Arc<dyn Storage> = linux;
    if storage.stat(&store_dir.kept()).is_err() || storage.stat(&store_dir.journal()).is_err() {
        return Ok(Vec::new());
    }
    let mut before = Vec::new();
    for _ in 0..LOOKS_MAX {
        let problems = check_kept::kept_problems(&storage, &store_dir).map_err(|e| error_in_store(e, path))?;
        if problems.is_empty() || problems == before {
            return Ok(problems);
        }
        before = problems;
        storage.pause();
    }
    let detail = "its kept log changes all the time, so it could not be checked in one state; try again when the store is \
                  less busy";
    Err(Error::Busy { path: path.to_owned(), pid: None, detail: detail.to_owned() })
}
