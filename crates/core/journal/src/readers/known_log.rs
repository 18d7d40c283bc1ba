//! The log of a store between its checkpoint and the commit of a snapshot.

use crate::commits::final_state::FinalState;
use crate::commits::record::Op;
use crate::directories::store_dir::StoreDir;
use crate::error::{Error, Result};
use crate::format::{Header, StoreId};
use crate::invariant;
use crate::readers::closed_store::{ClosedLog, quarantined_files};
use crate::readers::log_tail::LogTail;
use crate::readers::refusal;
use crate::readers::watch::{LOOKS_MAX, Watch};
use crate::scanning::scan::{AcceptedRecord, read_header, scan_as_of};
use crate::undo::index::UndoIndex;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use untorn_os::{Storage, holds};

/// The net effect of the commits between a checkpoint and a snapshot.
#[derive(Default)]
pub(crate) struct KnownLog {
    /// The last of these commits.
    pub lsn: u64,
    checkpoint_lsn: u64,
    /// The commits, in order.
    accepted: Vec<Arc<AcceptedRecord>>,
    pub state: FinalState,
    pub store: Option<StoreId>,
    /// The header, if the store is closed.
    pub left_by: Option<Header>,
    /// Files that wait for commits in quarantined journals, and why.
    pub quarantined: BTreeMap<u64, String>,
    /// Where the owner's log goes on.
    tail: Option<LogTail>,
}

impl KnownLog {
    /// The log of a store that nobody has opened since the boot.
    pub(crate) fn of_closed(log: ClosedLog) -> Result<KnownLog> {
        let ClosedLog { lsn, checkpoint_lsn, accepted, header, quarantined, .. } = log;
        let store = header.as_ref().map(|header| header.store);
        let accepted = accepted.into_iter().map(Arc::new).collect();
        KnownLog { lsn, checkpoint_lsn, accepted, store, left_by: header, quarantined, ..KnownLog::default() }
            .with_state()
    }

    fn with_state(mut self) -> Result<KnownLog> {
        for accepted in &self.accepted {
            self.state.add_record(&accepted.record, accepted.lsn)?;
        }
        Ok(self)
    }

    /// Looks at the log for a snapshot of this commit. Records that an older snapshot of the same chain has read are not
    /// read again.
    pub(crate) fn look(
        storage: &Arc<dyn Storage>,
        store_dir: &StoreDir,
        watch: &Watch,
        lsn: u64,
        index: &mut UndoIndex,
        before: Option<&KnownLog>,
    ) -> Result<KnownLog> {
        let mut why = None;
        for _ in 0..LOOKS_MAX {
            match look_once(storage, store_dir, watch, lsn, index, before) {
                Ok(Some(known)) => return Ok(known),
                Ok(None) => {}
                Err(e @ (Error::NewerVersion { .. } | Error::Foreign { .. } | Error::Unsupported { .. })) => {
                    return Err(e);
                }
                Err(e) => why = Some(e),
            }
            watch.check(&**storage, store_dir, lsn)?;
        }
        Err(why.unwrap_or_else(|| refusal::log_is_older(store_dir, lsn)))
    }
}

/// `None`: the log does not have all commits. That cannot happen while they are kept.
fn look_once(
    storage: &Arc<dyn Storage>,
    store_dir: &StoreDir,
    watch: &Watch,
    lsn: u64,
    index: &mut UndoIndex,
    before: Option<&KnownLog>,
) -> Result<Option<KnownLog>> {
    let (disk, journal) = (&**storage, store_dir.journal());
    let mut update = || index.update(disk, &store_dir.undo(), || watch.published(disk, store_dir, lsn));
    // Data that may be overwritten is read first, the index afterwards.
    let header = match holds(invariant::INDEX_AFTER_HEADER) {
        true => {
            let header = read_header(disk, &journal)?;
            update()?;
            header
        }
        false => {
            update()?;
            read_header(disk, &journal)?
        }
    };
    let header = index.header().cloned().unwrap_or(header);
    if header.boot.is_some() {
        return Err(refusal::class_process(store_dir, None));
    }
    if header.checkpoint_lsn > lsn {
        return Ok(None);
    }
    let (store, checkpoint_lsn) = (header.store, header.checkpoint_lsn);
    let quarantined = quarantined_files(disk, store_dir)?;
    let known = |accepted, tail| KnownLog {
        lsn,
        checkpoint_lsn,
        accepted,
        store: Some(store),
        quarantined,
        tail,
        ..KnownLog::default()
    };
    if checkpoint_lsn == lsn {
        return Ok(Some(known(Vec::new(), None)));
    }
    if let Some(before) = before.filter(|before| before.lsn <= lsn && before.checkpoint_lsn <= checkpoint_lsn)
        && let Some(mut tail) = before.tail.clone()
        && let Some(newer) = tail.read_to(lsn, storage, &journal, true)
    {
        let accepted = before.accepted.iter().cloned().chain(newer.into_iter().map(Arc::new));
        let accepted: Vec<_> = accepted.filter(|accepted| accepted.lsn > checkpoint_lsn).collect();
        debug_assert!(
            accepted.is_sorted_by(|one, next| one.lsn < next.lsn),
            "commits behind {checkpoint_lsn} are not in order"
        );
        return known(accepted, Some(tail)).with_state().map(Some);
    }
    // The unfinished work of a running owner is no damage.
    let mut scanned = scan_as_of(storage, &journal, header, lsn, true)?;
    if scanned.last_lsn < lsn {
        return match scanned.corrupt.take() {
            Some(e) => Err(e),
            None => Ok(None),
        };
    }
    let tail = LogTail::behind(&scanned, lsn, disk, &journal);
    let accepted = std::mem::take(&mut scanned.accepted).into_iter().filter(|accepted| accepted.lsn <= lsn);
    known(accepted.map(Arc::new).collect(), tail).with_state().map(Some)
}

impl KnownLog {
    /// The last of these commits that changes names; 0 if none does.
    pub(crate) fn last_named(&self) -> u64 {
        let changes_names = |op: &Op| !matches!(op, Op::Write { .. } | Op::Truncate { .. } | Op::Restate);
        let named = self.accepted.iter().rev().find(|accepted| accepted.record.ops.iter().any(changes_names));
        named.map_or(0, |accepted| accepted.lsn)
    }

    /// Whether the log says that nothing has this name any more.
    pub(crate) fn is_gone(&self, path: &Path) -> bool {
        let files = || self.state.files.values();
        if files().any(|file| file.name.as_deref() == Some(path)) || self.state.dirs.get(path).is_some_and(|d| d.exists)
        {
            return false;
        }
        let removed = |dir: &Path| self.state.dirs.get(dir).is_some_and(|dir| !dir.exists);
        files().any(|file| file.names.iter().any(|name| name == path)) || path.ancestors().any(removed)
    }
}
