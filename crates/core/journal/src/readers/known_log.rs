//! The log of a store between its checkpoint and the commit of a snapshot.

use crate::commits::final_state::FinalState;
use crate::commits::overlay::Source;
use crate::commits::record::Op;
use crate::directories::store_dir::StoreDir;
use crate::error::{Error, Result};
use crate::format::{Header, StoreId};
use crate::invariant;
use crate::readers::closed_store::{ClosedLog, quarantined_files};
use crate::readers::index_tail::IndexTail;
use crate::readers::refusal;
use crate::readers::watch::{KnownPage, LOOKS_MAX, Watch};
use crate::scanning::scan::{AcceptedRecord, read_header, scan_as_of};
use crate::undo::index::UndoIndex;
use crate::undo::page::ReadersPage;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use untorn_os::{Storage, holds};

/// The page that a reader saw last, and the log as its newest look read it: the next look goes on from there.
#[derive(Default)]
pub struct Known {
    /// The page.
    pub page: KnownPage,
    log: Mutex<Option<(Arc<ReadersPage>, Arc<KnownLog>)>>,
}

impl Known {
    /// Takes out the log, if it is of this chain, and not newer.
    pub(crate) fn take_log(&self, page: &Arc<ReadersPage>, lsn: u64) -> Option<Arc<KnownLog>> {
        let mut log = self.log.lock();
        let (of, known) = log.take()?;
        if Arc::ptr_eq(&of, page) && known.lsn <= lsn {
            return Some(known);
        }
        *log = Some((of, known));
        None
    }

    /// Puts in the log, unless a newer one is there. Spill files would take space on the disk as long as they are open.
    pub(crate) fn put_log(&self, page: &Arc<ReadersPage>, new: &Arc<KnownLog>) {
        let mut log = self.log.lock();
        let is_newer = log.as_ref().is_none_or(|(of, known)| !Arc::ptr_eq(of, page) || known.lsn < new.lsn);
        if is_newer && !new.has_spills() {
            *log = Some((page.clone(), new.clone()));
        }
    }
}

/// The net effect of the commits between a checkpoint and a snapshot.
#[derive(Clone, Default)]
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
    tail: Option<IndexTail>,
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
        self.compute_state().map(|()| self)
    }

    fn compute_state(&mut self) -> Result<()> {
        self.state = FinalState::default();
        self.accepted.iter().try_for_each(|accepted| self.state.add_record(&accepted.record, accepted.lsn))
    }

    /// Goes on to a checkpoint, and to newer commits, some of which it may have applied.
    fn go_on(&mut self, checkpoint_lsn: u64, newer: Vec<AcceptedRecord>) -> Result<()> {
        if self.checkpoint_lsn < checkpoint_lsn {
            self.checkpoint_lsn = checkpoint_lsn;
            self.accepted.retain(|accepted| accepted.lsn > checkpoint_lsn);
            self.compute_state()?;
        }
        for accepted in newer.into_iter().filter(|accepted| accepted.lsn > checkpoint_lsn) {
            self.state.add_record(&accepted.record, accepted.lsn)?;
            self.accepted.push(Arc::new(accepted));
        }
        debug_assert!(
            self.accepted.is_sorted_by(|one, next| one.lsn < next.lsn),
            "commits behind {checkpoint_lsn} are not in order"
        );
        Ok(())
    }

    /// Whether commits have contents in spill files.
    pub(crate) fn has_spills(&self) -> bool {
        let is_spill = |op: &Op| matches!(op, Op::Write { source: Source::Spill { .. }, .. });
        self.accepted.iter().any(|accepted| accepted.record.ops.iter().any(is_spill))
    }

    /// Looks at the log for a snapshot of this commit. `before`: the log as an older snapshot of the same chain has read
    /// it, which is not read again.
    pub(crate) fn look(
        storage: &Arc<dyn Storage>,
        store_dir: &StoreDir,
        watch: &Watch,
        lsn: u64,
        index: &mut UndoIndex,
        mut before: Option<Arc<KnownLog>>,
    ) -> Result<KnownLog> {
        let mut why = None;
        for _ in 0..LOOKS_MAX {
            match look_once(storage, store_dir, watch, lsn, index, &mut before) {
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
    before: &mut Option<Arc<KnownLog>>,
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
    if let Some(mut log) = before.take().map(Arc::unwrap_or_clone)
        && log.checkpoint_lsn <= checkpoint_lsn
        && let Some(newer) = log.tail.as_mut().and_then(|tail| tail.read_to(lsn, storage, &journal))
    {
        (log.lsn, log.quarantined) = (lsn, quarantined);
        log.go_on(checkpoint_lsn, newer)?;
        return Ok(Some(log));
    }
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
    // The unfinished work of a running owner is no damage.
    let mut scanned = scan_as_of(storage, &journal, header, lsn, true)?;
    if scanned.last_lsn < lsn {
        return match scanned.corrupt.take() {
            Some(e) => Err(e),
            None => Ok(None),
        };
    }
    let tail = IndexTail::behind(&scanned, lsn);
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
