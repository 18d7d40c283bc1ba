//! Checks the log that is kept for slots, without owning the store.

use super::epochs::known_epochs;
use super::former_log::{FormerLog, Found};
use crate::directories::store_dir::StoreDir;
use crate::error::Result;
use crate::scanning::scan::read_header;
use crate::slots::kept_files::KeptFiles;
use crate::slots::slot_dir::SlotDir;
use std::sync::Arc;
use untorn_os::Storage;

/// A name in `kept` that a maker of a slot may leave when it is killed.
pub const PROBE: &str = "probe";

/// The commit behind which the slots of a store have all log, if there are any whose last commit is known.
pub fn needed_behind(storage: &dyn Storage, store_dir: &StoreDir) -> Result<Option<u64>> {
    let epochs = known_epochs(storage, store_dir, &[])?.1;
    let mut needed: Option<u64> = None;
    for slot in SlotDir::all(storage, store_dir)? {
        let Some(found) = slot.look(storage)? else { continue };
        if let Some(acknowledged) = found.acknowledged.filter(|acknowledged| epochs.contains(acknowledged.point)) {
            let after = acknowledged.point.lsn.max(found.lost);
            needed = Some(needed.map_or(after, |other| other.min(after)));
        }
    }
    Ok(needed)
}

/// Reads the kept log behind the smallest slot, up to the checkpoint. Returns its problems: damage, missing commits, and
/// files that are no part of it. While an owner works, some may be of two moments.
pub fn kept_problems(storage: &Arc<dyn Storage>, store_dir: &StoreDir) -> Result<Vec<String>> {
    let kept = KeptFiles::find(&**storage, store_dir)?;
    let others = kept.others.iter().filter(|name| *name != PROBE);
    let mut problems: Vec<String> = others
        .map(|name| format!("{}: it is no part of the kept log; move it away", store_dir.kept().join(name).display()))
        .collect();
    let header = read_header(&**storage, &store_dir.journal())?;
    let Some(after) = needed_behind(&**storage, store_dir)?.filter(|_| header.boot.is_none()) else {
        return Ok(problems);
    };
    let mut lacks = |from: u64, to: u64| {
        problems
            .push(format!("{}: it lacks the commits {from} to {to}, which a slot needs", store_dir.kept().display()));
    };
    let checkpoint_lsn = header.checkpoint_lsn;
    let Some(mut log) = FormerLog::behind(after, &**storage, store_dir)? else {
        if after < checkpoint_lsn {
            lacks(after + 1, checkpoint_lsn);
        }
        return Ok(problems);
    };
    while log.lsn < checkpoint_lsn {
        match log.next(storage, store_dir) {
            Ok(Found::Commits(_)) => {}
            Ok(Found::Gap(to)) => {
                lacks(log.lsn + 1, to);
                log.skip_to(to);
            }
            Ok(Found::End) => {
                lacks(log.lsn + 1, checkpoint_lsn);
                break;
            }
            Err(e) => {
                problems.push(e.to_string());
                break;
            }
        }
    }
    Ok(problems)
}
