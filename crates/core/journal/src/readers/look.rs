//! The commits of a store, in order, for processes that follow its log without owning it.

use crate::directories::store_dir::StoreDir;
use crate::error::{Error, Result};
use crate::readers::closed_store::add_given_up;
use crate::readers::log_tail::LogTail;
use crate::readers::refusal;
use crate::readers::watch::{KnownPage, LOOKS_MAX, Taken, Wanted, Watch};
use crate::scanning::scan::{AcceptedRecord, read_header, scan_as_of};
use std::sync::Arc;
use untorn_os::{Listener, Storage};

/// A place in the log of a store.
pub struct Look {
    watch: Watch,
    /// Up to which commit the page says that the follower has them.
    locked: u64,
    /// The last commit in the view.
    pub lsn: u64,
    /// LSN behind which the log was truncated.
    pub checkpoint_lsn: u64,
    /// The commits that the last look found.
    pub accepted: Vec<AcceptedRecord>,
    /// Commits before these may be missing.
    pub is_missing_some: bool,
    /// Where the owner's log goes on.
    tail: Option<LogTail>,
}

impl Look {
    /// Looks at the end of the log, at this commit or a later one.
    ///
    /// # Errors
    /// [`Error::Busy`] if an owner is opening the store. [`Error::Unsupported`] if the store is of class `process`.
    pub fn take(storage: &Arc<dyn Storage>, store_dir: &StoreDir, known: &KnownPage, at_least: u64) -> Result<Look> {
        Look::take_with(storage, store_dir, known, Wanted::Commits { after: None, at_least })
    }

    /// Looks like [`Look::take`], and includes every commit behind this LSN that is still in the log.
    pub fn take_after(storage: &Arc<dyn Storage>, store_dir: &StoreDir, known: &KnownPage, lsn: u64) -> Result<Look> {
        Look::take_with(storage, store_dir, known, Wanted::Commits { after: Some(lsn), at_least: lsn })
    }

    fn take_with(storage: &Arc<dyn Storage>, store_dir: &StoreDir, known: &KnownPage, wanted: Wanted) -> Result<Look> {
        store_dir.check_may_read(&**storage)?;
        let Taken { watch, lsn: taken, log, locked } = Watch::take(storage, store_dir, known, wanted)?;
        let after = match wanted {
            Wanted::Commits { after: Some(after), .. } => after,
            _ => taken,
        };
        if let Some(log) = log {
            let accepted = log.accepted.into_iter().filter(|accepted| accepted.lsn > after).collect();
            let (checkpoint_lsn, is_missing_some) = (log.checkpoint_lsn, log.is_missing_some);
            return Ok(Look { watch, locked, lsn: taken, checkpoint_lsn, accepted, is_missing_some, tail: None });
        }
        let journal = store_dir.journal();
        let mut why = None;
        for _ in 0..LOOKS_MAX {
            let header = read_header(&**storage, &journal)?;
            if header.boot.is_some() {
                return Err(refusal::class_process(store_dir, None));
            }
            let checkpoint_lsn = header.checkpoint_lsn;
            // No checkpoint goes beyond the commit that is published then.
            let lsn = watch.published_commit(&**storage)?.unwrap_or(taken);
            let mut scanned = match scan_as_of(storage, &journal, header, lsn, checkpoint_lsn <= after) {
                Ok(scanned) => scanned,
                Err(e @ (Error::NewerVersion { .. } | Error::Foreign { .. })) => return Err(e),
                Err(e) => {
                    why = Some(e);
                    continue;
                }
            };
            if scanned.last_lsn < lsn {
                why = scanned.corrupt.take();
                continue;
            }
            let mut accepted = std::mem::take(&mut scanned.accepted);
            accepted.retain(|record| record.lsn > after);
            let is_missing_some = after < lsn && add_given_up(storage, &journal, &scanned, Some(after), &mut accepted);
            accepted.retain(|record| record.lsn <= lsn);
            let tail = LogTail::behind(&scanned, lsn, &**storage, &journal);
            return Ok(Look { watch, locked, lsn, checkpoint_lsn, accepted, is_missing_some, tail });
        }
        Err(why.unwrap_or_else(|| refusal::log_is_older(store_dir, taken)))
    }

    /// Advances to the commits that the owner has published meanwhile. Returns false if these can be found only by
    /// looking at the whole log.
    pub fn go_on(&mut self, storage: &Arc<dyn Storage>, store_dir: &StoreDir) -> Result<bool> {
        let Some(mut tail) = self.tail.take() else { return Ok(false) };
        let Some(lsn) = self.watch.published_commit(&**storage)? else { return Ok(false) };
        let Some(accepted) = tail.read_to(lsn, storage, &store_dir.journal()) else { return Ok(false) };
        debug_assert!(
            accepted.iter().all(|commit| self.lsn < commit.lsn && commit.lsn <= lsn),
            "commits beyond {} to {lsn}",
            self.lsn
        );
        (self.lsn, self.accepted, self.is_missing_some) = (lsn.max(self.lsn), accepted, false);
        self.tail = Some(tail);
        self.watch.follow_to(self.locked, self.lsn);
        self.locked = self.lsn;
        Ok(true)
    }

    /// Waits for changes that make the view stale, if the owner makes them.
    pub fn listen(&self) -> Box<dyn Listener> {
        self.watch.listen()
    }

    /// Whether a new look would find newer commits or another owner.
    pub fn is_stale(&self, storage: &Arc<dyn Storage>, store_dir: &StoreDir) -> Result<bool> {
        match self.watch.published_commit(&**storage)? {
            Some(lsn) => Ok(lsn != self.lsn),
            None => match self.watch.check(&**storage, store_dir, self.lsn) {
                Err(Error::SnapshotEnded { .. }) => Ok(true),
                done => done.map(|()| false),
            },
        }
    }
}
