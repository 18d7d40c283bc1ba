//! How a reader takes and keeps a snapshot: it holds a byte of the page, and the owner keeps the data that the snapshot
//! needs.
//!
//! ```text
//! by the page    load durable = S0 ─▶ hold [S0, end) ─▶ load durable = S ─▶ release all but S
//! not begun      hold [0, end) ─▶ read header and log, flushed ─▶ S ─▶ still not begun? ─▶ release all but S
//! ```
//!
//! Nothing is repeated, except once if somebody opens a store that nobody had opened since the boot. A checkpoint that
//! overwrites data of commit S goes up to a newer commit, which was published after S was loaded, and so after the hold.
//! The owner lists the locks after that.

use crate::directories::store_dir::{StoreDir, is_closed_note};
use crate::error::{Error, Result};
use crate::invariant;
use crate::readers::closed_store::{ClosedLog, Left, is_owned};
use crate::readers::refusal;
use crate::scanning::scan::read_header;
use crate::undo::holds::{FOLLOWED, HOLDS_END};
use crate::undo::page::{Cell, Chain, Published, ReadersPage};
use parking_lot::Mutex;
use std::sync::Arc;
use untorn_os::{File, Listener, Pauses, Storage, holds};

/// Attempts while an owner opens the store. All but the first few pause before they start.
const ATTEMPTS_MAX: usize = 400;
/// Attempts without a pause.
const ATTEMPTS_AT_ONCE: usize = 4;

/// Looks at the log. One is enough, unless the owner gave up the segments that a look needs, because it keeps little
/// for readers: the next look may then find the commits applied.
pub(crate) const LOOKS_MAX: usize = 8;

/// The page that a reader saw last.
#[derive(Default)]
pub struct KnownPage(Mutex<Option<Arc<ReadersPage>>>);

impl KnownPage {
    fn get(&self, storage: &dyn Storage, store_dir: &StoreDir) -> Result<Option<Arc<ReadersPage>>> {
        let mut known = self.0.lock();
        if let Some(page) = &*known
            && page.chain(storage)? == Chain::Begun
        {
            return Ok(known.clone());
        }
        *known = ReadersPage::open(storage, store_dir)?.map(Arc::new);
        Ok(known.clone())
    }

    fn forget(&self) {
        *self.0.lock() = None;
    }
}

/// The lock or the files on which a reader relies.
pub(crate) enum Watch {
    /// Locked bytes of the page.
    Page { page: Arc<ReadersPage>, lock: Arc<dyn File> },
    /// Files of a closed store without a page that can be locked.
    Left(Left),
}

/// The part of a page that a reader locks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted {
    /// A snapshot of this commit or a later one.
    Snapshot { at_least: u64 },
    /// The commits behind this one; without a number, behind the last one.
    Commits { after: Option<u64>, at_least: u64 },
}

/// A snapshot or a place in the log, as it was taken.
pub(crate) struct Taken {
    pub watch: Watch,
    pub lsn: u64,
    /// For a place in the log: the commit up to which the lock says that the follower has them.
    pub locked: u64,
    /// The log of a store that nobody has opened since the boot, which decided about the commit.
    pub log: Option<ClosedLog>,
}

enum Attempt {
    Done(Box<Taken>),
    /// Why nothing can be read now; a later attempt may succeed.
    Disturbed(Error),
}

impl Watch {
    /// Takes a snapshot, or a place in the log.
    ///
    /// # Errors
    /// [`Error::Busy`] if an owner is opening the store. [`Error::Unsupported`] if the store is of class `process`.
    pub(crate) fn take(
        storage: &Arc<dyn Storage>,
        store_dir: &StoreDir,
        known: &KnownPage,
        wanted: Wanted,
    ) -> Result<Taken> {
        let mut disturbed = None;
        for n in 0..ATTEMPTS_MAX {
            if n >= ATTEMPTS_AT_ONCE {
                storage.pause();
            }
            match attempt(storage, store_dir, known, wanted)? {
                Attempt::Done(taken) => return Ok(*taken),
                Attempt::Disturbed(why) => disturbed = Some(why),
            }
        }
        Err(disturbed.expect("an attempt"))
    }

    /// How much is kept for readers, as published now.
    ///
    /// # Errors
    /// Those of [`Watch::check`], except for a commit that was given up.
    pub(crate) fn published(&self, storage: &dyn Storage, store_dir: &StoreDir, lsn: u64) -> Result<Published> {
        let Watch::Page { page, .. } = self else { return Ok(Published { generation: 0, bytes: 0 }) };
        match page.chain(storage)? {
            Chain::Begun => Ok(Published::of(page.number(Cell::Kept)?)),
            Chain::NotBegun => Ok(Published { generation: 0, bytes: 0 }),
            Chain::Ended => Err(Error::SnapshotEnded { path: store_dir.dir.clone(), lsn }),
        }
    }

    /// Checks, after a read, that the bytes are of this commit.
    ///
    /// # Errors
    /// [`Error::SnapshotExpired`] · [`Error::SnapshotEnded`]
    pub(crate) fn check(&self, storage: &dyn Storage, store_dir: &StoreDir, lsn: u64) -> Result<()> {
        let ended = || Err(Error::SnapshotEnded { path: store_dir.dir.clone(), lsn });
        match self {
            Watch::Page { page, .. } => match page.chain(storage)? {
                Chain::NotBegun => Ok(()),
                Chain::Ended => ended(),
                Chain::Begun if page.number(Cell::GivenUp)? > lsn && holds(invariant::GIVEN_UP_CHECKED) => {
                    Err(Error::SnapshotExpired { path: store_dir.dir.clone(), lsn })
                }
                Chain::Begun => Ok(()),
            },
            Watch::Left(left) => {
                match !holds(invariant::CLOSED_VALIDATED) || left.is_still_there(storage, store_dir)? {
                    true => Ok(()),
                    false => ended(),
                }
            }
        }
    }

    /// The commit that is published now; `None` if nothing is published any more.
    pub(crate) fn published_commit(&self, storage: &dyn Storage) -> Result<Option<u64>> {
        match self {
            Watch::Page { page, .. } if page.chain(storage)? == Chain::Begun => page.number(Cell::Durable).map(Some),
            _ => Ok(None),
        }
    }

    /// Whether the names of commits up to this one are on the disk.
    pub(crate) fn names_are_applied(&self, storage: &dyn Storage, lsn: u64) -> Result<bool> {
        match self {
            Watch::Page { page, .. } if page.chain(storage)? == Chain::Begun => Ok(page.number(Cell::Named)? >= lsn),
            _ => Ok(false),
        }
    }

    /// The page, if it is that of a chain.
    pub(crate) fn page(&self) -> Option<&Arc<ReadersPage>> {
        match self {
            Watch::Page { page, .. } => Some(page),
            Watch::Left(_) => None,
        }
    }

    /// Moves the place of a follower: it has the commits up to this one.
    pub(crate) fn follow_to(&self, from: u64, to: u64) {
        if let Watch::Page { lock, .. } = self
            && from < to
            && lock.hold(FOLLOWED + to..FOLLOWED + to + 1).unwrap_or(false)
        {
            let _ = lock.release(FOLLOWED + from..FOLLOWED + to);
        }
    }

    /// Waits for changes that the owner publishes.
    pub(crate) fn listen(&self) -> Box<dyn Listener> {
        self.page().map_or_else(|| Box::new(Pauses) as Box<dyn Listener>, |page| page.listen())
    }
}

fn attempt(storage: &Arc<dyn Storage>, store_dir: &StoreDir, known: &KnownPage, wanted: Wanted) -> Result<Attempt> {
    let disk = &**storage;
    let page = known.get(disk, store_dir)?;
    if let Some(page) = &page
        && page.chain(disk)? == Chain::Begun
    {
        return by_page(disk, store_dir, known, page, wanted);
    }
    if let (true, pid) = is_owned(disk, store_dir)? {
        return match read_header(disk, &store_dir.journal()) {
            Ok(header) if header.boot.is_some() => Err(refusal::class_process(store_dir, pid)),
            _ => Ok(Attempt::Disturbed(refusal::opening(store_dir, pid))),
        };
    }
    by_log(storage, store_dir, page, wanted)
}

fn by_page(
    storage: &dyn Storage,
    store_dir: &StoreDir,
    known: &KnownPage,
    page: &Arc<ReadersPage>,
    wanted: Wanted,
) -> Result<Attempt> {
    let replaced = || {
        known.forget();
        Ok(Attempt::Disturbed(refusal::opening(store_dir, None)))
    };
    let Some(lock) = page.opened_again(storage)? else { return replaced() };
    let hold = |range| match lock.hold(range) {
        Ok(true) => Ok(()),
        _ => Err(refusal::no_locks(store_dir)),
    };
    let durable = || match page.number(Cell::Durable)? {
        lsn if lsn < HOLDS_END => Ok(lsn),
        lsn => Err(Error::corrupt(store_dir.readers_page(), format!("it says that commit {lsn} is durable"))),
    };
    let before = durable()?;
    let (lsn, locked, at_least) = match wanted {
        Wanted::Snapshot { at_least } => {
            hold(before..HOLDS_END)?;
            let lsn = if holds(invariant::LOCKED_FIRST) { durable()?.max(before) } else { before };
            keep_only(&*lock, before, lsn, store_dir)?;
            (lsn, lsn, at_least)
        }
        Wanted::Commits { after, at_least } => {
            let after = after.unwrap_or(before).min(HOLDS_END);
            hold(FOLLOWED + after..FOLLOWED + after + 1)?;
            (durable()?, after, at_least)
        }
    };
    if page.chain(storage)? != Chain::Begun {
        return replaced();
    }
    if matches!(wanted, Wanted::Snapshot { .. }) && page.number(Cell::GivenUp)? > lsn {
        // The disk is full: the next commit makes snapshots possible again.
        return Ok(Attempt::Disturbed(Error::SnapshotExpired { path: store_dir.dir.clone(), lsn }));
    }
    if lsn < at_least {
        return Err(refusal::went_back(store_dir, at_least, lsn));
    }
    Ok(Attempt::Done(Box::new(Taken { watch: Watch::Page { page: page.clone(), lock }, lsn, locked, log: None })))
}

/// Releases the bytes from `from` on, except that of this commit, which stays locked throughout.
fn keep_only(lock: &dyn File, from: u64, lsn: u64, store_dir: &StoreDir) -> Result<()> {
    let released = lock.release(from..lsn).and_then(|()| lock.release(lsn + 1..HOLDS_END));
    released.map_err(|_| refusal::no_locks(store_dir))
}

fn by_log(
    storage: &Arc<dyn Storage>,
    store_dir: &StoreDir,
    page: Option<Arc<ReadersPage>>,
    wanted: Wanted,
) -> Result<Attempt> {
    let disk = &**storage;
    let lock = match &page {
        Some(page) if !disk.shows_another() => page.opened_again(disk)?,
        _ => None,
    };
    let lock = lock.filter(|lock| lock.hold(0..HOLDS_END).unwrap_or(false));
    let Some(left) = Left::look(disk, store_dir)? else {
        return Ok(Attempt::Disturbed(refusal::opening(store_dir, None)));
    };
    if disk.shows_another() && !is_closed_note(left.note()) && !was_owned_here(disk, page.as_deref())? {
        return Err(refusal::unseen_owner(store_dir));
    }
    let (at_least, after) = match wanted {
        Wanted::Snapshot { at_least } => (at_least, None),
        Wanted::Commits { after, at_least } => (at_least, after),
    };
    let log = ClosedLog::read(storage, store_dir, after);
    let watch = match (page, lock) {
        (Some(page), Some(lock)) => {
            if page.chain(disk)? != Chain::NotBegun {
                return Ok(Attempt::Disturbed(refusal::opening(store_dir, None)));
            }
            Watch::Page { page, lock }
        }
        _ if left.is_still_there(disk, store_dir)? => Watch::Left(left),
        _ => return Ok(Attempt::Disturbed(refusal::opening(store_dir, None))),
    };
    let log = log?;
    if log.lsn < at_least {
        return Err(refusal::went_back(store_dir, at_least, log.lsn));
    }
    let lsn = log.lsn;
    if let Watch::Page { lock, .. } = &watch {
        match wanted {
            Wanted::Snapshot { .. } => keep_only(&**lock, 0, lsn, store_dir)?,
            Wanted::Commits { after, .. } => {
                let place = FOLLOWED + after.unwrap_or(lsn).min(HOLDS_END);
                let moved = lock.hold(place..place + 1).and_then(|_| lock.release(0..HOLDS_END));
                moved.map_err(|_| refusal::no_locks(store_dir))?;
            }
        }
    }
    let locked = match wanted {
        Wanted::Commits { after: Some(after), .. } => after,
        _ => lsn,
    };
    Ok(Attempt::Done(Box::new(Taken { watch, lsn, locked, log: Some(log) })))
}

/// Whether the last owner saw the same files as this process; if so, it was killed.
fn was_owned_here(storage: &dyn Storage, page: Option<&ReadersPage>) -> Result<bool> {
    page.map_or(Ok(false), |page| Ok(page.chain(storage)? == Chain::Begun))
}
