//! A follower of the commits of a store: first through the log that is kept for slots, then through the journal.

use crate::directories::store_dir::StoreDir;
use crate::error::Result;
use crate::readers::former_log::{FormerLog, Found};
use crate::readers::look::Look;
use crate::readers::watch::KnownPage;
use crate::scanning::scan::AcceptedRecord;
use std::sync::Arc;
use untorn_os::{Listener, Pauses, Storage};

/// Attempts to go from the kept log to the journal while checkpoints come between.
const ATTEMPTS_MAX: usize = 8;

enum Place {
    Kept(FormerLog),
    Journal(Look),
}

/// A part of the log.
pub struct Part {
    /// Every commit up to this one was found, or is missing.
    pub lsn: u64,
    /// The commits.
    pub found: Vec<AcceptedRecord>,
    /// The first and last LSN of commits before these that are gone.
    pub missed: Option<(u64, u64)>,
}

impl Part {
    /// The commits that a look at the journal behind this one has found.
    fn of(look: &mut Look, before: u64) -> Part {
        let missed = look.is_missing_some.then_some((before + 1, look.checkpoint_lsn));
        Part { lsn: look.lsn, found: std::mem::take(&mut look.accepted), missed }
    }
}

/// A place in the log of a store.
pub struct Follower {
    place: Place,
    /// The part before the place.
    pub part: Part,
}

impl Follower {
    /// The end of the log, at this commit or a later one.
    ///
    /// # Errors
    /// Those of [`Look::take`].
    pub fn at_end(
        storage: &Arc<dyn Storage>,
        store_dir: &StoreDir,
        known: &KnownPage,
        at_least: u64,
    ) -> Result<Follower> {
        let mut look = Look::take(storage, store_dir, known, at_least)?;
        let part = Part::of(&mut look, at_least);
        Ok(Follower { place: Place::Journal(look), part })
    }

    /// The place behind this commit, with the next ones.
    ///
    /// # Errors
    /// Those of [`Look::take`]; the store has no such commit.
    pub fn behind(storage: &Arc<dyn Storage>, store_dir: &StoreDir, known: &KnownPage, lsn: u64) -> Result<Follower> {
        store_dir.check_may_read(&**storage)?;
        for attempt in 1.. {
            // The journal comes first: a file that it lacks by then was kept before.
            let kept = FormerLog::behind(lsn, &**storage, store_dir);
            if let Ok(Some(mut log)) = kept
                && let Some(part) = Follower::in_kept(&mut log, lsn, storage, store_dir)?
            {
                return Ok(Follower { place: Place::Kept(log), part });
            }
            let mut look = Look::take_after(storage, store_dir, known, lsn)?;
            if look.is_missing_some && attempt < ATTEMPTS_MAX {
                // A checkpoint came between.
                continue;
            }
            let part = Part::of(&mut look, lsn);
            return Ok(Follower { place: Place::Journal(look), part });
        }
        unreachable!("the last attempt returns")
    }

    /// The next part of the kept log; `None` if it has none.
    fn in_kept(
        log: &mut FormerLog,
        lsn: u64,
        storage: &Arc<dyn Storage>,
        store_dir: &StoreDir,
    ) -> Result<Option<Part>> {
        Ok(match log.next(storage, store_dir)? {
            Found::Commits(found) => Some(Part { lsn: log.lsn, found, missed: None }),
            Found::Gap(to) => {
                log.skip_to(to);
                Some(Part { lsn: to, found: Vec::new(), missed: Some((lsn + 1, to)) })
            }
            Found::End => None,
        })
    }

    /// Whether there may be newer commits, or another owner.
    ///
    /// # Errors
    /// Those of [`Look::is_stale`].
    pub fn is_stale(&self, storage: &Arc<dyn Storage>, store_dir: &StoreDir) -> Result<bool> {
        match &self.place {
            Place::Kept(_) => Ok(true),
            Place::Journal(look) => look.is_stale(storage, store_dir),
        }
    }

    /// Waits for changes that make the place stale.
    pub fn listen(&self) -> Box<dyn Listener> {
        match &self.place {
            Place::Kept(_) => Box::new(Pauses),
            Place::Journal(look) => look.listen(),
        }
    }

    /// Goes on to newer commits. Returns whether the listener still serves.
    ///
    /// # Errors
    /// Those of [`Follower::behind`].
    pub fn go_on(&mut self, storage: &Arc<dyn Storage>, store_dir: &StoreDir, known: &KnownPage) -> Result<bool> {
        match &mut self.place {
            Place::Kept(log) => {
                if let Some(part) = Follower::in_kept(log, self.part.lsn, storage, store_dir)? {
                    self.part = part;
                    return Ok(true);
                }
            }
            Place::Journal(look) => {
                if look.go_on(storage, store_dir)? {
                    self.part = Part::of(look, self.part.lsn);
                    return Ok(true);
                }
            }
        }
        *self = Follower::behind(storage, store_dir, known, self.part.lsn)?;
        Ok(false)
    }
}
