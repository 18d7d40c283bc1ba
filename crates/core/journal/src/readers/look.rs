//! A read-only view of a store's log for processes that do not own the store, and the checks that keep it valid.

use crate::directories::quarantine::PendingFiles;
use crate::directories::store_dir::{StoreDir, is_closed_note, is_owned_by_somebody, read_pid};
use crate::error::{Context, Error, Result};
use crate::format::{Header, StoreId};
use crate::invariant;
use crate::readers::leases::{closed_life, header_bytes};
use crate::readers::log_tail::LogTail;
use crate::readers::moment::Moment;
use crate::readers::readers_page::{Cell, ReadersPage, head_bytes, lease_of_closed, open_page, page_head_of};
use crate::scanning::scan::{AcceptedRecord, Keep, Scan, flush_header, given_up_after, read_header, scan};
use crate::scanning::segment_reader::ReadMode;
use crate::sync_point;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use untorn_os::{File, Listener, Open, Pauses, Storage, holds, read_full_at};

/// Attempts at a look that the owner disturbs. All but the first few pause before they start.
const LOOKS_MAX: usize = 400;
/// Attempts without a pause.
const LOOKS_AT_ONCE: usize = 4;

/// Bytes of a lock file that are compared.
const NOTE_BYTES: usize = 16;

/// The state that must not change while a reader relies on it.
pub(crate) enum Watch {
    /// The owner's page.
    Owner(ReadersPage),
    /// Nobody has the store open.
    Closed {
        left: Left,
        /// The page, held under a lease. The next owner changes its head after it has waited for the lease.
        held: OnceLock<Arc<dyn File>>,
    },
}

/// The files as the last owner left them. The next owner changes one of them before it changes anything else.
pub(crate) struct Left {
    lock: Option<Arc<dyn File>>,
    /// Modification time of the lock file, if there is no page.
    noted: Option<i128>,
    /// Contents of the lock file: a process id, perhaps of another pid namespace, or nothing.
    note: Vec<u8>,
    /// The head of the page: a random one for each owner, if there was room for a page.
    page_head: Vec<u8>,
    /// The page, kept open because its lock shows the next owner that somebody reads.
    _page: Option<Arc<dyn File>>,
    header: Vec<u8>,
}

impl Left {
    /// Whether nobody has opened the store since.
    fn is_still_there(&self, storage: &dyn Storage, store_dir: &StoreDir) -> Result<bool> {
        let is_same_lock = match (lock_note(storage, store_dir)?, &self.lock) {
            (Some((found, note)), Some(lock)) => {
                is_same(&**lock, &*found) && note == self.note && written_at(&*found, &self.page_head) == self.noted
            }
            (None, None) => true,
            _ => false,
        };
        Ok(is_same_lock && header_bytes(storage, store_dir)? == self.header && self.is_its_page(storage, store_dir)?)
    }

    fn is_its_page(&self, storage: &dyn Storage, store_dir: &StoreDir) -> Result<bool> {
        Ok(!holds(invariant::PAGE_HEAD_COMPARED)
            || page_head_of(open_page(storage, store_dir)?.as_deref(), store_dir)? == self.page_head)
    }
}

/// Modification time of a lock file: the only difference between two owners that found no room for a page.
fn written_at(lock: &dyn File, page_head: &[u8]) -> Option<i128> {
    lock.meta().ok().filter(|_| page_head.is_empty()).map(|meta| meta.mtime_ns)
}

/// The log of a store as of one moment.
pub struct Look {
    pub(crate) watch: Watch,
    /// The last commit in the view.
    pub lsn: u64,
    /// LSN behind which the log was truncated.
    pub checkpoint_lsn: u64,
    /// Commits between the two LSNs; in a look after a commit, all commits behind that one.
    pub accepted: Vec<AcceptedRecord>,
    /// Commits behind the one that the look starts after may be missing.
    pub is_missing_some: bool,
    pub(crate) store: Option<StoreId>,
    /// The header, if the store is closed.
    pub(crate) left_by: Option<Header>,
    /// Files that wait for commits in quarantined journals, and why.
    pub(crate) quarantined: BTreeMap<u64, String>,
    /// Position at which the owner's log continues.
    pub(crate) tail: Option<LogTail>,
    /// How long the view stays valid without another check.
    pub(crate) moment: Moment,
}

impl Look {
    /// Looks at a store, at this commit or a later one.
    ///
    /// # Errors
    /// [`Error::Busy`] if the owner announces nothing to readers: it is still opening the store, or had no room for the
    /// page. [`Error::Unsupported`] if the store is of class `process`.
    pub fn take(storage: &Arc<dyn Storage>, store_dir: &StoreDir, at_least: u64) -> Result<Look> {
        Look::take_with(storage, store_dir, at_least, None)
    }

    /// Looks like [`Look::take`], and includes every commit behind this LSN that is still in the log.
    pub fn take_after(storage: &Arc<dyn Storage>, store_dir: &StoreDir, lsn: u64) -> Result<Look> {
        Look::take_with(storage, store_dir, lsn, Some(lsn))
    }

    fn take_with(storage: &Arc<dyn Storage>, store_dir: &StoreDir, at_least: u64, after: Option<u64>) -> Result<Look> {
        store_dir.check_may_read(&**storage)?;
        let mut disturbed = None;
        for n in 0..LOOKS_MAX {
            if n >= LOOKS_AT_ONCE {
                storage.pause();
            }
            match look(storage, store_dir, at_least, after) {
                Ok(Attempt::Done(look)) => return Ok(*look),
                Ok(Attempt::Disturbed(why)) => disturbed = Some(why),
                Err(e) => return Err(e),
            }
        }
        Err(disturbed.expect("an attempt"))
    }

    /// Looks at the same owner's log again; with `after`, at every commit behind it that is still there. The next owner
    /// may already hold the lock and wait for a lease. Returns `None` if the store was closed when the first look was
    /// taken.
    pub(crate) fn again(
        &self,
        storage: &Arc<dyn Storage>,
        store_dir: &StoreDir,
        after: Option<u64>,
    ) -> Result<Option<Look>> {
        let Watch::Owner(page) = &self.watch else { return Ok(None) };
        for n in 0..LOOKS_MAX {
            if n >= LOOKS_AT_ONCE {
                storage.pause();
            }
            if let Attempt::Done(look) = look_at_page(storage, store_dir, page.clone(), self.lsn, after)? {
                return Ok(Some(*look));
            }
            if !page.look()?.is_kept {
                break;
            }
        }
        Err(Error::SnapshotExpired { path: store_dir.dir.clone(), lsn: self.lsn })
    }

    /// Advances to the commits that the same owner has made durable meanwhile. Returns false if these can be found only
    /// by scanning the whole log.
    pub fn go_on(&mut self, storage: &Arc<dyn Storage>, store_dir: &StoreDir) -> Result<bool> {
        let (Watch::Owner(page), Some(mut tail)) = (&self.watch, self.tail.take()) else { return Ok(false) };
        let Some(lsn) = page.look()?.lsn(Cell::Durable) else { return Ok(false) };
        let Some(accepted) = tail.read_to(lsn, page, storage, &store_dir.journal(), false) else { return Ok(false) };
        // Checked after reading the LSN, so that the LSN was this owner's. A killed owner may have left more commits
        // than it announced, and announces no more.
        let goes_on = || lsn > self.lsn || is_owned(&**storage, store_dir).is_ok_and(|(owned, _)| owned);
        if lsn < self.lsn || !page.look()?.is_kept || !goes_on() {
            return Ok(false);
        }
        debug_assert!(
            accepted.iter().all(|commit| self.lsn < commit.lsn && commit.lsn <= lsn),
            "commits beyond {} to {lsn}",
            self.lsn
        );
        (self.lsn, self.accepted, self.is_missing_some) = (lsn, accepted, false);
        self.tail = Some(tail);
        Ok(true)
    }

    /// Waits for changes that make the view stale, if the owner makes them.
    pub fn listen(&self) -> Box<dyn Listener> {
        match &self.watch {
            Watch::Owner(page) => page.listen(),
            Watch::Closed { .. } => Box::new(Pauses),
        }
    }

    /// Whether a new look would find newer commits or another owner.
    pub fn is_stale(&self, storage: &Arc<dyn Storage>, store_dir: &StoreDir) -> Result<bool> {
        match &self.watch {
            // A killed owner announces nothing more, and may have left more commits than it announced.
            Watch::Owner(page) => {
                let now = page.look()?;
                Ok(now.lsn(Cell::Durable) != Some(self.lsn) || !now.is_kept || !is_owned(&**storage, store_dir)?.0)
            }
            Watch::Closed { .. } => match self.check(&**storage, store_dir) {
                Err(Error::SnapshotExpired { .. }) => Ok(true),
                done => done.map(|()| false),
            },
        }
    }

    /// Takes a lease on the commit, or returns `None` if the owner already wants to apply newer commits.
    pub(crate) fn lease(&self, storage: &dyn Storage, store_dir: &StoreDir) -> Result<Option<Arc<dyn File>>> {
        let wanted = || match &self.watch {
            Watch::Owner(page) => {
                let now = page.look()?;
                let is_behind = |cell| now.lsn(cell).is_none_or(|lsn| lsn > self.lsn);
                Ok([Cell::WantedTo, Cell::ApplyingTo, Cell::NamesTo].into_iter().any(is_behind))
            }
            Watch::Closed { .. } => Ok(false),
        };
        // Lock first, so that an owner that wants to apply newer commits afterwards sees the lock.
        let wanted_before = !holds(invariant::LOCKED_FIRST) && wanted()?;
        let lease = match &self.watch {
            Watch::Owner(page) => page.lease(storage, self.lsn)?,
            Watch::Closed { left, held } => {
                let life = closed_life(&left.header, &left.page_head);
                let found = lease_of_closed(storage, store_dir, life, self.lsn)?;
                // An owner that came before the lease did not wait for it.
                match found {
                    Some(found) if left.is_still_there(storage, store_dir)? => {
                        let _ = held.set(found.page);
                        Some(found.lease)
                    }
                    _ => None,
                }
            }
        };
        if wanted_before || (holds(invariant::LOCKED_FIRST) && wanted()?) {
            return Ok(None);
        }
        let is_valid = match &self.watch {
            Watch::Owner(page) => page.look()?.is_kept,
            Watch::Closed { .. } => true,
        };
        Ok(lease.filter(|_| is_valid))
    }

    /// Whether data that was read from data files is of this view; with `names`, whether names are as of commits up to
    /// that one.
    pub(crate) fn is_valid(&self, storage: &dyn Storage, store_dir: &StoreDir, names: Option<u64>) -> Result<Valid> {
        let (since, mut new_names) = (storage.uptime(), None);
        let valid = match &self.watch {
            Watch::Owner(page) => {
                let now = page.look()?;
                let applying =
                    !holds(invariant::READ_VALIDATED) || now.lsn(Cell::ApplyingTo).is_some_and(|lsn| lsn <= self.lsn);
                let names_to = match names.filter(|_| holds(invariant::NAME_VALIDATED)) {
                    Some(names) => now.lsn(Cell::NamesTo).map(|to| (to > names).then_some(to)),
                    None => Some(None),
                };
                new_names = names_to.flatten();
                applying && names_to.is_some() && now.is_kept
            }
            Watch::Closed { left, held } => match held.get() {
                Some(page) => {
                    header_bytes(storage, store_dir)? == left.header
                        && head_bytes(&**page).context("read", store_dir.readers_page())? == left.page_head
                }
                None => !holds(invariant::CLOSED_VALIDATED) || left.is_still_there(storage, store_dir)?,
            },
        };
        if valid {
            self.moment.seen(since);
        }
        Ok(match (valid, new_names) {
            (true, None) => Valid::Yes,
            (true, Some(to)) => Valid::NewNames(to),
            (false, _) => Valid::No,
        })
    }

    /// Whether data that was read from data files before this call is of this view.
    pub(crate) fn is_still_valid(&self, storage: &dyn Storage, store_dir: &StoreDir) -> Result<bool> {
        Ok(self.moment.lasts(storage) || self.is_valid(storage, store_dir, None)? == Valid::Yes)
    }

    /// Whether data that was read from data files is of this view.
    fn check(&self, storage: &dyn Storage, store_dir: &StoreDir) -> Result<()> {
        match self.is_valid(storage, store_dir, None)? {
            Valid::Yes => Ok(()),
            _ => Err(Error::SnapshotExpired { path: store_dir.dir.clone(), lsn: self.lsn }),
        }
    }
}

/// Whether the data just read is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Valid {
    Yes,
    /// Valid unless it relies on names: these may have changed by commits up to this LSN.
    NewNames(u64),
    No,
}

fn is_same(a: &dyn File, b: &dyn File) -> bool {
    matches!((a.meta(), b.meta()), (Ok(a), Ok(b)) if (a.device, a.inode, a.links) == (b.device, b.inode, b.links))
}

enum Attempt {
    Done(Box<Look>),
    /// Why there is no view now; a later attempt may succeed.
    Disturbed(Error),
}

/// A lock file and its contents.
type LockNote = (Arc<dyn File>, Vec<u8>);

/// The lock file and its contents, or `None` if there is no file or a process holds the lock.
fn lock_note(storage: &dyn Storage, store_dir: &StoreDir) -> Result<Option<LockNote>> {
    let path = store_dir.lock_file();
    let file = match storage.open(&path, Open::READ) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        done => done.context("open", &path)?,
    };
    let is_owned = || is_owned_by_somebody(storage, store_dir, &*file).context("look at", &path);
    if is_owned()? {
        return Ok(None);
    }
    let mut note = vec![0; NOTE_BYTES];
    let n = read_full_at(&*file, &mut note, 0).context("read", &path)?;
    note.truncate(n);
    // The lock may have been taken before or after the read, so check again.
    Ok((!is_owned()?).then(|| (file.clone(), note)))
}

pub(crate) fn is_owned(storage: &dyn Storage, store_dir: &StoreDir) -> Result<(bool, Option<u32>)> {
    let path = store_dir.lock_file();
    match storage.open(&path, Open::READ) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok((false, None)),
        Err(e) => Err(Error::io("open", &path, e)),
        Ok(lock) => Ok((is_owned_by_somebody(storage, store_dir, &*lock).context("look at", &path)?, read_pid(&*lock))),
    }
}

fn look(storage: &Arc<dyn Storage>, store_dir: &StoreDir, at_least: u64, after: Option<u64>) -> Result<Attempt> {
    match is_owned(&**storage, store_dir)? {
        (true, pid) => look_at_owned(storage, store_dir, at_least, after, pid),
        (false, _) => look_at_closed(storage, store_dir, at_least, after),
    }
}

/// Adds the commits behind this LSN that were truncated from the log. Returns whether some may be missing.
fn add_given_up(
    storage: &Arc<dyn Storage>,
    journal: &Path,
    scanned: &Scan,
    after: Option<u64>,
    accepted: &mut Vec<AcceptedRecord>,
) -> bool {
    let Some(after) = after.filter(|after| *after < scanned.header.checkpoint_lsn) else { return false };
    match given_up_after(storage, journal, scanned, after) {
        Some(given_up) => {
            accepted.splice(0..0, given_up);
            false
        }
        None => true,
    }
}

fn look_at_owned(
    storage: &Arc<dyn Storage>,
    store_dir: &StoreDir,
    at_least: u64,
    after: Option<u64>,
    pid: Option<u32>,
) -> Result<Attempt> {
    let page = ReadersPage::open(&**storage, store_dir)?;
    let Some(page) = page.filter(|page| Some(page.head.pid) == pid) else { return no_page(&**storage, store_dir, pid) };
    look_at_page(storage, store_dir, page, at_least, after)
}

/// Looks at the log of the owner that keeps this page, or of a killed owner that has no successor.
fn look_at_page(
    storage: &Arc<dyn Storage>,
    store_dir: &StoreDir,
    page: ReadersPage,
    at_least: u64,
    after: Option<u64>,
) -> Result<Attempt> {
    let pid = Some(page.head.pid);
    let moment = page.moment(&**storage);
    let Some(lsn) = page.look()?.lsn(Cell::Durable) else { return Ok(Attempt::Disturbed(changing(store_dir, pid))) };
    if lsn < at_least {
        return Ok(Attempt::Disturbed(went_back(store_dir, at_least, lsn)));
    }
    let journal = store_dir.journal();
    // The unfinished work of a running owner is no damage.
    let mut scanned = match scan(storage, &journal, ReadMode::Cached, Keep::Contents, after.is_some(), &|_, _| {}) {
        Ok(scanned) => scanned,
        Err(e @ (Error::NewerVersion { .. } | Error::Foreign { .. })) => return Err(e),
        Err(e) => return Ok(Attempt::Disturbed(e)),
    };
    if scanned.header.boot.is_some() {
        return Err(class_process(store_dir));
    }
    let reaches = scanned.last_lsn >= lsn || !holds(invariant::LOG_REACHES);
    if scanned.header.checkpoint_lsn > lsn || !reaches || scanned.header.store != page.head.store {
        let why = scanned.corrupt.unwrap_or_else(|| changing(store_dir, pid));
        return Ok(Attempt::Disturbed(why));
    }
    let mut accepted = std::mem::take(&mut scanned.accepted);
    accepted.retain(|record| record.lsn <= lsn);
    let is_missing_some = add_given_up(storage, &journal, &scanned, after, &mut accepted);
    let quarantined = match quarantined_files(&**storage, store_dir) {
        Ok(quarantined) => quarantined,
        Err(e) => return Ok(Attempt::Disturbed(e)),
    };
    let look = Look {
        watch: Watch::Owner(page),
        lsn,
        checkpoint_lsn: scanned.header.checkpoint_lsn,
        accepted,
        is_missing_some,
        store: Some(scanned.header.store),
        left_by: None,
        quarantined,
        tail: LogTail::behind(&scanned, lsn, &**storage, &journal),
        moment,
    };
    match look.check(&**storage, store_dir) {
        Ok(()) => Ok(Attempt::Done(Box::new(look))),
        Err(e @ Error::SnapshotExpired { .. }) => Ok(Attempt::Disturbed(e)),
        Err(e) => Err(e),
    }
}

fn no_page(storage: &dyn Storage, store_dir: &StoreDir, pid: Option<u32>) -> Result<Attempt> {
    match read_header(storage, &store_dir.journal()) {
        Ok(header) if header.boot.is_some() => Err(class_process(store_dir)),
        _ => Ok(Attempt::Disturbed(changing(store_dir, pid))),
    }
}

fn changing(store_dir: &StoreDir, pid: Option<u32>) -> Error {
    let detail = format!(
        "{} does not serve readers: it is opening or closing the store, works in failure class `process`, had no room \
         on the disk for the file `readers` when it opened the store, or uses a version of Untorn that has no readers. \
         Try again, or let that process reopen the store",
        if pid.is_some() { ", which" } else { " by a process that" }
    );
    Error::Busy { path: store_dir.dir.clone(), pid, detail }
}

fn class_process(store_dir: &StoreDir) -> Error {
    Error::Unsupported {
        path: store_dir.dir.clone(),
        detail:
            "its owner works in failure class `process` and flushes nothing, so that nothing in it is durable yet; \
                 read it after it was closed, or use class `power`"
                .into(),
    }
}

fn went_back(store_dir: &StoreDir, at_least: u64, lsn: u64) -> Error {
    Error::Conflict {
        path: store_dir.dir.clone(),
        detail: format!(
            "its last commit is {lsn}, but commit {at_least} was read before; an older copy has replaced it"
        ),
    }
}

fn look_at_closed(
    storage: &Arc<dyn Storage>,
    store_dir: &StoreDir,
    at_least: u64,
    after: Option<u64>,
) -> Result<Attempt> {
    let disk = &**storage;
    // The page is read first, because any owner that comes from now on changes it.
    let page = open_page(disk, store_dir)?;
    let moment = Moment::shown_in(disk, page.as_deref());
    let page_head = page_head_of(page.as_deref(), store_dir)?;
    let (lock, note) = match lock_note(disk, store_dir)? {
        Some((lock, note)) => (Some(lock), note),
        None if disk.stat(&store_dir.lock_file()).is_ok() => {
            return Ok(Attempt::Disturbed(changing(store_dir, None)));
        }
        None => (None, Vec::new()),
    };
    if disk.shows_another() && !is_closed_note(&note) && !was_owned_here(disk, store_dir) {
        return Err(unseen_owner(store_dir));
    }
    let noted = lock.as_ref().and_then(|lock| written_at(&**lock, &page_head));
    let left = Left { lock, noted, note, page_head, _page: page, header: header_bytes(disk, store_dir)? };
    let journal = store_dir.journal();
    let mut look = Look {
        watch: Watch::Closed { left, held: OnceLock::new() },
        lsn: 0,
        checkpoint_lsn: 0,
        accepted: Vec::new(),
        is_missing_some: false,
        store: None,
        left_by: None,
        quarantined: BTreeMap::new(),
        tail: None,
        moment,
    };
    let found = read_closed(storage, store_dir, &journal, after, &mut look);
    // The result is valid if nobody opened the store meanwhile.
    match look.check(disk, store_dir) {
        Ok(()) => found?,
        Err(e @ Error::SnapshotExpired { .. }) => return Ok(Attempt::Disturbed(e)),
        Err(e) => return Err(e),
    }
    match look.lsn < at_least {
        true => Err(went_back(store_dir, at_least, look.lsn)),
        false => Ok(Attempt::Done(Box::new(look))),
    }
}

/// Reads the commits that recovery would accept.
fn read_closed(
    storage: &Arc<dyn Storage>,
    store_dir: &StoreDir,
    journal: &Path,
    after: Option<u64>,
    look: &mut Look,
) -> Result<()> {
    look.quarantined = quarantined_files(&**storage, store_dir)?;
    match storage.stat(journal) {
        // The creation of the store, or of a new journal, was interrupted: nothing is committed in it.
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        done => done.context("look at", journal)?,
    };
    flush_header(&**storage, journal, Open::READ, sync_point::READER_LOG)?;
    let header = read_header(&**storage, journal)?;
    if let Some(boot) = header.boot {
        let same = storage.boot_id().is_ok_and(|now| now == boot);
        return Err(if same { class_process_left(store_dir) } else { unknown_state(store_dir) });
    }
    let mut scanned = scan(storage, journal, ReadMode::PastCacheReadOnly, Keep::Contents, after.is_some(), &|_, _| {})?;
    if let Some(e) = scanned.corrupt {
        return Err(e);
    }
    let Header { checkpoint_lsn, store, .. } = scanned.header;
    (look.lsn, look.checkpoint_lsn, look.store) = (scanned.last_lsn, checkpoint_lsn, Some(store));
    look.left_by = Some(scanned.header.clone());
    look.accepted = std::mem::take(&mut scanned.accepted);
    look.is_missing_some = add_given_up(storage, journal, &scanned, after, &mut look.accepted);
    Ok(())
}

/// Whether the last owner saw the same files as this process; if so, it was killed.
fn was_owned_here(storage: &dyn Storage, store_dir: &StoreDir) -> bool {
    matches!(ReadersPage::open(storage, store_dir), Ok(Some(_)))
}

fn unseen_owner(store_dir: &StoreDir) -> Error {
    Error::Unsupported {
        path: store_dir.dir.clone(),
        detail: "this file system (overlay, FUSE) shows files of another file system, but not their locks: a process \
                 that has the store open there cannot be detected here. Read the store on its own file system, for \
                 example through a bind mount, which may be read-only. After the store is closed, it can be read here, \
                 too"
        .into(),
    }
}

fn unknown_state(store_dir: &StoreDir) -> Error {
    Error::UnknownState { path: store_dir.dir.clone() }
}

fn class_process_left(store_dir: &StoreDir) -> Error {
    Error::Unsupported {
        path: store_dir.dir.clone(),
        detail: "its owner worked in failure class `process` and did not close it, so that what is in it may not be \
                 durable; `untorn recover` flushes it"
            .into(),
    }
}

/// The files of which quarantined journals have commits.
pub(crate) fn quarantined_files(storage: &dyn Storage, store_dir: &StoreDir) -> Result<BTreeMap<u64, String>> {
    let mut files = BTreeMap::new();
    for dir in store_dir.quarantined_journals(storage)? {
        files.extend(PendingFiles::read(storage, &dir)?.map(|pending| pending.files).unwrap_or_default());
    }
    Ok(files)
}
